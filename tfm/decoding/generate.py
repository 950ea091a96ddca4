"""From source ids to target ids: jitted search of a sequence-to-sequence model, batch by batch."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import memory_estimate, search
from tfm.arguments import check_count
from tfm.data.batches.rows import bucket_width
from tfm.data.batching import decode_rows, pad_sentences
from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.batch_splitting import run_batches
from tfm.decoding.mbr import UTILITIES
from tfm.decoding.parameters import INT8, Params, apply_model, search_parameters, weight_bytes, with_dtype
from tfm.decoding.protocol import read_cross_attention
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, check_fields, field

option = functools.partial(field, resume=CHANGEABLE)  # training does not depend on decoding
MAX_TOKENS = 65_536  # of an input, or of an output beyond its input
LARGEST_PENALTY_LOG = 80.0  # a float32 holds exp(88); a prefix may make an output longer


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched; the defaults are the paper's (section 6.1)."""

    beam_size: int = option(4, "Hypotheses kept; 1 is greedy search.", least=1, most=1000, unit="hypotheses")
    length_penalty: float = option(
        0.6, "Alpha of Wu et al. 2016, equation 14; larger favours longer outputs.", least=0, most=10
    )
    coverage_penalty: float = option(
        0.0, "Beta of the same equation, of a beam only; 0 in the paper.", least=0, most=100
    )
    min_length: int = option(
        1, "Minimum tokens of an output, EOS counted.", least=1, most=MAX_TOKENS, unit="tokens"
    )
    max_extra_tokens: int = option(
        50,
        "Maximum tokens of the output beyond those of the input.",
        least=0,
        most=MAX_TOKENS,
        unit="tokens",
    )
    samples: int = option(
        0,
        "Above 0, samples so many translations instead of searching, and returns the one of minimum Bayes "
        "risk (Eikema and Aziz 2020): the one that agrees best with all of them.",
        least=0,
        most=1000,
        unit="samples",
    )
    utility: str = option(
        "chrf", "How agreement of samples is measured, by sentence.", choices=tuple(UTILITIES)
    )
    temperature: float = option(
        1.0,
        "Divides the logits of samples. For 0, the most probable token, set samples=0 and beam_size=1.",
        least=0.001,
        most=1000,
    )
    top_k: int = option(
        0, "Samples come from the k most probable tokens; 0 is all.", least=0, most=10_000_000, unit="tokens"
    )
    top_p: float = option(
        1.0,
        "Samples come from the fewest most probable tokens whose probabilities reach this sum.",
        least=1e-6,
        most=1,
    )
    seed: int = option(0, "Of samples. JAX ignores higher bits.", least=0, most=2**32 - 1)
    attention_layer: int = option(
        -1,
        "The decoder layer whose attention to the source, averaged over its heads, is the alignment and "
        "the coverage; negative counts from the last.",
        least=-1000,
        most=999,
    )
    batch_size: int = option(64, "Sentences searched at a time.", least=1, most=65_536, unit="sentences")
    max_input: int = option(
        256, "Maximum tokens of an input, EOS counted.", least=2, most=MAX_TOKENS, unit="tokens"
    )
    overflow: str = option(
        "split",
        "Longer inputs are split at a boundary of sentences or words, and their translations joined, or cut; "
        "both with a warning.",
        choices=("split", "cut"),
    )
    dtype: str = option(
        "",
        "Of weights and computation; empty is the model's. int8 quantizes weights and what they are "
        "multiplied with, and leaves the rest in the model's.",
        choices=("", "float32", "bfloat16", INT8),
    )

    RENAMED: ClassVar[dict[str, str]] = {"extra_length": "max_extra_tokens", "over_long": "overflow"}

    def __post_init__(self):
        check_fields(self, "decoding")
        most = self.max_input + self.max_extra_tokens
        if self.length_penalty * math.log((5 + most) / 6) > LARGEST_PENALTY_LOG:
            raise UserError(
                f"decoding.length_penalty {self.length_penalty:g} gives outputs of {most:,} tokens a score "
                "that no number holds: lower it, decoding.max_input or decoding.max_extra_tokens."
            )

    @property
    def width(self) -> int:
        """Hypotheses of a sentence at a time."""
        return self.samples or self.beam_size


Members = tuple[Params, ...]  # of an ensemble


class TokenHypothesis(NamedTuple):
    """A hypothesis: ids up to and with EOS, and its score.

    Of greedy search and beam search, its log-probability over the length penalty, plus the coverage penalty
    of a beam; of a sample the log-probability itself, before temperature and truncation.
    """

    ids: list[int]
    score: float


def check_n_best(n_best: int, config: DecodingConfig) -> None:
    """Raises a UserError where the search of `config` finds fewer than `n_best` hypotheses of a sentence."""
    check_count("n_best", n_best, "translation of each sentence")
    if n_best > config.width:
        raise UserError(
            f"{n_best} best translations need a beam as large: got decoding.beam_size {config.beam_size}."
        )


