"""The model card of an exported run: its data, training, scores, and how to load it."""

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfm import __version__
from tfm.evaluation.record import SUFFIX, EvaluationRecord, read_record

TEMPLATE = """\
# {title}

A sequence-to-sequence model after "Attention Is All You Need", exported by tfm {version}.

| | |
| --- | --- |
| source and target | {source}, {target} |
| architecture | {architecture} |
| parameters | {parameters:,}, float32 |
| vocabulary | {pieces:,} word pieces, joint for both sides |
| data | {data} |
| training | {training} |
| decoding by default | {decoding} |

## Scores

{scores}

## Loading

With `FOLDER` the path of this folder:

```python
import tfm

tfm.Translator.load("FOLDER").translate(["..."])
```

```
tfm translate --workdir=FOLDER < source.txt > translation.txt
```

Nothing here is code that loading would execute: `model.safetensors` holds the parameters, `config.json` the
config of the run, `vocabulary.model` the SentencePiece vocabulary.
"""
GENERAL_TEMPLATE = """\
# A model of the task {task}

Exported by tfm {version}.

| | |
| --- | --- |
| architecture | {architecture} |
| parameters | {parameters:,}, float32 |
| data | {data} |
| training | {training} |

## Scores

{scores}

## Loading

With `FOLDER` the path of this folder:

```python
from tfm.workdir import runs

run = runs.load("FOLDER")  # run.task and run.params
```

```
tfm evaluate --workdir=FOLDER
```

Nothing here is code that loading would execute: `model.safetensors` holds the parameters, `config.json` the
config of the run.
"""
PROGRAMS = """
## Without tfm

{files}: the whole search with the decoding defaults, for batches of ROWSxLENGTH tokens, on CPU or CUDA. Each
row of the input holds word-piece ids that end in EOS (2), padded with 0:

```python
from jax import export
from safetensors.numpy import load_file

search = export.deserialize(bytearray(open("{first}", "rb").read()))
tokens, scores, lengths = search.call(load_file("model.safetensors"), inputs)  # int32 [ROWS, LENGTH]
```
"""


def write(
    settings: Any,
    steps: Sequence[int],
    parameters: int,
    pieces: int | None,
    records: Mapping[str, EvaluationRecord],
    programs: Sequence[str],
) -> str:
    """Returns the model card as Markdown.

    Args:
      settings: config of the run.
      steps: steps of the checkpoints. The parameters are the mean of these checkpoints.
      parameters: number of parameters.
      pieces: vocabulary size of a run that translates. None for other tasks.
      records: {name: record} from `read_records`.
      programs: names of the StableHLO files.
    """
    facts = {
        "version": __version__,
        "architecture": _architecture(settings.model),
        "parameters": parameters,
        "training": f"{_which(steps)} of {settings.training.steps:,}",
        "scores": "\n\n".join(_scores(records[name], steps) for name in sorted(records)) or "Not evaluated.",
    }
    if pieces is None:
        return GENERAL_TEMPLATE.format(
            **facts,
            task=settings.task,
            data=getattr(settings.data, "summary", _fields(vars(settings.data))),
        )
    card = TEMPLATE.format(
        **facts,
        title=_title(settings),
        source=settings.data.source_language,
        target=settings.data.target_language,
        pieces=pieces,
        data=_data(settings.data),
        decoding=_fields(dataclasses.asdict(settings.decoding)),
    )
    if not programs:
        return card
    files = ", ".join(f"`{name}`" for name in programs)
    return card + PROGRAMS.format(files=files, first=programs[0])


def read_records(workdir: str, language: str) -> dict[str, EvaluationRecord]:
    """Reads the records that tfm evaluate wrote into the folder of a run.

    Args:
      workdir: folder of the run.
      language: suffix of the files, the language of the outputs.

    Returns:
      {name of an evaluation: record}.

    Raises:
      UserError: if a file is not a record of tfm evaluate.
    """
    ending = f".{language}{SUFFIX}"
    paths = glob.glob(os.path.join(glob.escape(workdir), f"*{glob.escape(ending)}"))
    return {os.path.basename(path).removesuffix(ending): read_record(path) for path in paths}


def _title(settings: Any) -> str:
    """Returns the title of the card."""
    if settings.task != "translation":
        return f"A model of the task {settings.task}"
    return f"Translation from {settings.data.source_language} to {settings.data.target_language}"


def _architecture(model: Any) -> str:
    """Returns the name and the fields of a model config."""
    fields = dataclasses.asdict(model)
    if getattr(model, "max_length", None) is None:
        fields.pop("max_positions", None)
    return f"{fields.pop('name')}: {_fields(fields)}"


def _data(data: Any) -> str:
    """Returns the description of the training and validation data."""
    splits = f"`{data.train}`, validated on `{data.validation}`"
    if data.kind == "table":
        return f"tables {splits}"
    if data.kind == "huggingface":
        return f"{f'Hugging Face `{data.name}`' if data.name else 'a saved data set'}, {splits}"
    if data.kind == "text":
        return f"text files {splits}"
    if data.kind == "builtin":
        return f"the built-in language of tfm, {splits}"
    if data.kind == "tfds":
        return f"TFDS `{data.name}`, {splits}"
    return f"`{data.kind}`, {splits}"


def _scores(record: EvaluationRecord, steps: Sequence[int]) -> str:
    """Returns the scores of an evaluation, with a note if they belong to other parameters than the export."""
    is_exported = record.checkpoints == list(steps) and not record.ensemble
    other = "" if is_exported else " (not the parameters exported here)"
    lines = [
        f"Split `{record.split}`, {record.sentences:,} examples, "
        f"{_which(record.checkpoints, record.ensemble)}{other}{'; ' if record.decoding else ''}"
        f"{_fields(record.decoding)}:\n"
    ]
    lines += [f"- {score.name}: **{score.format_value()}** `{score.signature}`" for score in record.scores]
    return "\n".join(lines)


def _which(steps: Sequence[int], ensemble: bool = False) -> str:
    """Returns the checkpoints in words: a step, or the mean or ensemble of several steps."""
    shown = ", ".join(f"{step:,}" for step in steps)
    if len(steps) == 1:
        return f"step {shown}"
    return f"{'ensemble' if ensemble else 'mean'} of steps {shown}"


def _fields(fields: Mapping[str, Any]) -> str:
    """Returns names and values of fields in one line. Fields that are None are left out."""
    return ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
