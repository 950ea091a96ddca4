"""Scores and attention of a model for given sentence pairs.

The decoder reads the given target tokens (teacher forcing), so one forward pass computes all positions.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding.batches import find_shapes, map_rows, pad_ids
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import (
    Ensemble,
    Params,
    as_ensemble,
    read_cross_attention,
    shift_right,
)
from tfm.decoding.translate import check_lengths, select_layer
from tfm.devices.memory import count_elements
from tfm.devices.mesh import place_rows
from tfm.losses import chunked_log_probabilities

Ids = Sequence[Sequence[int]]


def score_pairs(
    model: nn.Module, params: Params | Ensemble, sources: Ids, targets: Ids, config: DecodingConfig
) -> list[np.ndarray]:
    """Computes the log-probability of each target token given its source, in one forward pass.

    Args:
      model: A `tfm.decoding.protocol.SequenceToSequence`.
      params: The parameters of the model, or a tuple with the parameters of each member of an ensemble. An
        ensemble averages probabilities.
      sources, targets: Lists of ids that end in EOS.
      config: A `DecodingConfig`. A batch has at most `batch_size` pairs. The logits are computed for
        `batch_size * width` target positions at a time, as in a search, to limit the memory. Its other
        fields, such as `dtype`, have no effect.

    Returns:
      A float32 NumPy array [target length] for each pair, with the log-probability of its EOS as the last
      element. Its sum is the log-probability of the target. Damaged parameters give NaN without an error.

    Raises:
      UserError: If a source or target has more tokens than the model has positions, or if a single pair does
        not fit into the memory.
      ValueError: If the numbers of sources and targets differ.
    """
    chunk_size = config.batch_size * config.width
    rows = _map_pairs(_score_batch, model, params, sources, targets, config, chunk_size)
    return [row[: len(target)] for row, target in zip(rows, targets, strict=True)]


def attend_pairs(
    model: nn.Module, params: Params | Ensemble, sources: Ids, targets: Ids, config: DecodingConfig
) -> list[np.ndarray]:
    """Computes the attention to the source in the layer `config.attention_layer`, averaged over its heads.

    Args:
      model, params, sources, targets: See `score_pairs`.
      config: A `DecodingConfig`. Only `attention_layer` and `batch_size` have an effect.

    Returns:
      A float32 NumPy array [target length, source length] for each pair. Row i is the attention at the
      position that reads target token i - 1 (BOS for i = 0) and predicts target token i. An ensemble averages
      the attention of its members.

    Raises:
      UserError, ValueError: See `score_pairs`. UserError also if the model has no attention to the source.
    """
    rows = _map_pairs(_attend_batch, model, params, sources, targets, config, config)
    pairs = zip(rows, targets, sources, strict=True)
    return [row[: len(target), : len(source)] for row, target, source in pairs]


def _map_pairs(
    program: Callable[..., Any],
    model: nn.Module,
    params: Params | Ensemble,
    sources: Ids,
    targets: Ids,
    config: DecodingConfig,
    *options: Any,
) -> list[Any]:
    """Runs a program on all pairs, in batches, and returns the result of each pair.

    The program is called as `program(model, members, inputs [B, M], labels [B, L], *options)`.
    """
    check_lengths(model, map(len, [*sources, *targets]))
    members, max_length = as_ensemble(params), model.config.max_length

    def make_arguments(rows, widths):
        pairs = zip((sources, targets), widths, strict=True)
        # The columns beyond `max_length` contain only padding.
        sides = [pad_ids([side[i] for i in rows], width=width)[:, :max_length] for side, width in pairs]
        return model, members, *place_rows(sides, like=members), *options

    def describe(row):
        lengths = f"{len(sources[row]):,} and {len(targets[row]):,} tokens"
        return f"Scoring or aligning one pair of {lengths}", "Leave the pair out or shorten it"

    return map_rows(
        program,
        make_arguments,
        [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)],
        batch_size=config.batch_size,
        describe=describe,
        shapes=find_shapes(count_elements(members), program, model, *options),
        like=members,
    )


@functools.partial(jax.jit, static_argnums=(0, 4))
def _score_batch(model, members, inputs, labels, chunk_size):
    """Returns the log-probabilities [B, L] of labels given inputs [B, M]. Values at padding are meaningless.

    The logits are computed for `chunk_size` positions at a time.
    """

    def score(params):
        variables, targets = {"params": params}, shift_right(labels)
        features, table = model.apply(variables, inputs, targets, train=False, method="features")
        return chunked_log_probabilities(features, table, labels, chunk_size)

    return jax.nn.logmeanexp(jnp.stack([score(params) for params in members]), axis=0)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _attend_batch(model, members, inputs, labels, config):
    """Returns the attention to the source, [B, L, M], averaged over heads and members of the ensemble."""

    def attend(params):
        arguments = {"params": params}, inputs, shift_right(labels)
        apply = functools.partial(model.apply, *arguments, train=False, method="features")
        _, attention = read_cross_attention(model, apply)
        return select_layer(attention, config).mean(1)

    return sum(attend(params) for params in members) / len(members)
