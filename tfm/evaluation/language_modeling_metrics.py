"""Bits per byte, bits per character and perplexity of texts, computed from their log-probabilities."""

import math

import numpy as np

from tfm.evaluation.score import Score


def likelihood_scores(nats: np.ndarray, tokens: int, texts: list[str], how: str) -> list[Score]:
    """Computes bits per byte, bits per character, and perplexity per token.

    Bits per byte and bits per character of models with different tokenizers can be compared if the tokenizers
    keep all texts exactly. Perplexities can be compared only between models with the same tokenizer.

    Args:
      nats: float [texts], the negative log-probability of each text, including its EOS.
      tokens: number of tokens of all texts, including one EOS for each text.
      texts: the scored texts.
      how: a description of the scoring for the signature, for example its window.
    """
    total = float(np.sum(nats, dtype=np.float64))
    size = sum(len(text.encode("utf-8")) for text in texts)
    characters = sum(map(len, texts))
    bits = total / math.log(2)
    counted = f"{len(texts):,} documents, ends counted, {how}"
    return [
        Score("bits per byte", bits / size, f"{size:,} bytes of {counted}", digits=4),
        Score("bits per character", bits / characters, f"{characters:,} characters of {counted}", digits=4),
        Score("perplexity", compute_perplexity(total / tokens), f"{tokens:,} tokens of {counted}"),
    ]


def compute_perplexity(nats: float) -> float:
    """Returns the perplexity of a mean of nats per token. That of a diverged model can be infinite."""
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(nats)))
