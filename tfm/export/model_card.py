"""The model card of an exported run: its data, training, scores, and how to load it."""

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfm import __version__
from tfm.config import dotted_names, import_flags, module_names
from tfm.data.config import VOCABULARY_FILE
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

Nothing here is code that loading would execute: `model.safetensors` holds the parameters, `config.json` the
config of the run{vocabulary}.
"""


def write(
    settings: Any,
    steps: Sequence[int],
    parameters: int,
    tokenizer: Any,
    records: Mapping[str, EvaluationRecord],
) -> str:
    """Returns the model card as Markdown.

    Args:
      settings: config of the run.
      steps: steps of the checkpoints. The parameters are the mean of these checkpoints.
      parameters: number of parameters.
      tokenizer: tokenizer of a run that translates. None for other tasks.
      records: {name: record} from `read_records`.
    """
    data, translates = settings.data, tokenizer is not None
    rows = {
        "architecture": _architecture(settings.model),
        "parameters": f"{parameters:,}, float32",
        "data": getattr(data, "summary", _fields(vars(data))),
        "training": f"{_which(steps)} of {settings.training.steps:,}",
    }
    modules = sorted(module_names(dotted_names(dataclasses.asdict(settings))))
    imports, call = "from tfm.workdir import runs", 'run = runs.load("FOLDER")  # run.task and run.params'
    flags = " ".join(["--workdir=FOLDER", *import_flags(modules)])
    command = f"tfm evaluate {flags}"
    if translates:
        rows = {"source and target": f"{data.source_language}, {data.target_language}"} | rows
        rows["vocabulary"] = _describe_vocabulary(tokenizer)
        rows["decoding by default"] = _fields(dataclasses.asdict(settings.decoding))
        imports, call = "import tfm", 'tfm.Translator.load("FOLDER").translate(["..."])'
        command = f"tfm translate {flags} < source.txt > translation.txt"
    if modules:
        imports = f"{imports}\nfrom tfm.config import allow_modules"
        call = f"allow_modules({modules})\n{call}"
    title = f"A model of the task {settings.task}"
    if settings.task == "translation":
        title = f"Translation from {data.source_language} to {data.target_language}"
    card = TEMPLATE.format(
        title=format_cell(title),
        version=__version__,
        table=format_table(("", ""), rows.items()),
        scores="\n\n".join(_scores(records[name], steps) for name in sorted(records)) or "Not evaluated.",
        python=f"{imports}\n\n{call}",
        command=command,
        vocabulary=f", `{VOCABULARY_FILE}` the vocabulary" if translates else "",
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


def _architecture(model: Any) -> str:
    """Returns the name and the fields of a model config."""
    fields = dataclasses.asdict(model)
    if getattr(model, "max_length", None) is None:
        fields.pop("max_positions", None)
    return f"{fields.pop('name')}: {_fields(fields)}"


def _scores(record: EvaluationRecord, steps: Sequence[int]) -> str:
    """Returns the scores of an evaluation, with a note if the export has other parameters."""
    is_exported = record.checkpoints == list(steps) and not record.ensemble
    other = "" if is_exported else " (not the parameters exported here)"
    title = (
        f"Split {record.split}, {record.sentences:,} examples, "
        f"{_which(record.checkpoints, record.ensemble)}{other}{'; ' if record.decoding else ''}"
        f"{_fields(record.decoding)}:"
    )
    rows = [(score.name, score.format_value(), score.signature) for score in record.scores]
    return f"{format_cell(title)}\n\n{format_table(('score', 'value', 'signature'), rows)}"


def _which(steps: Sequence[int], ensemble: bool = False) -> str:
    """Returns the checkpoints in words: a step, or the mean or ensemble of several steps."""
    shown = ", ".join(f"{step:,}" for step in steps)
    if len(steps) == 1:
        return f"step {shown}"
    return f"{'ensemble' if ensemble else 'mean'} of steps {shown}"


def _fields(fields: Mapping[str, Any]) -> str:
    """Returns names and values of fields in one line. Fields that are None are left out."""
    return ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
