"""A forward pass, scoring and decoding whose activations are read and edited.

Shape letters as in `tfm.layers`; N hypotheses of a row.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import search
from tfm.data.tokenizer import BOS_ID
from tfm.decoding.generate import DecodingConfig, search_batch
from tfm.decoding.parameters import search_parameters, with_dtype
from tfm.interpret.edited import EditedModel
from tfm.layers.activations import Edit, Interception, intercept

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
    """A forward pass.

    Args:
      model: a module of tfm, or of one's own out of its layers.
      params: its parameters.
      inputs: of the model's call: inputs and decoder inputs of a `Transformer`.
      read: names or globs of activations.
      edit: {name or glob: function of the activation and its `Point`, which returns what takes its place}.
      keywords: of the model's `apply`; `train` is False if not given.

    Returns:
      What the model returns, and {name: value} of the activations read, as they are after the edits.

    Raises:
      UserError: a glob matches nothing, or an edit changes shape or dtype.
    """
    return _run(model, params, inputs, Interception(read, edit), keywords)


def _run(model, params, inputs, interception, keywords):
    with intercept(interception):
        output = model.apply({"params": params}, *inputs, **({"train": False} | keywords))
    interception.check()
    return output, interception.reads


def list_points(
    model: nn.Module, *inputs: Any, **keywords: Any
) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
    """All activations of a forward pass, in their order, without computing it.

    Args:
      model, inputs, keywords: as in `run`; of the inputs only shapes and dtypes count.

    Returns:
      {name: (axes, `jax.ShapeDtypeStruct`)}.
    """
    interception = Interception("*")

    def trace(key, inputs):
        params = model.init(key, *inputs, **({"train": False} | keywords))["params"]
        return _run(model, params, inputs, interception, keywords)[1]

    shapes = jax.eval_shape(trace, jax.random.key(0), inputs)
    return {name: (point.axes, shapes[name]) for name, point in interception.points.items()}


def score(
    model: nn.Module,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    read: str | Iterable[str] = (),
    edit: Mapping[str, Edit] = NO_EDITS,
) -> tuple[jax.Array, Reads]:
    """Teacher-forced scoring: the log-probability of each target token.

    Args:
      model: a `tfm.decoding.protocol.SequenceToSequence`.
      params: its parameters.
      inputs, targets: int [B, M] and [B, L] that end in EOS, padded with 0.
      read, edit: as in `run`. Position i of the target predicts token i, and reads token i - 1 (BOS at 0).

    Returns:
      float32 [B, L], where targets are padding 0, and the activations read.
    """
    return _score(model, params, inputs, targets, Interception(read, edit))


def _score(model, params, inputs, targets, interception):
    shifted = jnp.roll(targets, 1, axis=-1).at[:, 0].set(BOS_ID)
    logits, reads = _run(model, params, (inputs, shifted), interception, {})
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
    """Greedy search or beam search of one batch over a cache of keys and values.

    Args:
      model, params, inputs: as in `score`.
      config: a `DecodingConfig`; what it samples has the seed's keys.
      n_best: as in `tfm.decoding.generate.decode`.
      read, edit: as in `run`. Activations are read in a forward pass over what was found.

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
    interception = Interception(read, edit, rows_of_each=width)
    targets = found.tokens.reshape(batch * width, -1)
    _, reads = _score(model, params, jnp.repeat(inputs, width, axis=0), targets, interception)
    return found, {name: x.reshape(batch, width, *x.shape[1:]) for name, x in reads.items()}
