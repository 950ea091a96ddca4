"""Forced passes over given pairs: the log-probability and the attention that the model gives them."""

import functools

import jax
import jax.numpy as jnp

from tfm import memory_estimate
from tfm.data.batching import decode_rows, padded
from tfm.data.packing import bucket_width
from tfm.data.tokenizer import BOS_ID
from tfm.decoding.batch_splitting import run_batches
from tfm.decoding.generate import as_members, check_lengths, layer_of
from tfm.layers.collected_attention import attention_of
from tfm.losses import projected_log_probabilities


def score_pairs(model, params, sources, targets, config):
    """Log-probability of each target token given its source, by one forward pass.

    Args:
      model: a Linen module, called as `tfm.models.Transformer` is.
      params: its parameters, or a tuple of several for an ensemble.
      sources, targets: lists of ids that end in EOS.
      config: a `DecodingConfig`; as many pairs stand side by side as in its search, and as many logits are
        held at once as there.

    Returns:
      A float32 NumPy array [length] for each pair; its sum is the pair's log-probability.

    Raises:
      UserError: a side is longer than the model has positions for, or a pair does not fit into the memory
        even by itself.
    """
    scores = [None] * len(sources)
    members, chunk = as_members(params), config.batch_size * config.width

    def score_rows(inputs, labels):
        return _score_batch(model, members, inputs, labels, chunk)

    for indices, found in _run(model, members, sources, targets, config, score_rows):
        for row, index in enumerate(indices):
            scores[index] = found[row, : len(targets[index])]
    return scores


def attend_pairs(model, params, sources, targets, config):
    """Attention of each target place over its source, of the layer that `config` names, mean over its heads.

    Args:
      model, params, sources, targets, config: as of `score_pairs`.

    Returns:
      A float32 NumPy array [target length, source length] for each pair. Row i is the attention of the place
      that reads target token i - 1 (BOS at 0) and predicts token i.

    Raises:
      UserError: as `score_pairs`.
    """
    attention = [None] * len(sources)
    members = as_members(params)

    def attend_rows(inputs, labels):
        return _attend_batch(model, members, inputs, labels, config)

    for indices, found in _run(model, members, sources, targets, config, attend_rows):
        for row, index in enumerate(indices):
            attention[index] = found[row, : len(targets[index]), : len(sources[index])]
    return attention


def _run(model, members, sources, targets, config, compute):
    """Yields (indices, what `compute` gives for inputs [B, M] and labels [B, L])."""
    check_lengths(model, map(len, [*sources, *targets]))
    longest = model.config.longest
    weights = sum(x.nbytes for x in jax.tree.leaves(members))

    def compute_rows(rows):
        inputs, labels = (padded([side[i] for i in rows])[:, :longest] for side in (sources, targets))
        return compute(inputs, labels)  # what lay beyond was padding

    def needed(rows):
        source, target = (bucket_width(max(len(side[i]) for i in rows)) for side in (sources, targets))
        chunk = config.batch_size * config.width
        beside = memory_estimate.forced_bytes(
            model.config, rows=len(rows), source=source, target=target, chunk=chunk
        )
        return None if beside is None else weights + len(members) * beside

    def describe(rows):
        source, target = (max(len(side[i]) for i in rows) for side in (sources, targets))
        return (
            f"Scoring or aligning one pair of {source:,} and {target:,} tokens",
            "leave it out, or shorten it",
        )

    lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    return run_batches(decode_rows(lengths, config.batch_size), compute_rows, needed, describe)


def _decoder_input(labels):
    return jnp.roll(labels, 1, axis=-1).at[:, 0].set(BOS_ID)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _score_batch(model, members, inputs, labels, chunk):
    """Log-probabilities [B, L] of labels [B, L] given inputs [B, M]; those of padding mean nothing."""

    def score(params):
        variables, targets = {"params": params}, _decoder_input(labels)
        features, table = model.apply(variables, inputs, targets, train=False, method="features")
        return projected_log_probabilities(features, table, labels, chunk)

    each = jnp.stack([score(params) for params in members])
    return jax.nn.logsumexp(each, axis=0) - jnp.log(len(members))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _attend_batch(model, members, inputs, labels, config):
    """Attention [B, L, M], the mean of the members'."""

    def attend(params):
        variables, targets = {"params": params}, _decoder_input(labels)
        _, collected = model.apply(
            variables, inputs, targets, train=False, mutable=["attention"], method="features"
        )
        return layer_of(attention_of(collected, "decoder", "cross_attention"), config).mean(1)

    return sum(attend(params) for params in members) / len(members)
