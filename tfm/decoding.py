"""From source ids to target ids: jitted search of a sequence-to-sequence model, batch by batch."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm import search
from tfm.bayes_risk import UTILITIES
from tfm.data.batches import decode_rows, padded
from tfm.data.vocabulary import BOS_ID, EOS_ID, PAD_ID
from tfm.errors import UserError
from tfm.inspection import attention_of
from tfm.products import inputs_first, outputs_first

OVER_LONG = ("split", "cut")
DTYPES = ("", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched; the defaults are the paper's (section 6.1).

    Attributes:
      beam_size: hypotheses kept; 1 is greedy search.
      length_penalty: alpha of Wu et al. 2016, equation 14.
      coverage_penalty: beta of the same equation, of a beam only; 0 in the paper.
      min_length: tokens of the shortest output, EOS counted.
      extra_length: the output has at most so many tokens more than the input.
      samples: above 0, draws so many translations instead of searching, and takes the one of least Bayes risk
        (Eikema and Aziz 2020): the one that agrees best with all of them.
      utility: how agreement of samples is measured, "chrf" or "bleu" of the sentence.
      temperature, top_k, top_p: of sampling, see `tfm.search.sample`.
      seed: of sampling.
      attention_layer: the decoder layer whose attention over the source, its heads' mean, is the alignment
        and the coverage; negative counts from the last.
      batch_size: sentences searched side by side.
      max_input: tokens of the longest input, EOS counted.
      over_long: longer ones are "split" at a boundary of sentences or words, and their translations joined,
        or "cut"; both with a warning.
      dtype: of weights and computation, "float32" or "bfloat16"; "" is the model's.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    min_length: int = 1
    extra_length: int = 50
    samples: int = 0
    utility: str = "chrf"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    attention_layer: int = -1
    batch_size: int = 64
    max_input: int = 256
    over_long: str = "split"
    dtype: str = ""

    def __post_init__(self):
        for name in ("beam_size", "batch_size", "min_length"):
            if getattr(self, name) < 1:
                raise UserError(f"decoding.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("length_penalty", "coverage_penalty", "extra_length", "samples", "top_k"):
            if getattr(self, name) < 0:
                raise UserError(f"decoding.{name} must not be negative, got {getattr(self, name)}.")
        for name, allowed in (("over_long", OVER_LONG), ("utility", tuple(UTILITIES)), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise UserError(f"decoding.{name} must be one of {allowed}, got {getattr(self, name)!r}.")
        if self.max_input < 2:
            raise UserError(f"decoding.max_input must be at least 2, got {self.max_input}.")
        if self.temperature <= 0:
            raise UserError(
                f"decoding.temperature must be positive, got {self.temperature}; for 0 set beam_size=1."
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"decoding.top_p must be above 0 and at most 1, got {self.top_p}.")

    @property
    def width(self):
        """Hypotheses that a sentence has at a time."""
        return self.samples or self.beam_size


class Found(NamedTuple):
    """A hypothesis: ids up to and with EOS, and its score.

    That is its log-probability over the length penalty, of greedy search too, and of a beam plus the
    coverage penalty; of a sample the log-probability itself, before temperature and cuts.
    """

    ids: list[int]
    score: float


def check_n_best(n_best, config):
    """Raises a UserError where the search of `config` holds fewer than `n_best` hypotheses of a sentence."""
    if n_best > config.width:
        raise UserError(
            f"{n_best} best translations need a beam as large: got decoding.beam_size {config.beam_size}."
        )


def decode(model, params, sentences, config, *, n_best=1, prefixes=None):
    """Hypotheses of each sentence, in the order of `sentences`.

    Args:
      model: a Linen module with `init_cache` and `decode_step`, such as `tfm.models.Transformer`.
      params: its parameters; a tuple of several decodes with the mean of their probabilities.
      sentences: lists of source ids that end in EOS.
      config: a `DecodingConfig`.
      n_best: hypotheses wanted of each, at most the beam's size; samples are all returned, in no order.
      prefixes: lists of ids with which the outputs begin, without EOS; None or empty lists for none.

    Returns:
      A list of `Found` for each sentence, best first.

    Raises:
      UserError: more hypotheses wanted than the beam holds, outputs allowed that the model has no positions
        for, or probabilities that are not numbers.
    """
    check_n_best(n_best, config)
    asked = itertools.zip_longest(sentences, prefixes or [], fillvalue=[])
    check_lengths(model, [len(ids) + len(start) + config.extra_length for ids, start in asked])
    members = tuple(search_parameters(each, config.dtype) for each in as_members(params))
    keys = jax.random.split(jax.random.key(config.seed), len(sentences)) if config.samples else None
    results = [None] * len(sentences)
    pending = []  # one batch computes on the device while the host reads the one before
    for indices, rows in decode_rows(list(map(len, sentences)), config.batch_size):
        inputs = padded([sentences[i] for i in rows])
        prefix = padded([prefixes[i] for i in rows], fill=-1) if prefixes else None
        own = keys[np.array(rows)] if config.samples else None
        inputs = inputs[:, : model.config.longest]  # what lies beyond is padding
        hypotheses = search_batch(model, members, inputs, config, n_best, prefix, own)
        pending.append((indices, hypotheses))
        if len(pending) > 1:
            _collect(*pending.pop(0), results)
    for indices, hypotheses in pending:
        _collect(indices, hypotheses, results)
    return results


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def search_batch(model, members, inputs, config, n_best=1, prefix=None, keys=None):
    """`tfm.search.Hypotheses` for inputs [B, M]; compiled once a shape.

    A row's output is limited to its own input's length (and its prefix's) plus `extra_length`, whatever it is
    padded to. `members` is a tuple of `search_parameters`, `prefix` as in `search.Constraints`, `keys` [B]
    are for sampling.
    """
    if config.dtype:
        model = model.clone(config=dataclasses.replace(model.config, dtype=config.dtype))
    limits = (inputs != PAD_ID).sum(-1).astype(jnp.int32) + config.extra_length
    max_length = inputs.shape[1] + config.extra_length
    if prefix is not None:
        limits += (prefix >= 0).sum(-1)
        max_length += prefix.shape[1]
    max_length = min(max_length, model.config.longest or max_length)
    common = {
        "max_length": max_length,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        # Padding and BOS are no words; training never shows them as targets.
        "constraints": search.Constraints(limits, config.min_length, (PAD_ID, BOS_ID), prefix),
    }
    step = search.ensemble(*(_step(model, params, config) for params in members))
    caches = tuple(
        model.apply(
            {"params": inputs_first(params)},
            inputs,
            width=config.width,
            max_length=max_length,
            method="init_cache",
        )
        for params in members
    )
    if config.samples:
        cuts = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return search.sample(step, caches, keys, samples=config.samples, **cuts, **common)
    if config.beam_size == 1:
        return search.greedy_search(step, caches, length_penalty=config.length_penalty, **common)
    return search.beam_search(
        step,
        caches,
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
        n_best=n_best,
        reorder=lambda caches, parents: tuple(cache.reorder(parents) for cache in caches),
        coverage=_coverage(config.coverage_penalty),
        **common,
    )


@functools.partial(jax.jit, static_argnums=1)
def search_parameters(params, dtype=""):
    """Parameters as the search reads them, once for all its batches: in `dtype`, if any, outputs first."""
    if dtype:
        params = jax.tree.map(lambda x: x.astype(dtype), params)
    return outputs_first(params)


def _step(model, params, config):
    """The search's step of one model; with a coverage penalty the cache sums up the attention."""

    def step(tokens, cache, position):
        variables, arguments = {"params": inputs_first(params)}, (tokens, cache, position)
        if not config.coverage_penalty:
            return model.apply(variables, *arguments, method="decode_step")
        (logits, cache), collected = model.apply(
            variables, *arguments, method="decode_step", mutable=["attention"]
        )
        attention = attention_of(collected, "decoder", "cross_attention")
        return logits, cache.attend(layer_of(attention, config).mean(1))

    return step


def check_lengths(model, lengths):
    """Whether `model` has positions for sequences of so many tokens.

    Raises:
      UserError: it has not.
    """
    longest, most = model.config.longest, max(lengths, default=0)
    if longest is not None and most > longest:
        raise UserError(
            f"Expected at most {longest:,} tokens, as many as the model has positions, got up to {most:,}: "
            "shorten the texts, or lower decoding.max_input and decoding.extra_length."
        )


def as_members(params):
    """Parameters as the tuple of an ensemble's, which one model's are too."""
    return params if isinstance(params, tuple) else (params,)


def layer_of(attention, config):
    """The layer of attention [layers, ...] that `config.attention_layer` names, or the nearest there is."""
    layers = len(attention)
    return attention[int(np.clip(config.attention_layer, -layers, layers - 1))]


def _coverage(beta):
    if not beta:
        return None

    def coverage(caches):
        penalties = [search.coverage_penalty(c.attended, c.memory_mask[:, 0, 0], beta) for c in caches]
        return sum(penalties) / len(penalties)

    return coverage


def _collect(indices, hypotheses, results):
    tokens, scores, lengths = map(np.asarray, hypotheses)
    undefined = np.isnan(scores[: len(indices)]).any(1).sum()
    if undefined:
        raise UserError(
            f"Expected probabilities that are numbers, got NaN for {undefined} of {len(indices)} inputs: the "
            "weights are damaged or diverged in training; use those of another checkpoint."
        )
    for row, index in enumerate(indices):  # rows beyond the indices only fill the shape
        results[index] = [
            Found(tokens[row, n, : lengths[row, n]].tolist(), float(scores[row, n]))
            for n in range(tokens.shape[1])
            if lengths[row, n]
        ]
