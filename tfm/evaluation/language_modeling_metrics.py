"""Bits per byte and per character, and perplexity per token and per word, from log-probabilities of texts."""

import math

import numpy as np

from tfm.evaluation.score import Score


def likelihood_scores(nats: np.ndarray, tokens: int, texts: list[str], how: str) -> list[Score]:
    """Computes bits per byte, bits per character, perplexity per token, and perplexity per word.

    Models with different tokenizers can be compared by all of them except the perplexity per token, if the
    tokenizers keep all texts exactly.

    Args:
      nats: float [texts], the negative log-probability of each text, including its EOS.
      tokens: number of tokens of all texts, including one EOS for each text.
      texts: the scored texts.
      how: a description of the scoring for the signature, for example its window.

    Returns:
      The four `Score` objects in the order of the first line. Words are counted by `count_words`.
    """
    total = float(np.sum(nats, dtype=np.float64))
    size = sum(len(text.encode("utf-8")) for text in texts)
    characters = sum(map(len, texts))
    words = sum(map(count_words, texts))
    bits = total / math.log(2)
    counted = f"{len(texts):,} documents, ends counted, {how}"
    return [
        Score("bits per byte", bits / size, f"{size:,} bytes of {counted}", digits=4),
        Score("bits per character", bits / characters, f"{characters:,} characters of {counted}", digits=4),
        Score("perplexity", compute_perplexity(total / tokens), f"{tokens:,} tokens of {counted}"),
        Score(
            "perplexity per word",
            compute_perplexity(total / words),
            f"{words:,} words and line ends of {counted}",
        ),
    ]


def count_words(text: str) -> int:
    """Returns the number of words between white space, plus one for the end of each line.

    Published perplexities of the Penn Treebank and of WikiText are counted so: each line of a file ends in a
    token <eos>. The end of a document is the end of its last line.

    Examples:
      >>> count_words("a <unk> @-@ b\\nc")
      7
      >>> count_words("")
      1
    """
    line_ends = text.count("\n") + (not text.endswith("\n"))
    return len(text.split()) + line_ends


def compute_perplexity(nats: float) -> float:
    """Returns the perplexity of a mean of nats per token. That of a diverged model can be infinite."""
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(nats)))