def decode(
    model: nn.Module,
    params: Params | Members,
    sentences: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    n_best: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[TokenHypothesis]]:
    """Hypotheses of each sentence, in the order of `sentences`.

    Args:
      model: a `tfm.decoding.protocol.SequenceToSequence`, such as `tfm.models.Transformer`.
      params: its parameters; a tuple of several decodes with the mean of their probabilities.
      sentences: lists of source ids that end in EOS.
      config: a `DecodingConfig`.
      n_best: hypotheses of each to return, at most the beam size; samples are all returned, in no order.
      prefixes: lists of ids with which the outputs begin, without EOS; None or empty lists for none.

    Returns:
      A list of `TokenHypothesis` for each sentence, best first.

    Raises:
      UserError: `n_best` is above the beam size, outputs may be longer than the model has positions for, an
        input does not fit into the memory even by itself, or probabilities are NaN.
    """
    check_n_best(n_best, config)
    pairs = itertools.zip_longest(sentences, prefixes or [], fillvalue=())
    check_lengths(model, [len(ids) + len(prefix) + config.max_extra_tokens for ids, prefix in pairs])
    members = tuple(search_parameters(each, config.dtype) for each in as_members(params))
    keys = jax.random.split(jax.random.key(config.seed), len(sentences)) if config.samples else None
    held = weight_bytes(params, members)
    results: list[Any] = [None] * len(sentences)

    def search_rows(rows):
        inputs = pad_sentences([sentences[i] for i in rows])
        inputs = inputs[:, : model.config.max_length]  # the columns beyond are padding
        prefix = pad_sentences([prefixes[i] for i in rows], fill=-1) if prefixes else None
        row_keys = None if keys is None else keys[np.array(rows)]
        return search_batch(model, members, inputs, config, n_best, prefix, row_keys)

    def estimate(rows):
        source = bucket_width(max(len(sentences[i]) for i in rows))
        prefix = bucket_width(max(len(prefixes[i]) for i in rows)) if prefixes else 0
        search_bytes = _search_bytes(model, config, len(rows), source, prefix)
        return None if search_bytes is None else held + len(members) * search_bytes

    def describe(rows):
        names = ("samples" if config.samples else "beam_size", "max_extra_tokens", "max_input")
        fields = ", ".join(f"decoding.{name} ({getattr(config, name):,})" for name in names)
        tokens = max(len(sentences[i]) for i in rows)
        return f"Decoding one input of {tokens:,} tokens", f"lower {fields}"

    batches = decode_rows(list(map(len, sentences)), config.batch_size)
    for indices, hypotheses in run_batches(batches, search_rows, estimate, describe):
        collect(indices, hypotheses, results)
    return results


def _search_bytes(model, config, rows, source, prefix):
    """Estimated bytes of `search_batch` beside the weights, or None; of B, M and P."""
    model = with_dtype(model, config.dtype)
    estimate = memory_estimate.estimate_of(model)
    if estimate is None:
        return None
    length, max_length = source + prefix + config.max_extra_tokens, model.config.max_length
    return estimate.decoding_bytes(
        rows=rows,
        source=min(source, max_length or source),
        length=min(length, max_length or length),
        width=config.width,
        sampling=bool(config.samples),
    )


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def search_batch(
    model: nn.Module,
    members: Members,
    inputs: jax.Array,
    config: DecodingConfig,
    n_best: int = 1,
    prefix: jax.Array | None = None,
    keys: jax.Array | None = None,
) -> search.Hypotheses:
    """Searches one batch; compiled once for each shape.

    The limit of a row's output is the length of its own input (and prefix) plus `max_extra_tokens`, however
    wide the batch is padded.

    Args:
      model, config, n_best: as in `decode`.
      members: `search_parameters` of each member of the ensemble.
      inputs: int32 [B, M], padded with 0.
      prefix: int32 [B, P], as in `search.Constraints`.
      keys: [B], random keys for sampling.

    Returns:
      `search.Hypotheses` with N = `n_best`, or N = `config.samples`.
    """
    step, caches, of_beam, common = _prepare_search(model, members, inputs, config, n_best, prefix)
    return run_search(step, caches, config, keys, of_beam, **common)


@functools.partial(jax.jit, static_argnums=(0, 3))
def trace_batch(
    model: nn.Module, members: Members, inputs: jax.Array, config: DecodingConfig
) -> tuple[search.Hypotheses, search.BeamTrace]:
    """Beam search of one batch as by `search_batch`, with what it held after each step.

    Args:
      model, members, inputs: as in `search_batch`.
      config: as there; all hypotheses of its beam are sought, and none sampled.
    """
    step, caches, of_beam, common = _prepare_search(model, members, inputs, config, config.beam_size, None)
    common |= {"beam_size": config.beam_size, "length_penalty": config.length_penalty}
    return search.trace_beam_search(step, caches, **of_beam, **common)


