"""Minimum Bayes risk: of sampled translations, the one that agrees best with all (Eikema and Aziz 2020)."""

from collections import Counter

from sacrebleu.metrics import BLEU, CHRF

UTILITIES = {
    "chrf": lambda: CHRF().sentence_score,
    "bleu": lambda: BLEU(effective_order=True).sentence_score,
}


def expected_utilities(texts, utility):
    """How well each text agrees with one drawn from the same list: its mean score against all as references.

    Args:
      texts: samples of one translation; what occurs twice weighs twice.
      utility: "chrf" or "bleu", of the sentence.

    Returns:
      List of floats, 0 to 100; the text with the largest has the least Bayes risk.
    """
    measure, counts = UTILITIES[utility](), Counter(texts)
    means = {
        text: sum(count * measure(text, [other]).score for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]
