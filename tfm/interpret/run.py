"""Functions that read and edit activations in forward passes, in scoring and in decoding.

Shape letters as in `tfm.layers`. N is the number of hypotheses of a row.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import search
from tfm.decoding.config import DecodingConfig
from tfm.decoding.hypotheses import make_keys
from tfm.decoding.protocol import search_parameters, shift_right, with_dtype
from tfm.decoding.translate import search_batch
from tfm.interpret.edited_model import EditedModel
from tfm.layers.observe import Edit, Recorder, activate

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
    """Runs a forward pass, and reads and edits activations.

    Args:
      model: A model of tfm, or another module that consists of tfm's layers.
      params: Parameters of the model, or all of its variables, such as {"params": ..., "batch_stats": ...}.
      *inputs: Arguments of the call, such as inputs and decoder inputs of a `Transformer`.
      read: Names or globs of the activations to read.
      edit: {name or glob: function}. The function maps an activation and its `Point` to a replacement with
        the same shape and dtype.
      **keywords: Keywords of the model's `apply`. `train` is False by default.

    Returns:
      The result of the model, and a dict with the activations that were read, after the edits.

    Raises:
      UserError: If a glob matches nothing, or if an edit changes the shape or the dtype.
    """
    return _run(model, params, inputs, Recorder(read, edit), keywords)


def _run(model, params, inputs, recorder, keywords):
    """Applies the model with a recorder. Returns the output and the activations that were read."""
    variables = params if "params" in params else {"params": params}
    with activate(recorder):
        output = model.apply(variables, *inputs, **({"train": False} | keywords))
    recorder.check()
    return output, recorder.reads


def list_points(
    model: nn.Module, *inputs: Any, **keywords: Any
) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
    """Lists all activations of a forward pass in the order of computation, without computing them.

    Args:
      model, inputs, keywords: See `run`. Only the shapes and dtypes of the inputs matter.

    Returns:
      A dict from the name to (axes, `jax.ShapeDtypeStruct`). `Point` describes the letters of the axes.
    """
    recorder = Recorder("*")
    # The parameters are those of the pass without dropout, which needs no `rngs`.
    init_keywords = {name: value for name, value in keywords.items() if name != "rngs"} | {"train": False}

    def trace(key, inputs):
        variables = model.init(key, *inputs, **init_keywords)
        return _run(model, variables, inputs, recorder, keywords)[1]

    shapes = jax.eval_shape(trace, jax.random.key(0), inputs)
    return {name: (axes, shapes[name]) for name, axes in recorder.axes.items()}


def score(
    model: nn.Module,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    read: str | Iterable[str] = (),
    edit: Mapping[str, Edit] = NO_EDITS,
) -> tuple[jax.Array, Reads]:
    """Computes the log-probability of each target token, given the source and the previous target tokens.

    Args:
      model: A `tfm.decoding.protocol.SequenceToSequence`.
      params: Parameters of the model.
      inputs, targets: int [B, M] and [B, L]. All rows end in EOS and are padded with 0.
      read, edit: See `run`. Position i of the decoder reads target token i - 1 (BOS for i = 0) and predicts
        target token i.

    Returns:
      Log-probabilities float32 [B, L], 0 at padding, and the activations that were read.

    Raises:
      UserError: See `run`.
    """
    return _score(model, params, inputs, targets, Recorder(read, edit))


def _score(model, params, inputs, targets, recorder):
    """Computes `score` with a recorder."""
    logits, reads = _run(model, params, (inputs, shift_right(targets)), recorder, {})
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    scores = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    return jnp.where(targets > 0, scores, 0.0), reads


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
    """Translates one batch by a search whose steps use cached keys and values.

    Args:
      model, params, inputs: See `score`.
      config: A `DecodingConfig`. The random key of the samples of sentence i depends on its seed and i.
      n_best: See `tfm.decoding.translate.translate_ids`.
      read, edit: See `run`. The edits act during the search. Activations are read in a forward pass over the
        hypotheses that the search has found, with the same edits.

    Returns:
      The `tfm.search.Hypotheses`, and a dict with the activations [B, N, ...] of each hypothesis.

    Raises:
      UserError: If a glob matches nothing, if an edit changes the shape or the dtype, or if a beam search has
        a coverage penalty.
      ValueError: If `n_best` is not from 1 to the beam size of a beam search, or if the model has too few
        positions for the inputs.
    """
    keys = make_keys(config.seed, jnp.arange(len(inputs))[:, None]) if config.samples else None
    edited = EditedModel(model, edit)
    hypotheses = search_batch(
        edited, (search_parameters(params, config.dtype),), inputs, config, n_best, None, keys
    )
    if not read:
        return hypotheses, {}
    model = with_dtype(model, config.dtype)
    batch, width, _ = hypotheses.tokens.shape
    recorder = Recorder(read, edit, rows_of_each=width)
    targets = hypotheses.tokens.reshape(batch * width, -1)
    _, reads = _score(model, params, jnp.repeat(inputs, width, axis=0), targets, recorder)
    return hypotheses, {name: x.reshape(batch, width, *x.shape[1:]) for name, x in reads.items()}
