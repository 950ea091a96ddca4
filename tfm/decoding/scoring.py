"""Teacher-forced scoring of given pairs: the log-probability and the attention that the model gives them."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import memory_estimate
from tfm.data.batches.rows import bucket_width
from tfm.data.batching import decode_rows, pad_sentences
from tfm.data.tokenizer import BOS_ID
from tfm.decoding.batch_splitting import run_batches
from tfm.decoding.generate import (
    DecodingConfig,
    Members,
    as_members,
    check_lengths,
    select_layer,
)
from tfm.decoding.parameters import Params
from tfm.decoding.protocol import read_cross_attention
from tfm.losses import chunked_log_probabilities

Ids = Sequence[Sequence[int]]


def score_pairs(
    model: nn.Module, params: Params | Members, sources: Ids, targets: Ids, config: DecodingConfig
) -> list[np.ndarray]:
    """Log-probability of each target token given its source, by one forward pass.

    Args:
      model: a `tfm.decoding.protocol.SequenceToSequence`.
      params: its parameters, or a tuple of several for an ensemble.
      sources, targets: lists of ids that end in EOS.
      config: a `DecodingConfig`; a batch has as many pairs, and a chunk of logits as many positions, as in
        its search.

    Returns:
      A float32 NumPy array [length] for each pair; its sum is the pair's log-probability.

    Raises:
      UserError: a side is longer than the model has positions for, or a pair does not fit into the memory
        even by itself.
    """
    scores: list[Any] = [None] * len(sources)
    members, chunk_size = as_members(params), config.batch_size * config.width

    def score_rows(inputs, labels):
        return _score_batch(model, members, inputs, labels, chunk_size)

    for indices, found in _run(model, members, sources, targets, config, score_rows):
        for row, index in enumerate(indices):
            scores[index] = found[row, : len(targets[index])]
    return scores


def attend_pairs(
    model: nn.Module, params: Params | Members, sources: Ids, targets: Ids, config: DecodingConfig
) -> list[np.ndarray]:
    """Attention of each target position to its source, of `config.attention_layer`, mean over its heads.

    Args:
      model, params, sources, targets, config: as in `score_pairs`.

    Returns:
      A float32 NumPy array [target length, source length] for each pair. Row i is the attention of the
      position that reads target token i - 1 (BOS at 0) and predicts token i.

    Raises:
      UserError: as `score_pairs`.
    """
    attention: list[Any] = [None] * len(sources)
    members = as_members(params)

    def attend_rows(inputs, labels):
        return _attend_batch(model, members, inputs, labels, config)

    for indices, found in _run(model, members, sources, targets, config, attend_rows):
        for row, index in enumerate(indices):
            attention[index] = found[row, : len(targets[index]), : len(sources[index])]
    return attention


def predict_pairs(
    model: nn.Module, params: Params | Members, sources: Ids, targets: Ids, config: DecodingConfig
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The most probable token at each target position, given its source and the target tokens before.

    Args:
      model, params, sources, targets, config: as in `score_pairs`.

    Returns:
      (ids int32 [length], probabilities float32 [length]) for each pair.

    Raises:
      UserError: as `score_pairs`.
    """
    predicted: list[Any] = [None] * len(sources)
    members = as_members(params)

    def predict_rows(inputs, labels):
        return _predict_batch(model, members, inputs, labels)

    for indices, found in _run(model, members, sources, targets, config, predict_rows):
        for row, index in enumerate(indices):
            predicted[index] = tuple(each[row, : len(targets[index])] for each in found)
    return predicted


def _run(
    model: nn.Module,
    members: Members,
    sources: Ids,
    targets: Ids,
    config: DecodingConfig,
    compute: Callable[[np.ndarray, np.ndarray], Any],
) -> Iterator[tuple[list[int], Any]]:
    """Yields (indices, what `compute` returns for inputs [B, M] and labels [B, L])."""
    check_lengths(model, map(len, [*sources, *targets]))
    weight_bytes = sum(x.nbytes for x in jax.tree.leaves(members))

    def compute_rows(rows):
        inputs, labels = (
            pad_sentences([side[i] for i in rows])[
                :, : model.config.max_length
            ]  # the columns beyond are padding
            for side in (sources, targets)
        )
        return compute(inputs, labels)

    def estimate(rows):
        of_model = memory_estimate.estimate_of(model)
        if of_model is None:
            return None
        source, target = (bucket_width(max(len(side[i]) for i in rows)) for side in (sources, targets))
        chunk = config.batch_size * config.width
        pass_bytes = of_model.scoring_bytes(rows=len(rows), source=source, target=target, chunk=chunk)
        return weight_bytes + len(members) * pass_bytes

    def describe(rows):
        source, target = (max(len(side[i]) for i in rows) for side in (sources, targets))
        return (
            f"Scoring or aligning one pair of {source:,} and {target:,} tokens",
            "leave it out, or shorten it",
        )

    lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    return run_batches(decode_rows(lengths, config.batch_size), compute_rows, estimate, describe)


def _decoder_input(labels):
    """Labels [B, L] shifted right, beginning with BOS."""
    return jnp.roll(labels, 1, axis=-1).at[:, 0].set(BOS_ID)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _score_batch(model, members, inputs, labels, chunk_size):
    """Log-probabilities [B, L] of labels [B, L] given inputs [B, M]; those of padding are meaningless."""

    def score(params):
        variables, targets = {"params": params}, _decoder_input(labels)
        features, table = model.apply(variables, inputs, targets, train=False, method="features")
        return chunked_log_probabilities(features, table, labels, chunk_size)

    scores = jnp.stack([score(params) for params in members])
    return jax.nn.logsumexp(scores, axis=0) - jnp.log(len(members))


@functools.partial(jax.jit, static_argnums=0)
def _predict_batch(model, members, inputs, labels):
    """Ids and probabilities [B, L] of the best tokens; those of padding are meaningless."""
    found = [
        model.apply({"params": params}, inputs, _decoder_input(labels), train=False, method="features")
        for params in members
    ]

    def predict_row(rows):  # a row at a time: the logits of a batch are large
        pairs = zip(rows, (table for _, table in found), strict=True)
        logits = (features @ table.astype(features.dtype).T for features, table in pairs)
        total = sum(jax.nn.softmax(each.astype(jnp.float32)) for each in logits)
        probabilities = jnp.asarray(total) / len(members)
        return probabilities.argmax(-1).astype(jnp.int32), probabilities.max(-1)

    return jax.lax.map(predict_row, [features for features, _ in found])


@functools.partial(jax.jit, static_argnums=(0, 4))
def _attend_batch(model, members, inputs, labels, config):
    """Attention [B, L, M], the mean over the members."""

    def attend(params):
        arguments = {"params": params}, inputs, _decoder_input(labels)
        apply = functools.partial(model.apply, *arguments, train=False, method="features")
        _, attention = read_cross_attention(model, apply)
        return select_layer(attention, config).mean(1)

    return sum(attend(params) for params in members) / len(members)
