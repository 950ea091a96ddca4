"""Export of a run as the folder of a model of Hugging Face transformers."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm import __version__
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, Tokenizer
from tfm.errors import UserError
from tfm.huggingface.arrays import (
    EXCLUDED_LOGIT,
    Arrays,
    Entry,
    permute_features,
    sines_first,
    to_theirs,
)
from tfm.huggingface.family import THEIR_ACTIVATIONS, to_json
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import CONFIG_FILE, SINGLE_FILE
from tfm.huggingface.lookup import find_targets
from tfm.workdir.bundle import write_tensors

LOGITS_BIAS = "embedding/bias"
TABLE = "embedding/table"
# {field: only value} of the fields of a model that no family has. All other fields are free.
COMMON = {
    "key_features": None,
    "value_features": None,
    "key_value_heads": None,
    "scale_attention": True,
    "attention_window": None,
    "gated": False,
    "feed_forward_kernel": 1,
    "norm": "layer_norm",
    "deep_norm": False,
    "embedding_norm": False,
    "first_position": 0,
}


def find_problems(config: Any, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yields why transformers has no equivalent of a run.

    Args:
      config: the config of the run.
      tokenizer: the tokenizer of the run, or None for a model without tokens.
    """
    model = config.model
    targets = find_targets()
    target = targets.get(model.name)  # by name, because the config of another model may have the same class
    if target is None:
        yield f"model.name is {model.name!r}, expected {' or '.join(targets)}"
        return
    for name, expected in {**COMMON, **target.required}.items():
        value = getattr(model, name, expected)
        if value != expected:
            yield f"model.{name} is {value!r}, expected {expected!r}"
    if model.activation not in THEIR_ACTIVATIONS:
        yield f"model.activation is {model.activation!r}, expected {' or '.join(THEIR_ACTIVATIONS)}"
    yield from target.find_problems(config, tokenizer)


def write_model(run: Any, params: Arrays, workdir: str, folder: str) -> None:
    """Writes config.json, model.safetensors and the tokenizer into a folder that exists.

    Args:
      run: the run.
      params: {name in an export: array} of all parameters.
      workdir: folder of the run with its assets.
      folder: the folder.

    Raises:
      UserError: if transformers has no equivalent of the model. The message has all problems.
    """
    model = run.task.config.model
    tokenizer = getattr(run.task, "tokenizer", None)
    if problems := list(find_problems(run.task.config, tokenizer)):
        raise UserError(
            f"transformers has no such model: {'; '.join(problems)}. Train with the expected values, or use "
            "--format=tfm."
        )
    target = find_targets()[model.name]
    values = {
        "model_type": target.model_type,
        "architectures": [target.family.architecture],
        "dtype": "float32",
        "tfm_version": __version__,
        **target.config(run),
    }
    entries = list(target.family.entries(model, Fields(values, folder)))
    arrays = to_arrays(model, params, entries, is_sines_first=target.family.sines_first)
    for name, content in {CONFIG_FILE: to_json(values), **target.files(run, workdir)}.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    write_tensors(os.path.join(folder, SINGLE_FILE), arrays, {"format": "pt"})


def to_arrays(
    model: Any, params: Arrays, entries: Sequence[Entry], *, is_sines_first: bool
) -> dict[str, np.ndarray]:
    """Converts the parameters of a model of tfm to the arrays of its equivalent in transformers.

    Args:
      model: the config of the model of tfm.
      params: {name in an export: array} of its parameters.
      entries: the arrays of transformers and the parameters with the same content.
      is_sines_first: see `Family.sines_first`.

    Returns:
      {name in transformers: array}. Biases that only transformers has are zeros.

    Raises:
      UserError: if the bias of our logits is not 0 and the model of transformers has none.
    """
    ours = _fit_logits_bias({name: np.array(x, np.float32) for name, x in params.items()}, entries)
    ours |= {entry.ours: _make_zero_bias(entry.ours, ours) for entry in entries if entry.ours not in ours}
    if is_sines_first:
        order = sines_first(model.d_model)
        ours = {name: permute_features(name, x, order) for name, x in ours.items()}
    parts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for entry in entries:
        parts[entry.theirs][entry.part or 0] = to_theirs(entry, ours[entry.ours])
    return {name: _join_parts(numbered_parts) for name, numbered_parts in parts.items()}


def _fit_logits_bias(params: dict[str, np.ndarray], entries: Sequence[Entry]) -> dict[str, np.ndarray]:
    """Returns the parameters with what the model of transformers has in place of our bias of the logits.

    If its bias is a row of tokens, padding and BOS get the bias `EXCLUDED_LOGIT`. If it has no bias, padding
    gets the embedding of EOS if tfm excludes padding from outputs. With its embedding of zeros, its logit
    would be 0, which can be the largest.

    Raises:
      UserError: see `to_arrays`.
    """
    layouts = {entry.layout for entry in entries if entry.ours == LOGITS_BIAS}
    if "token_row" in layouts:
        bias = params.get(LOGITS_BIAS, np.zeros(len(params[TABLE]), np.float32)).copy()
        bias[[PAD_ID, BOS_ID]] = EXCLUDED_LOGIT
        return params | {LOGITS_BIAS: bias}
    if layouts or LOGITS_BIAS not in params:
        return params
    is_excluded = params[LOGITS_BIAS] == EXCLUDED_LOGIT
    if params[LOGITS_BIAS][~is_excluded].any():
        raise UserError(
            f"transformers has no such model: the bias of the logits, {LOGITS_BIAS}, is not 0. Train with "
            f"--config.training.freeze={LOGITS_BIAS}, or use --format=tfm."
        )
    if not is_excluded[PAD_ID]:
        return params
    table = params[TABLE].copy()
    table[PAD_ID] = table[EOS_ID]
    return params | {TABLE: table}


def _make_zero_bias(name: str, params: Arrays) -> np.ndarray:
    """Returns the zeros that replace the bias of a linear layer that has a kernel but no bias."""
    kernel = params[name.removesuffix("bias") + "kernel"]
    return np.zeros(kernel.shape[-1:] if "/output/" in name else kernel.shape[1:], np.float32)


def _join_parts(parts: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns the array of {index: part}, whose parts are next to each other on the last axis."""
    return np.ascontiguousarray(np.concatenate([parts[i] for i in sorted(parts)], axis=-1))
