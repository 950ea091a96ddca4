"""The search that a config describes, and its hypotheses as lists of ids."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tfm import search
from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.errors import UserError


class TokenHypothesis(NamedTuple):
    """The ids of a hypothesis, including EOS, and its score.

    The score of a search is the log-probability divided by the length penalty, plus the coverage penalty of a
    beam. The score of a sample is its log-probability under the model, without temperature and truncation.
    """

    ids: list[int]
    score: float


def make_limits(max_length: int, **constraints: Any) -> search.Limits:
    """Returns limits with these `search.Constraints`. Padding and BOS are never targets of training."""
    forbidden = search.Constraints(forbidden=(PAD_ID, BOS_ID), **constraints)
    return search.Limits(max_length, BOS_ID, EOS_ID, forbidden)


def run_search(
    config: DecodingConfig | GenerationConfig,
    keys: jax.Array | None,
    beam_options: dict[str, Any],
    **search_options: Any,
) -> search.Hypotheses:
    """Runs sampling, greedy search or beam search, whichever the config describes.

    Args:
      config: The fields of the search.
      keys: [B], random keys, or None if the config has no samples.
      beam_options: Arguments of `search.beam_search` only.
      search_options: Arguments of all three searches: step, state, limits and batch_size.
    """
    if config.samples:
        assert keys is not None, "samples need random keys"
        search_options |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return search.sample(rng=keys, samples=config.samples, **search_options)
    search_options["length_penalty"] = config.length_penalty
    if config.beam_size == 1:
        return search.greedy_search(**search_options)
    return search.beam_search(beam_size=config.beam_size, **search_options, **beam_options)


def as_token_hypotheses(rows: Sequence[search.Hypotheses]) -> list[list[TokenHypothesis]]:
    """Returns the hypotheses of each row as lists of ids, without hypotheses that do not exist.

    Args:
      rows: The `search.Hypotheses` of each row, as NumPy arrays without the axis B.

    Raises:
      UserError: A score is NaN.
    """
    undefined = sum(bool(np.isnan(row.scores).any()) for row in rows)
    if undefined:
        raise UserError(
            f"Expected probabilities that are numbers, got NaN for {undefined} of {len(rows)} inputs. The "
            "parameters are damaged or diverged in training. Use another checkpoint."
        )
    return [
        [
            TokenHypothesis(tokens[:length].tolist(), float(score))
            for tokens, score, length in zip(*row, strict=True)
            if length
        ]
        for row in rows
    ]