def _prepare_search(model, members, inputs, config, n_best, prefix):
    """(step, caches, arguments of beam search alone, arguments of every search) of a batch."""
    model = with_dtype(model, config.dtype)
    limits = (inputs != PAD_ID).sum(-1).astype(jnp.int32) + config.max_extra_tokens
    max_length = inputs.shape[1] + config.max_extra_tokens
    if prefix is not None:
        limits += (prefix >= 0).sum(-1)
        max_length += prefix.shape[1]
    max_length = min(max_length, model.config.max_length or max_length)
    # Training never has padding or BOS as targets.
    constraints = search.Constraints(limits, config.min_length, (PAD_ID, BOS_ID), prefix)
    common = {
        "limits": search.Limits(max_length, BOS_ID, EOS_ID, constraints),
        "batch_size": len(inputs),
    }
    step = search.ensemble(*(_make_step(model, params, config) for params in members))
    caches = tuple(
        apply_model(model, params, inputs, width=config.width, max_length=max_length, method="init_cache")
        for params in members
    )
    of_beam = {
        "n_best": n_best,
        "reorder": lambda caches, parents: tuple(cache.reorder(parents) for cache in caches),
        "coverage": _mean_coverage_penalty(config.coverage_penalty),
    }
    return step, caches, of_beam, common


def run_search(
    step: Callable,
    states: Any,
    config: Any,
    keys: jax.Array | None,
    of_beam: Mapping[str, Any],
    **common: Any,
) -> search.Hypotheses:
    """Samples, or greedy or beam search, as the config says.

    Args:
      step, states: what `tfm.search` calls so.
      config: a `DecodingConfig`, or another with its fields of the search.
      keys: [B], random keys; None where nothing is sampled.
      of_beam: arguments of `search.beam_search` alone.
      **common: arguments of all three.
    """
    if config.samples:
        assert keys is not None, "samples need random keys"
        truncation = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return search.sample(step, states, rng=keys, samples=config.samples, **truncation, **common)
    penalty = {"length_penalty": config.length_penalty}
    if config.beam_size == 1:
        return search.greedy_search(step, states, **penalty, **common)
    return search.beam_search(step, states, beam_size=config.beam_size, **penalty, **of_beam, **common)


def _make_step(model, params, config):
    """The search's step of one model; with a coverage penalty the cache sums the attention."""

    def step(tokens, cache, position):
        apply = functools.partial(apply_model, model, params, tokens, cache, position, method="decode_step")
        if not config.coverage_penalty:
            return apply()
        (logits, cache), attention = read_cross_attention(model, apply)
        return logits, cache.add_coverage(select_layer(attention, config).mean(1))

    return step


def check_lengths(model: nn.Module, lengths: Iterable[int]) -> None:
    """Checks that `model` has positions for sequences of these numbers of tokens.

    Raises:
      UserError: it has not.
    """
    max_length, longest = model.config.max_length, max(lengths, default=0)
    if max_length is not None and longest > max_length:
        raise UserError(
            f"Expected at most {max_length:,} tokens, as many as the model has positions, got up to "
            f"{longest:,}: shorten the texts, or lower decoding.max_input and decoding.max_extra_tokens."
        )


def as_members(params: Params | Members) -> Members:
    """Parameters as the members of an ensemble, of which one model's are the only one."""
    return params if isinstance(params, tuple) else (params,)


def select_layer(attention: jax.Array, config: DecodingConfig) -> jax.Array:
    """The layer of attention [layers, ...] that `config.attention_layer` names, or the nearest one."""
    return attention[find_layer(len(attention), config)]


def find_layer(layers: int, config: DecodingConfig) -> int:
    """The number of the layer that `config.attention_layer` names among so many, or of the nearest one."""
    return range(layers)[int(np.clip(config.attention_layer, -layers, layers - 1))]


def _mean_coverage_penalty(beta: float) -> Callable[[tuple], jax.Array] | None:
    """The coverage penalty of the caches of an ensemble, averaged; None for no penalty."""
    if not beta:
        return None

    def coverage(caches):
        penalties = [search.coverage_penalty(c.coverage, c.source_mask[:, 0, 0], beta) for c in caches]
        return sum(penalties) / len(penalties)

    return coverage


def collect(indices: list[int], hypotheses: Any, results: list[Any]) -> None:
    """Sets `results[i]` for each of `indices` to its `TokenHypothesis` list, from the arrays of a search.

    Raises:
      UserError: a score is NaN.
    """
    tokens, scores, lengths = hypotheses
    undefined = np.isnan(scores[: len(indices)]).any(1).sum()
    if undefined:
        raise UserError(
            f"Expected probabilities that are numbers, got NaN for {undefined} of {len(indices)} inputs: the "
            "weights are damaged or diverged in training; use those of another checkpoint."
        )
    for row, index in enumerate(indices):  # rows beyond the indices only fill the shape
        results[index] = [
            TokenHypothesis(tokens[row, n, : lengths[row, n]].tolist(), float(scores[row, n]))
            for n in range(tokens.shape[1])
            if lengths[row, n]
        ]
