"""Translation of ids by a sequence-to-sequence model, with a compiled search for each batch."""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import search
from tfm.data.tokenizers.protocol import PAD_ID
from tfm.decoding.batches import find_shapes, map_rows, pad_ids
from tfm.decoding.config import DecodingConfig
from tfm.decoding.hypotheses import (
    TokenHypothesis,
    as_token_hypotheses,
    make_keys,
    make_limits,
    run_search,
)
from tfm.decoding.protocol import (
    Ensemble,
    Params,
    as_ensemble,
    read_cross_attention,
    search_parameters,
    with_dtype,
)
from tfm.devices import backend
from tfm.devices.memory import count_elements
from tfm.devices.mesh import place_rows
from tfm.errors import UserError, check_count

log = logging.getLogger(__name__)

# Outputs rarely have more tokens beyond their input, so a search begins with caches of this size.
USUAL_EXTRA_TOKENS = 8
MIN_STAGED_ROWS = 32  # Stages double the time to compile a search. They do not pay for fewer rows.


def translate_ids(
    model: nn.Module,
    params: Params | Ensemble,
    sources: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    n_best: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
    phrases: Sequence[Sequence[Sequence[int]]] | None = None,
    indices: Sequence[Sequence[int]] | None = None,
) -> list[list[TokenHypothesis]]:
    """Translates lists of ids.

    Logs a warning if an output may not be as long as `config.min_length`, and if a best output lacks a
    phrase.

    Args:
      model: A `tfm.decoding.protocol.SequenceToSequence`, such as `tfm.models.Transformer`.
      params: The parameters of the model, or a tuple with the parameters of each member of an ensemble. An
        ensemble averages probabilities.
      sources: Lists of source ids, including EOS.
      config: A `DecodingConfig`.
      n_best: Number of hypotheses for each source, at most the beam size. If `config.samples` is set, all
        samples are returned instead.
      prefixes: For each source, the ids that its output must begin with, without EOS. None means no prefix.
      phrases: For each source, lists of ids that its output must contain, see `tfm.search.Constraints`. None
        means no phrases.
      indices: For each source, the numbers that identify it, for example the indices of its text and of its
        part of the text. The random key of a sample depends only on the seed, on these numbers and on its
        number among the samples of the source. None means the index in `sources`.

    Returns:
      A list of `TokenHypothesis` for each source, in the order of `sources`. The best hypothesis is the first
      one. Samples are in arbitrary order.

    Raises:
      UserError: If `n_best` is below 1 or above the number of hypotheses that the config decodes, if
        `prefixes` and `sources` differ in length, if there are phrases but the config sets no beam search, if
        an output could have more tokens than the model has positions, if an ensemble has a repetition
        penalty, if a beam search has a coverage penalty but the model does not attend to the source, if a
        single source does not fit into the memory, or if probabilities are NaN.
    """
    check_n_best(n_best, config)
    if prefixes is not None and len(prefixes) != len(sources):
        raise UserError(f"Expected a prefix for each of {len(sources):,} sources, got {len(prefixes):,}.")
    if phrases is not None and (config.samples or config.beam_size == 1):
        raise UserError("Phrases need a beam search. Set decoding.beam_size to at least 2 and samples to 0.")
    rows_of_phrases = None if phrases is None else pad_phrases(phrases)
    pairs = itertools.zip_longest(sources, prefixes or [], fillvalue=())
    limits = [len(ids) + len(prefix) + config.max_extra_tokens for ids, prefix in pairs]
    check_lengths(model, limits)
    if shorter := sum(limit < config.min_length for limit in limits):
        log.warning(
            "%s of %s outputs have a limit below decoding.min_length (%s) and may be shorter. Increase "
            "decoding.max_extra_tokens",
            *(f"{shorter:,}", f"{len(limits):,}", config.min_length),
        )
    members = tuple(search_parameters(member, config.dtype) for member in as_ensemble(params))
    numbers = np.arange(len(sources))[:, None] if indices is None else np.array(indices)

    def make_arguments(rows, widths):
        inputs = pad_ids([sources[i] for i in rows], width=widths[0])
        inputs = inputs[:, : model.config.max_length]  # The columns that are cut off contain only padding.
        prefix = pad_ids([prefixes[i] for i in rows], fill=-1, width=widths[1]) if prefixes else None
        keys = make_keys(config.seed, numbers[rows]) if config.samples else None
        of_rows = None if rows_of_phrases is None else rows_of_phrases[rows]
        inputs, prefix, keys, of_rows = place_rows((inputs, prefix, keys, of_rows), like=members)
        return model, members, inputs, config, n_best, prefix, keys, of_rows

    def describe(row):
        names = ("samples" if config.samples else "beam_size", "max_extra_tokens", "max_input")
        fields = ", ".join(f"decoding.{name} ({getattr(config, name):,})" for name in names)
        return f"Decoding one input of {len(sources[row]):,} tokens", f"Lower {fields}"

    sequences = zip(sources, prefixes, strict=True) if prefixes else zip(sources, strict=True)
    phrase_shape = None if rows_of_phrases is None else rows_of_phrases.shape[1:]
    work = count_elements(members) * config.width
    rows = map_rows(
        search_batch,
        make_arguments,
        [tuple(map(len, of_row)) for of_row in sequences],
        batch_size=config.batch_size,
        describe=describe,
        shapes=find_shapes(work, search_batch, model, config, n_best, bool(prefixes), phrase_shape),
        like=members,
    )
    hypotheses = as_token_hypotheses(rows)
    _warn_of_missing_phrases(hypotheses, phrases or ())
    return hypotheses


