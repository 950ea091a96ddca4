"""The search that a decoding config describes, and the conversion of its results to lists of ids."""

from collections.abc import Sequence
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


def make_limits(max_length: int, **constraints: Any) -> search.Limits:
    """Returns the limits of a search, which also forbid padding and BOS.

    Args:
      max_length: Maximum number of tokens of an output, including EOS.
      **constraints: Further fields of `search.Constraints`.
    """
    forbidden = search.Constraints(forbidden=(PAD_ID, BOS_ID), **constraints)
    return search.Limits(max_length, BOS_ID, EOS_ID, forbidden)


def run_search(
    config: DecodingConfig | GenerationConfig,
    keys: jax.Array | None,
    beam_options: dict[str, Any],
    **search_options: Any,
) -> search.Hypotheses:
    """Runs sampling, greedy search or beam search, as the config says.

    Args:
      config: A config with the fields samples, beam_size and length_penalty, and the options of samples.
      keys: Random keys for samples, [B]. None if `config.samples` is 0.
      beam_options: Further arguments of `search.beam_search`. The other two searches do not receive them.
      **search_options: The arguments step, state, limits and batch_size, for all three searches.
    """
    if config.samples:
        assert keys is not None, "Samples need random keys."
        search_options |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return search.sample(rng=keys, samples=config.samples, **search_options)
    search_options["length_penalty"] = config.length_penalty
    if config.beam_size == 1:
        return search.greedy_search(**search_options)
    return search.beam_search(beam_size=config.beam_size, **search_options, **beam_options)


def as_token_hypotheses(rows: Sequence[search.Hypotheses]) -> list[list[TokenHypothesis]]:
    """Converts the result of a search to lists of hypotheses.

    Args:
      rows: The `search.Hypotheses` of each row, as NumPy arrays without the axis B.

    Returns:
      The hypotheses of each row. Rows for which the search has found fewer than N outputs have shorter lists.

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
