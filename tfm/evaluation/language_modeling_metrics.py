"""Bits per byte and per character, and perplexity, of texts whose log-probabilities are known."""

import math

import numpy as np

from tfm.evaluation.score import Score


def likelihood_scores(nats: np.ndarray, tokens: int, texts: list[str], how: str) -> list[Score]:
    """What a language model makes of texts, on three scales.

    Bits per byte and per character do not depend on the tokenizer; perplexity compares only models of one.

    Args:
      nats: float [texts], the negative log-probability of each text, its end counted.
      tokens: of all texts, ends counted.
      texts: what was scored.
      how: what the signature tells of it, such as the window.
    """
    total = float(np.sum(nats, dtype=np.float64))
    size = sum(len(text.encode("utf-8")) for text in texts)
    characters = sum(map(len, texts))
    bits = total / math.log(2)
    counted = f"{len(texts):,} documents, ends counted, {how}"
    with np.errstate(over="ignore"):  # of a model that has diverged it is infinite
        perplexity = float(np.exp(np.float64(total / tokens)))
    return [
        Score("bits per byte", bits / size, f"{size:,} bytes of {counted}", digits=4),
        Score("bits per character", bits / characters, f"{characters:,} characters of {counted}", digits=4),
        Score("perplexity", perplexity, f"{tokens:,} tokens of {counted}"),
    ]
