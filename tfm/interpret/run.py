"""Forward passes, scoring and decoding whose activations are read and edited.

Shape letters as in `tfm.layers`; N hypotheses of a row.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import search
from tfm.data.tokenizer import BOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.parameters import search_parameters, with_dtype
from tfm.decoding.translate import search_batch
from tfm.interpret.edited_model import EditedModel
from tfm.interpret.recorder import Edit, Recorder
from tfm.layers.observe import activate

Params = Any  # a tree of parameters
Reads = dict[str, jax.Array]
NO_EDITS: Mapping[str, Edit] = {}


def run(
    model: nn.Module,
    params: Params,
    *inputs: Any,
    read: str | Iterable[str] = (),
    edit: Mapping[str, Edit] = NO_EDITS,
    **keywords: Any,
) -> tuple[Any, Reads]:
    """Runs a forward pass.

    Args:
      model: A model of tfm, or another module that is made of its layers.
      params: Parameters of the model.
      inputs: Arguments of the call, such as inputs and decoder inputs of a `Transformer`.
      read: Names or globs of activations.
      edit: {name or glob: function}. The function maps an activation and its `Point` to a replacement.
      keywords: Keywords of the model's `apply`. `train` is False by default.

    Returns:
      The result of the model, and {name: value after the edits} of the activations that were read.

    Raises:
      UserError: A glob matches nothing, or an edit changes the shape or the dtype.
    """
    return _run(model, params, inputs, Recorder(read, edit), keywords)


def _run(model, params, inputs, recorder, keywords):
    with activate(recorder):
        output = model.apply({"params": params}, *inputs, **({"train": False} | keywords))
    recorder.check()
    return output, recorder.reads


def list_points(
    model: nn.Module, *inputs: Any, **keywords: Any
) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
    """Lists all activations of a forward pass in their order, without computing them.

    Args:
      model, inputs, keywords: As in `run`. Only the shapes and dtypes of the inputs matter.

    Returns:
      {name: (axes, `jax.ShapeDtypeStruct`)}.
    """
    recorder = Recorder("*")

    def trace(key, inputs):
        params = model.init(key, *inputs, **({"train": False} | keywords))["params"]
        return _run(model, params, inputs, recorder, keywords)[1]

    shapes = jax.eval_shape(trace, jax.random.key(0), inputs)
    return {name: (point.axes, shapes[name]) for name, point in recorder.points.items()}


def score(
    model: nn.Module,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    read: str | Iterable[str] = (),
    edit: Mapping[str, Edit] = NO_EDITS,
) -> tuple[jax.Array, Reads]:
    """Computes the log-probability of each target token given the tokens before it.

    Args:
      model: A `tfm.decoding.protocol.SequenceToSequence`.
      params: Parameters of the model.
      inputs, targets: int [B, M] and [B, L] that end in EOS, padded with 0.
      read, edit: As in `run`. Position i of the target predicts token i and reads token i - 1 (BOS at 0).

    Returns:
      float32 [B, L] with 0 at padding, and the activations that were read.
    """
    return _score(model, params, inputs, targets, Recorder(read, edit))


def _score(model, params, inputs, targets, recorder):
    shifted = jnp.roll(targets, 1, axis=-1).at[:, 0].set(BOS_ID)
    logits, reads = _run(model, params, (inputs, shifted), recorder, {})
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    chosen = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    return jnp.where(targets > 0, chosen, 0.0), reads


def decode(
    model: nn.Module,
    params: Params,
    inputs: jax.Array,
    config: DecodingConfig,
    *,
    n_best: int = 1,
    read: str | Iterable[str] = (),
    edit: Mapping[str, Edit] = NO_EDITS,
) -> tuple[search.Hypotheses, Reads]:
    """Searches the translations of one batch with a cache of keys and values.

    Args:
      model, params, inputs: As in `score`.
      config: A `DecodingConfig`. Samples use random keys that are split from its seed.
      n_best: As in `tfm.decoding.translate.translate_ids`.
      read, edit: As in `run`. Activations are read in a forward pass over the hypotheses.

    Returns:
      `tfm.search.Hypotheses` and {name: value [B, N, ...]}, row (b, n) of hypothesis n of row b.
    """
    keys = jax.random.split(jax.random.key(config.seed), len(inputs)) if config.samples else None
    edited = EditedModel(model, edit)
    found = search_batch(
        edited, (search_parameters(params, config.dtype),), inputs, config, n_best, None, keys
    )
    if not read:
        return found, {}
    model = with_dtype(model, config.dtype)
    batch, width, _ = found.tokens.shape
    recorder = Recorder(read, edit, rows_of_each=width)
    targets = found.tokens.reshape(batch * width, -1)
    _, reads = _score(model, params, jnp.repeat(inputs, width, axis=0), targets, recorder)
    return found, {name: x.reshape(batch, width, *x.shape[1:]) for name, x in reads.items()}
