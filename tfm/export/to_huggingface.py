"""Export of a run as the folder of a model of Hugging Face transformers."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
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

    If the equivalent has a bias of the logits, the biases of padding and BOS become `EXCLUDED_LOGIT`.
    Otherwise, padding gets the embedding of EOS if tfm excludes padding from outputs.

    Args:
      model: the config of the model of tfm.
      params: {name in an export: array} of its parameters.
      entries: the arrays of transformers and the parameters with the same content.
      is_sines_first: see `Family.sines_first`.

    Returns:
      {name in transformers: array}. Parameters that only transformers has, such as biases, are zeros.

    Raises:
      UserError: if the bias of our logits is not 0 and the model of transformers has none.
    """
    ours = {name: np.array(x, np.float32) for name, x in params.items()}
    if "embedding/bias" in ours and not any(entry.ours == "embedding/bias" for entry in entries):
        excluded = ours["embedding/bias"] == EXCLUDED_LOGIT
        if ours["embedding/bias"][~excluded].any():
            raise UserError(
                "transformers has no such model: the bias of the logits, embedding/bias, is not 0. Train "
                "with --config.training.freeze=embedding/bias, or use --format=tfm."
            )
        if excluded[PAD_ID]:  # its row of zeros would have the logit 0, and 0 can be the largest
            ours["embedding/table"][PAD_ID] = ours["embedding/table"][EOS_ID]
    for entry in entries:
        if entry.ours not in ours:
            ours[entry.ours] = _zeros(entry.ours, ours)
    if any(entry.layout == "token_row" for entry in entries):
        ours["embedding/bias"][[PAD_ID, BOS_ID]] = EXCLUDED_LOGIT
    if is_sines_first:
        order = sines_first(model.d_model)
        ours = {name: permute_features(name, x, order) for name, x in ours.items()}
    parts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for entry in entries:
        x = ours[entry.ours]
        if entry.layout == "token_row":
            x = x.reshape(1, -1)
        elif entry.layout != "tokens":
            x = to_theirs(entry, x, getattr(model, "patch_size", 0))
        parts[entry.theirs][entry.part or 0] = x
    joined = {name: np.concatenate([x for _, x in sorted(of.items())], -1) for name, of in parts.items()}
    return {name: np.ascontiguousarray(x) for name, x in joined.items()}


def _zeros(name: str, params: Arrays) -> np.ndarray:
    """Returns the zeros that replace a bias that the model does not have."""
    if name == "embedding/bias":
        return np.zeros(len(params["embedding/table"]), np.float32)
    kernel = params[name.removesuffix("bias") + "kernel"]
    return np.zeros(kernel.shape[-1:] if "/output/" in name else kernel.shape[1:], np.float32)
