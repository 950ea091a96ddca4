"""Minimum Bayes risk decoding: expected utilities of samples (Eikema and Aziz 2020)."""

from collections import Counter
from collections.abc import Sequence

from sacrebleu import BLEU, CHRF

UTILITIES = {
    "chrf": lambda: CHRF().sentence_score,
    "bleu": lambda: BLEU(effective_order=True).sentence_score,
}


def expected_utilities(texts: Sequence[str], utility: str) -> list[float]:
    """The expected utility of each text: its mean score against all texts as references.

    Args:
      texts: samples of one translation; a text that occurs twice counts twice.
      utility: "chrf" or "bleu", of the sentence.

    Returns:
      List of floats, 0 to 100; the text with the largest has the minimum Bayes risk.
    """
    metric, counts = UTILITIES[utility](), Counter(texts)

    def score(text, other):
        return 100.0 if text == other else metric(text, [other]).score  # of two empty texts it would be 0

    means = {
        text: sum(count * score(text, other) for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]
