"""Minimum Bayes risk decoding: the expected utility of each sample (Eikema and Aziz 2020)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tfm.errors import check_train_extra

UTILITIES = ("chrf", "bleu")


def expected_utilities(texts: Sequence[str], utility: str) -> list[float]:
    """Computes the expected utility of each text: the mean of its scores against every text as a reference.

    Args:
      texts: Samples of the translation of one sentence. A text that occurs twice counts twice.
      utility: The sentence metric, "chrf" or "bleu". The letters of the texts choose the tokenizer of BLEU.

    Returns:
      A number from 0 to 100 for each text. The text with the largest number has the minimum Bayes risk.

    Raises:
      UserError: if the extra `train`, with the package sacrebleu, is not installed.
    """
    check_train_extra("Minimum Bayes risk decoding")
    # This import takes a tenth of a second, so it does not belong at the top of the module.
    from sacrebleu import BLEU, CHRF

    metric: Any = CHRF()
    if utility == "bleu":
        from tfm.evaluation.translation_metrics import bleu_tokenizer

        metric = BLEU(effective_order=True, tokenize=bleu_tokenizer("", texts))
    counts = Counter(texts)

    def score(text: str, other: str) -> float:
        if text == other:
            return 100.0  # For two empty texts, the metrics return 0.
        return metric.sentence_score(text, [other]).score

    means = {
        text: sum(count * score(text, other) for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]
