"""From source ids to target ids: jitted search of a sequence-to-sequence model, batch by batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from tfm import search
from tfm.data.batches import decode_batches
from tfm.data.vocabulary import BOS_ID, EOS_ID, PAD_ID
from tfm.errors import UserError


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched; the defaults are the paper's (section 6.1).

    Attributes:
      beam_size: hypotheses kept; 1 is greedy search.
      length_penalty: alpha of Wu et al. 2016, equation 14.
      extra_length: the output has at most so many tokens more than the input.
      batch_size: sentences searched side by side.
      max_input: tokens of the longest input, EOS counted; what is longer is cut, with a warning.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    extra_length: int = 50
    batch_size: int = 64
    max_input: int = 256

    def __post_init__(self):
        for name in ("beam_size", "batch_size", "max_input"):
            if getattr(self, name) < 1:
                raise UserError(f"decoding.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("length_penalty", "extra_length"):
            if getattr(self, name) < 0:
                raise UserError(f"decoding.{name} must not be negative, got {getattr(self, name)}.")


def decode(model, params, sentences, config):
    """The best hypothesis of each sentence, in the order of `sentences`.

    Args:
      model: a Linen module with `init_cache` and `decode_step`, such as `tfm.models.Transformer`.
      params: its parameters.
      sentences: lists of source ids that end in EOS.
      config: a `DecodingConfig`.

    Returns:
      [(target ids up to and with EOS, score)], score the log-probability over the length penalty.
    """
    results = [None] * len(sentences)
    pending = []  # one batch computes on the device while the host reads the one before
    for indices, inputs in decode_batches(sentences, batch_size=config.batch_size):
        hypotheses = search_batch(
            model, params, inputs, config.beam_size, config.length_penalty, config.extra_length
        )
        pending.append((indices, hypotheses))
        if len(pending) > 1:
            _collect(*pending.pop(0), results)
    for indices, hypotheses in pending:
        _collect(indices, hypotheses, results)
    return results


def score_pairs(model, params, sources, targets, batch_size=64):
    """Log-probability of each target given its source, by one forward pass.

    Args:
      model, params: as in `decode`.
      sources, targets: lists of ids that end in EOS.

    Returns:
      float32 NumPy array [pairs].
    """
    scores = np.zeros(len(sources), np.float32)
    joined = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
    for indices, places in decode_batches(joined, batch_size=batch_size):
        rows = [*indices, *[indices[-1]] * (len(places) - len(indices))]
        inputs, labels = (np.zeros(places.shape, np.int32) for _ in range(2))
        for row, index in enumerate(rows):
            inputs[row, : len(sources[index])] = sources[index]
            labels[row, : len(targets[index])] = targets[index]
        scores[indices] = np.asarray(_score_batch(model, params, inputs, labels))[: len(indices)]
    return scores


@functools.partial(jax.jit, static_argnums=0)
def _score_batch(model, params, inputs, labels):
    """Summed log-probability [B] of labels [B, L] given inputs [B, M]; 0 is padding."""
    shifted = jnp.roll(labels, 1, axis=-1).at[:, 0].set(BOS_ID)
    logits = model.apply({"params": params}, inputs, shifted, train=False)
    return (search.token_scores(logits, labels) * (labels != PAD_ID)).sum(-1)


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def search_batch(model, params, inputs, beam_size, length_penalty, extra_length):
    """`tfm.search.Hypotheses` for inputs [B, M]; compiled once a shape.

    A row's output is limited to its own input's length plus `extra_length`, whatever it is padded to.
    """
    max_length = inputs.shape[1] + extra_length
    limits = (inputs != PAD_ID).sum(-1).astype(jnp.int32) + extra_length
    cache = model.apply(
        {"params": params}, inputs, width=beam_size, max_length=max_length, method="init_cache"
    )

    def step(tokens, cache, position):
        logits, cache = model.apply({"params": params}, tokens, cache, position, method="decode_step")
        # Padding and BOS are no words; training never shows them as targets.
        never = jnp.zeros(logits.shape[-1], bool).at[jnp.array([PAD_ID, BOS_ID])].set(True)
        return jnp.where(never, -jnp.inf, logits.astype(jnp.float32)), cache

    common = {"max_length": max_length, "bos_id": BOS_ID, "eos_id": EOS_ID, "limits": limits}
    if beam_size == 1:
        return search.greedy_search(step, cache, **common)
    return search.beam_search(
        step,
        cache,
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=1,
        reorder=lambda cache, parents: cache.reorder(parents),
        **common,
    )


def _collect(indices, hypotheses, results):
    tokens, scores, lengths = (np.asarray(x[:, 0]) for x in hypotheses)
    for row, index in enumerate(indices):  # rows beyond the indices only fill the shape
        results[index] = (tokens[row, : lengths[row]].tolist(), float(scores[row]))