def _warn_of_missing_phrases(
    hypotheses: Sequence[Sequence[TokenHypothesis]], phrases: Sequence[Sequence[Sequence[int]]]
) -> None:
    """Logs a warning if the best output of some sources lacks a phrase that it must contain."""
    lacking = sum(
        not all(_contains(best[0].ids, ids) for ids in of_source)
        for best, of_source in zip(hypotheses, phrases, strict=False)
        if best
    )
    if lacking:
        log.warning(
            "%s of %s outputs lack a phrase, because the search found no output with all phrases. Increase "
            "decoding.beam_size or decoding.max_extra_tokens, or set decoding.no_repeat_ngram to 0",
            f"{lacking:,}",
            f"{len(hypotheses):,}",
        )


def _contains(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    """Returns whether a list of ids contains a phrase."""
    starts = range(len(ids) - len(phrase) + 1)
    return any(list(ids[start : start + len(phrase)]) == list(phrase) for start in starts)


def pad_phrases(phrases: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Returns the phrases of each source as int32 [B, P, L], padded with -1.

    P and L are powers of two, so that few programs are compiled.
    """
    most = max(map(len, phrases), default=0)
    longest = max((len(ids) for of_row in phrases for ids in of_row), default=0)
    shape = (1 << max(size - 1, 0).bit_length() for size in (most, longest))
    padded = np.full((len(phrases), *shape), -1, np.int32)
    for row, of_row in enumerate(phrases):
        for number, ids in enumerate(of_row):
            padded[row, number, : len(ids)] = ids
    return padded


def check_n_best(n_best: int, config: DecodingConfig) -> None:
    """Raises a UserError if `n_best` is below 1 or above the number of hypotheses that the config decodes."""
    check_count("n_best", n_best, "translation of each sentence")
    if n_best > config.width:
        field = "samples" if config.samples else "beam_size"
        raise UserError(
            f"Expected decoding.{field} of at least {n_best} for the {n_best} best translations, got "
            f"{config.width}."
        )


def check_lengths(model: nn.Module, lengths: Iterable[int]) -> None:
    """Raises a UserError if one of the lengths is above the number of positions of the model."""
    max_length, longest = model.config.max_length, max(lengths, default=0)
    if max_length is not None and longest > max_length:
        raise UserError(
            f"Expected at most {max_length:,} tokens (the model's number of positions), got up to "
            f"{longest:,}. Shorten the texts, or lower decoding.max_input and decoding.max_extra_tokens."
        )


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def search_batch(
    model: nn.Module,
    members: Ensemble,
    inputs: jax.Array,
    config: DecodingConfig,
    n_best: int = 1,
    prefix: jax.Array | None = None,
    keys: jax.Array | None = None,
    phrases: jax.Array | None = None,
) -> search.Hypotheses:
    """Searches the outputs of one batch. Compiles once for each shape.

    An output has at most `config.max_extra_tokens` more tokens than its input and prefix together. Padding
    does not count.

    Args:
      model, config, n_best: See `translate_ids`.
      members: The `search_parameters` of each member of the ensemble.
      inputs: Source tokens, int32 [B, M], padded with 0.
      prefix: Tokens that the outputs must begin with, int32 [B, P], padded with -1. None means no prefix.
      keys: Random keys of the samples, [B]. None if `config.samples` is 0.
      phrases: See `tfm.search.Constraints`.

    Returns:
      `search.Hypotheses` with N = `n_best`, or N = `config.samples`. Greedy search has N = 1.

    Raises:
      UserError, ValueError: See `run_search`. UserError also if a coverage penalty has no attention to read.
    """
    return _search(model, members, inputs, config, prefix, phrases, keys=keys, n_best=n_best)


@functools.partial(jax.jit, static_argnums=(0, 3))
def trace_batch(
    model: nn.Module,
    members: Ensemble,
    inputs: jax.Array,
    config: DecodingConfig,
    prefix: jax.Array | None = None,
) -> tuple[search.Hypotheses, search.BeamTrace]:
    """Runs the beam search of one batch, and also returns the beam after each step.

    Args:
      model, members, inputs, prefix: See `search_batch`.
      config: A `DecodingConfig` with `samples` 0. The search returns all `beam_size` hypotheses.

    Returns:
      `search.Hypotheses` with N = `config.beam_size`, and the `search.BeamTrace`.

    Raises:
      UserError, ValueError: See `search_batch`.
    """
    return _search(model, members, inputs, config, prefix, trace=True)


def _search(
    model: nn.Module,
    members: Ensemble,
    inputs: jax.Array,
    config: DecodingConfig,
    prefix: jax.Array | None,
    phrases: jax.Array | None = None,
    **options: Any,
) -> Any:
    """Calls `run_search` for one batch. `options` are further arguments of it."""
    model = with_dtype(model, config.dtype)
    max_lengths = (inputs != PAD_ID).sum(-1).astype(jnp.int32) + config.max_extra_tokens
    length = inputs.shape[1]
    if prefix is not None:
        max_lengths += (prefix >= 0).sum(-1)
        length += prefix.shape[1]
    max_length = length + config.max_extra_tokens
    max_length = min(max_length, model.config.max_length or max_length)

    def make_caches(max_length):
        init = {"width": config.width, "max_length": max_length, "method": "init_cache"}
        return tuple(model.apply({"params": params}, inputs, **init) for params in members)

    run_loop = _choose_loop(model, len(inputs), min(length + USUAL_EXTRA_TOKENS, max_length), make_caches)
    constraints = {"max_lengths": max_lengths, "prefix": prefix, "phrases": phrases}
    limits = make_limits(config, max_length, min_length=config.min_length, **constraints)
    options |= {"coverage": _mean_coverage_penalty(config.beam_coverage_penalty), "run_loop": run_loop}
    steps = [_make_step(model, params, config) for params in members]
    return run_search(config, steps, make_caches(max_length), limits, batch_size=len(inputs), **options)


def _choose_loop(model: nn.Module, rows: int, steps: int, make_caches: Callable[[int], tuple]) -> search.Loop:
    """Returns the loop of a search, see `tfm.search.loops`.

    Stages save work on one CPU. An accelerator computes a few more rows in the same time, and several devices
    would have to exchange rows. An `EditedModel`, which is no Linen module, keeps the numbers of its rows.

    Args:
      model: The model of the search.
      rows: Number of rows, B.
      steps: Number of steps after which most rows are finished.
      make_caches: Function from a number of steps to the caches of the search.
    """
    is_one_cpu = backend.is_cpu() and jax.device_count() == 1
    if rows < MIN_STAGED_ROWS or not is_one_cpu or not isinstance(model, nn.Module):
        return search.run_together
    caches = jax.eval_shape(lambda: make_caches(steps))
    return functools.partial(search.run_in_stages, steps=steps, part_size=rows // 4, short_state=caches)


def _make_step(model: nn.Module, params: Params, config: DecodingConfig) -> search.Step:
    """Returns the step function of one model, see `tfm.search`.

    With a coverage penalty, each step adds its attention to the source to the cache.
    """

    def step(tokens, cache, position):
        variables = {"params": params}
        apply = functools.partial(model.apply, variables, tokens, cache, position, method="decode_step")
        if not config.beam_coverage_penalty:
            return apply()
        (logits, cache), attention = read_cross_attention(model, apply)
        return logits, cache.add_coverage(select_layer(attention, config).mean(1))

    return step


def _mean_coverage_penalty(beta: float) -> Callable[[tuple], jax.Array] | None:
    """Returns a function that computes the coverage penalty from the caches of an ensemble.

    The penalty is the mean of the members' penalties, float32 [B, W]. Returns None if beta is 0.
    """
    if not beta:
        return None

    def coverage(caches):
        penalties = [search.coverage_penalty(c.coverage, c.source_mask[:, 0, 0], beta) for c in caches]
        return sum(penalties) / len(penalties)

    return coverage


def select_layer(attention: jax.Array, config: DecodingConfig) -> jax.Array:
    """Returns the attention of the layer that `config.attention_layer` selects: [layers, ...] -> [...]."""
    return attention[find_layer(len(attention), config)]


def find_layer(layers: int, config: DecodingConfig) -> int:
    """Returns the index, from 0, of the layer that `config.attention_layer` selects.

    If the model has fewer layers, this is the first or the last layer, whichever is nearer.
    """
    return range(layers)[int(np.clip(config.attention_layer, -layers, layers - 1))]
