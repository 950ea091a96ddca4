"""The search that a decoding config describes, and the conversion of its results to lists of ids."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tfm import search
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.errors import UserError


class TokenHypothesis(NamedTuple):
    """The ids of a hypothesis, including EOS, and its score.

    For a search, the score is the log-probability divided by the length penalty. A beam search adds the
    coverage penalty. For a sample, the score is its log-probability under the model, without temperature and
    truncation.
    """

    ids: list[int]
    score: float


def make_keys(seed: int, indices: np.ndarray | jax.Array) -> jax.Array:
    """Returns random keys [B] that depend only on the seed and on the rows of `indices`, int [B, K].

    The numbers of a row should identify a text in the whole input. If they identify it only in a chunk of the
    input, equal texts of two chunks get equal samples.
    """
    key = jax.random.key(seed)
    return jax.vmap(lambda numbers: functools.reduce(jax.random.fold_in, numbers, key))(indices)


def make_limits(
    config: DecodingConfig | GenerationConfig, max_length: int, **constraints: Any
) -> search.Limits:
    """Returns limits on outputs of at most `max_length` tokens that end in EOS.

    Padding and BOS are forbidden. The config adds only `no_repeat_ngram` and `repetition_penalty`. All other
    fields of `search.Constraints`, such as `min_length`, are given as `constraints`.
    """
    return search.Limits(
        max_length,
        BOS_ID,
        EOS_ID,
        search.Constraints(forbidden=(PAD_ID, BOS_ID), **constraints),
        no_repeat_ngram=config.no_repeat_ngram,
        repetition_penalty=config.repetition_penalty,
    )


def run_search(
    config: DecodingConfig | GenerationConfig,
    steps: Sequence[search.Step],
    caches: Sequence[Any],
    limits: search.Limits,
    *,
    batch_size: int,
    keys: jax.Array | None = None,
    n_best: int | None = None,
    coverage: Callable[[Any], jax.Array] | None = None,
    run_loop: search.Loop = search.run_together,
    trace: bool = False,
) -> Any:
    """Runs sampling, greedy search or beam search over an ensemble, as the config says.

    Args:
      config: A config with the fields samples, beam_size and length_penalty, and the options of samples.
      steps, caches: The step function and the `tfm.decoding.protocol.DecodingCache` of each model.
      limits, batch_size: See `search.beam_search`.
      keys: Random keys for samples, [B]. None if `config.samples` is 0.
      n_best, coverage: See `search.beam_search`. The other two searches ignore them.
      run_loop: See `search.beam_search`. A trace ignores it.
      trace: Whether to run `search.trace_beam_search`, also if `beam_size` is 1. Needs `samples` 0.

    Returns:
      `search.Hypotheses`, or the result of `search.trace_beam_search`.

    Raises:
      UserError: If several models have a repetition penalty, because it is defined for one model's logits.
      ValueError: See `search.beam_search`, `search.greedy_search` and `search.sample`.
    """
    if len(steps) > 1 and config.repetition_penalty != 1:
        raise UserError(
            "decoding.repetition_penalty changes the logits of one model, but an ensemble averages "
            "probabilities. Set it to 1, or omit --ensemble."
        )
    options: dict[str, Any] = {
        "step": search.ensemble(*steps),
        # Without the barrier, XLA would convert the layout of cached keys and values in every step.
        "state": jax.lax.optimization_barrier(tuple(caches)),
        "limits": limits,
        "batch_size": batch_size,
    }
    if not trace:
        options["run_loop"] = run_loop
    if config.samples:
        assert keys is not None, "Samples need random keys."
        options |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return search.sample(rng=keys, samples=config.samples, **options)
    options["length_penalty"] = config.length_penalty
    if config.beam_size == 1 and not trace:
        return search.greedy_search(**options)
    beam_search = search.trace_beam_search if trace else search.beam_search
    options |= {"beam_size": config.beam_size, "n_best": n_best, "coverage": coverage}
    return beam_search(**options, reorder=_reorder_caches)


def _reorder_caches(caches: tuple[Any, ...], parents: jax.Array) -> tuple[Any, ...]:
    """Returns the caches of hypotheses that continue `parents`, int32 [B, W]."""
    return tuple(cache.reorder(parents) for cache in caches)


def as_token_hypotheses(rows: Sequence[search.Hypotheses]) -> list[list[TokenHypothesis]]:
    """Converts the result of a search to lists of hypotheses.

    Args:
      rows: The `search.Hypotheses` of each row, as NumPy arrays without the axis B.

    Returns:
      The hypotheses of each row in the same order. Rows for which the search has found fewer than N outputs
      have shorter lists.

    Raises:
      UserError: If a score is NaN.
    """
    undefined = sum(bool(np.isnan(row.scores).any()) for row in rows)
    if undefined:
        raise UserError(
            f"Expected probabilities that are numbers, got NaN for {undefined} of {len(rows)} inputs. The "
            "parameters are damaged, or they diverged in training. Use another checkpoint."
        )
    return [
        [
            TokenHypothesis(tokens[:length].tolist(), float(score))
            for tokens, score, length in zip(*row, strict=True)
            if length
        ]
        for row in rows
    ]
