"""Scores of summaries: exact match and ROUGE."""

import importlib.metadata
import logging
import re
from collections.abc import Sequence

import numpy as np

from tfm.errors import install_extra
from tfm.evaluation.score import Score

NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")  # where ROUGE-Lsum divides a summary
log = logging.getLogger(__name__)


def summary_scores(summaries: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Returns the share of summaries that equal their reference, and the mean F-measures of ROUGE (Lin 2004).

    ROUGE needs the package rouge-score. Without it, a warning names the extra that installs it.
    """
    pairs = list(zip(summaries, references, strict=True))
    exact = 100 * float(np.mean([summary.strip() == reference.strip() for summary, reference in pairs]))
    return [Score("exact match", exact, f"per cent of {len(pairs):,} summaries"), *_rouge(pairs)]


def _split_sentences(text: str) -> str:
    """Returns a text with a sentence on each line, the form that ROUGE-Lsum expects."""
    return SENTENCE_END.sub("\n", text.strip())


def _rouge(pairs: Sequence[tuple[str, str]]) -> list[Score]:
    """Returns ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum with stemming, or nothing without the package.

    ROUGE-Lsum compares summaries sentence by sentence. A sentence ends in ".", "!" or "?" before a blank.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        log.warning("ROUGE needs the package rouge-score: %s", install_extra("rouge"))
        return []
    scorer = RougeScorer(list(NAMES), use_stemmer=True)
    scores = [scorer.score(*map(_split_sentences, (reference, summary))) for summary, reference in pairs]
    signature = (
        f"mean F-measure in per cent, rouge-score {importlib.metadata.version('rouge-score')}, stemmed"
    )
    return [
        Score(name, 100 * float(np.mean([score[key].fmeasure for score in scores])), signature)
        for key, name in NAMES.items()
    ]
