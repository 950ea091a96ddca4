"""The model card of an exported run: its data, training, scores, and how to load it."""

import dataclasses
import glob
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfm import __version__
from tfm.config import dotted_names, import_flags, module_names
from tfm.data.tokenizers.protocol import source_tokenizer
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import escape
from tfm.io.markdown import format_cell, format_table
from tfm.workdir.evaluations import SUFFIX, EvaluationRecord, read_record

TEMPLATE = """\
# {title}

Exported by tfm {version}.

{table}

## Scores

{scores}

## Loading

With `FOLDER` the path of this folder:

```python
{python}
```

```
{command}
```

Nothing here is code that loading would execute: `model.safetensors` contains the parameters, and
`config.json` contains the config of the run.{assets}
"""
UNSET = (None, "", ())  # values of fields that are not set; 0 and False are values


def write(
    settings: Any,
    steps: Sequence[int],
    parameters: int,
    tokenizer: Any,
    records: Mapping[str, EvaluationRecord],
    assets: Collection[str] = (),
) -> str:
    """Returns the model card as Markdown.

    Args:
      settings: config of the run.
      steps: steps of the checkpoints. The parameters are the mean of these checkpoints. [0] for parameters
        of an import or of a warm start, whose data the config does not describe.
      parameters: number of parameters.
      tokenizer: tokenizer of a run that translates. None for other tasks.
      records: {name: record} from `read_records`.
      assets: names of the files of the task, such as its tokenizer.
    """
    data = settings.data
    translates = tokenizer is not None
    rows = {
        "architecture": _describe_model(settings.model),
        "parameters": f"{parameters:,}, float32",
    }
    if list(steps) == [0]:
        rows["training"] = "none, because the parameters were imported or --warm_start took them"
    else:
        rows["data"] = getattr(data, "summary", _describe_fields(vars(data)))
        rows["training"] = f"{_describe_steps(steps)} of {settings.training.steps:,}"
    modules = sorted(module_names(dotted_names(dataclasses.asdict(settings))))
    imports = "from tfm.workdir import runs"
    call = 'run = runs.load("FOLDER")  # run.task and run.params'
    flags = " ".join(["--workdir=FOLDER", *import_flags(modules)])
    command = f"tfm evaluate {flags}"
    if translates:
        rows = {"source and target": f"{data.source_language}, {data.target_language}"} | rows
        rows["vocabulary"] = _describe_vocabulary(tokenizer)
        rows["decoding by default"] = _describe_fields(dataclasses.asdict(settings.decoding))
        imports = "import tfm"
        call = 'tfm.Translator.load("FOLDER").translate(["..."])'
        command = f"tfm translate {flags} < source.txt > translation.txt"
    if modules:
        imports = f"{imports}\nfrom tfm.config import allow_modules"
        call = f"allow_modules({modules})\n{call}"
    title = f"A model of the task {settings.task}"
    if settings.task == "translation":
        title = f"Translation from {data.source_language} to {data.target_language}"
    scores = [_describe_scores(records[name], steps) for name in sorted(records)]
    files = [f"`{name}`" for name in sorted(assets)]
    card = TEMPLATE.format(
        title=format_cell(title),
        version=__version__,
        table=format_table(("", ""), rows.items()),
        scores="\n\n".join(scores) or "Not evaluated.",
        python=f"{imports}\n\n{call}",
        command=command,
        assets=f" Files of the task: {', '.join(files)}." if files else "",
    )
    return "\n".join(map(escape, card.split("\n")))


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


def _describe_vocabulary(tokenizer: Any) -> str:
    """Returns the number of tokens of a tokenizer, and whether both sides share them."""
    unit = "word pieces" if isinstance(tokenizer, WordPieces) else "tokens"
    source = source_tokenizer(tokenizer)
    if source is tokenizer:
        return f"{len(tokenizer):,} {unit}, joint for both sides"
    return f"{len(source):,} {unit} of sources, {len(tokenizer):,} of targets"


def _describe_model(model: Any) -> str:
    """Returns the name and the fields of a model config."""
    fields = dataclasses.asdict(model)
    if getattr(model, "max_length", None) is None:
        fields.pop("max_positions", None)
    return f"{fields.pop('name')}: {_describe_fields(fields)}"


def _describe_scores(record: EvaluationRecord, steps: Sequence[int]) -> str:
    """Returns the scores of an evaluation, with a note if the export has other parameters."""
    is_exported = record.checkpoints == list(steps) and not record.ensemble
    other = "" if is_exported else " (not the parameters exported here)"
    title = (
        f"Split {record.split}, {record.sentences:,} examples, "
        f"{_describe_steps(record.checkpoints, record.ensemble)}{other}{'; ' if record.decoding else ''}"
        f"{_describe_fields(record.decoding)}:"
    )
    rows = [(score.name, score.format_value(), score.signature) for score in record.scores]
    return f"{format_cell(title)}\n\n{format_table(('score', 'value', 'signature'), rows)}"


def _describe_steps(steps: Sequence[int], ensemble: bool = False) -> str:
    """Returns the checkpoints in words: a step, or the mean or ensemble of several steps."""
    shown = ", ".join(f"{step:,}" for step in steps)
    if len(steps) == 1:
        return f"step {shown}"
    return f"{'ensemble' if ensemble else 'mean'} of steps {shown}"


def _describe_fields(fields: Mapping[str, Any]) -> str:
    """Returns names and values of fields in one line. Fields that are not set are left out."""
    return ", ".join(f"{name} {value}" for name, value in fields.items() if value not in UNSET)
