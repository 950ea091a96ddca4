"""What a model family of transformers is: its import as `Family`, and its export as `Target`.

`tfm.huggingface.families` and `tfm.huggingface.targets` have the families of the core. A system that has a
family has it in its module `huggingface`.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.huggingface.arrays import Entry
from tfm.huggingface.fields import ACTIVATIONS, Fields
from tfm.huggingface.vocabulary import Languages, Vocabulary

NOTHING = re.compile(r"(?!)")  # matches no name
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
PIPELINE = 'import transformers\n\nprint(transformers.pipeline("{}", "FOLDER")("..."))'


def _has_no_labels(model: Any) -> bool:
    del model
    return False


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family that tfm imports.

    Attributes:
      architecture: name of the class in transformers.
      prefix: beginning of the names of most arrays. It is missing in files of a model without its head.
      model: maps the fields of config.json to the config of a model.
      entries: maps the config of a model and the fields to the entries of its parameters.
      make_config: maps the config of a model and its tokenizer to the config of an export. Its data name no
        files, because the export has a tokenizer.
      read_vocabulary: reads the tokenizer of a folder. None for a model without tokens.
      translates: whether its models translate, so that languages and a source prefix have an effect.
      has_labels: whether a model with this config predicts classes, whose names are in config.json.
      finish: changes parameters, in place, as other files of the folder require. Its arguments are the
        folder, the config of the model and {name in an export: array}.
      sines_first: whether the family has the sinusoids of the paper in the order of `arrays.sines_first`.
      copies: {array that is a copy in files of transformers: parameter of tfm with the same content}.
      unused: names of arrays that no model reads.
    """

    architecture: str
    prefix: str
    model: Callable[[Fields], Any]
    entries: Callable[[Any, Fields], Iterator[Entry]]
    make_config: Callable[[Any, Vocabulary | None], Any]
    read_vocabulary: Callable[[str, Fields, Languages], Vocabulary] | None = None
    translates: bool = False
    has_labels: Callable[[Any], bool] = _has_no_labels
    finish: Callable[[str, Any, dict[str, np.ndarray]], None] | None = None
    sines_first: bool = False
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: re.Pattern = NOTHING


@dataclasses.dataclass(frozen=True)
class Target:
    """A family that a model of tfm can become.

    Attributes:
      model_type: name of the family in config.json.
      family: the family. Its entries map the arrays, as for the import.
      required: {field: only value} of the model, in addition to the fields that no family has.
      config: returns the fields of config.json for a run.
      files: returns {file name: content} of the tokenizer or the preprocessor for a run and its folder.
      example: returns the code that loads a model with this config.
      find_problems: yields what else a run has that the family lacks, for its config and its tokenizer.
    """

    model_type: str
    family: Family
    required: Mapping[str, Any]
    config: Callable[[Any], dict[str, Any]]
    files: Callable[[Any, str], dict[str, bytes]]
    example: Callable[[Any], str]
    find_problems: Callable[[Any, Any], Iterator[str]]


def to_json(values: Any) -> bytes:
    """Returns the content of a JSON file of transformers."""
    return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")


def special_ids() -> dict[str, int]:
    """Returns the ids of padding, BOS and EOS, as config.json and generation_config.json name them."""
    return {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}


def encoder_fields(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of config.json that BERT and ViT share.

    Args:
      model: config of the model.
      names: names of the classes, if there are any.
    """
    labels = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return {
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.encoder_layers,
        "num_attention_heads": model.heads,
        "hidden_act": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_eps": model.layer_norm_epsilon,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        **(labels if names else {}),
    }


def linear_entries(ours: str, theirs: str, layout: str = "linear", **more: Any) -> Iterator[Entry]:
    """Yields the entries of the kernel and the bias of a linear layer. `more` are other fields of `Entry`."""
    yield Entry(f"{ours}/kernel", f"{theirs}.weight", layout, **more)
    yield Entry(f"{ours}/bias", f"{theirs}.bias", **more)


def norm_entries(ours: str, theirs: str) -> Iterator[Entry]:
    """Yields the entries of the scale and the bias of a layer norm."""
    yield Entry(f"{ours}/scale", f"{theirs}.weight")
    yield Entry(f"{ours}/bias", f"{theirs}.bias")


def encoder_layer_entries(i: int, theirs: str, queries: str, norms: tuple[str, str]) -> Iterator[Entry]:
    """Yields the entries of layer i of BERT or ViT. They differ in the names of queries and norms."""
    ours = f"encoder/layers_{i}"
    for name in ("query", "key", "value"):
        yield from linear_entries(f"{ours}/self_attention/{name}", f"{theirs}.attention.{queries}.{name}")
    yield from linear_entries(f"{ours}/self_attention/output", f"{theirs}.attention.output.dense")
    yield from linear_entries(f"{ours}/feed_forward/hidden", f"{theirs}.intermediate.dense")
    yield from linear_entries(f"{ours}/feed_forward/output", f"{theirs}.output.dense")
    for residual, norm in zip(("self_attention_residual", "feed_forward_residual"), norms, strict=True):
        yield from norm_entries(f"{ours}/{residual}/norm", f"{theirs}.{norm}")
