"""Minimum Bayes risk decoding: expected utilities of samples (Eikema and Aziz 2020)."""

from collections import Counter
from collections.abc import Sequence

UTILITIES = ("chrf", "bleu")


def expected_utilities(texts: Sequence[str], utility: str) -> list[float]:
    """Computes the expected utility of each text, its mean score with every text as the reference.

    Args:
      texts: Samples of one translation. A text that occurs twice counts twice.
      utility: "chrf" or "bleu", the metric of a sentence.

    Returns:
      List of floats, 0 to 100. The text with the largest has the minimum Bayes risk.
    """
    from sacrebleu import BLEU, CHRF  # takes a tenth of a second, which only samples need to wait for

    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    counts = Counter(texts)

    def score(text: str, other: str) -> float:
        if text == other:
            return 100.0  # the metrics give two empty texts 0
        return metric.sentence_score(text, [other]).score

    means = {
        text: sum(count * score(text, other) for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]
