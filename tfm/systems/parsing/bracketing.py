"""Labelled bracketing of constituency trees: precision, recall, F1 and complete matches as evalb counts them.

evalb is the program of Sekine and Collins that published scores are computed with. The rules here are those
of its parameter file COLLINS.prm:

- Words whose tag is punctuation (, . : `` '') or -NONE- are deleted. Each tree is filtered by its tags.
- Brackets do not count if their label is TOP or a deleted tag, or if all their words are deleted.
- A label ends before its first "-" or "=". PRT equals ADVP.
- A bracket matches a bracket of the same label over the same words. Duplicates match one by one.
- If the remaining words of the two trees differ, or the test tree has no remaining words, the sentence is an
  "error sentence". evalb leaves error sentences out of all scores.

The last rule rewards a parser for sentences that it cannot parse. Therefore `bracketing_scores` also returns
an F1 over all sentences, in which the brackets of error sentences count as wrong.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tfm.errors import UserError
from tfm.evaluation.score import Score

DELETED = frozenset(("TOP", "-NONE-", ",", ".", ":", "``", "''"))
EQUAL_LABELS = {"PRT": "ADVP"}


class Parse(NamedTuple):
    """A tree as evalb reads it.

    Attributes:
      words: the words of the sentence.
      tags: the part-of-speech tag of each word.
      spans: brackets (label, start, end). `start` is the index of the first word, `end` is exclusive.
    """

    words: Sequence[str]
    tags: Sequence[str]
    spans: Sequence[tuple[str, int, int]]


class Counts(NamedTuple):
    """Numbers of brackets of one sentence.

    Attributes:
      matched: brackets that both trees have; 0 in an error sentence.
      gold: brackets of the gold tree.
      test: brackets of the test tree.
      is_error: whether evalb leaves the sentence out of its scores.
    """

    matched: int
    gold: int
    test: int
    is_error: bool


def count_brackets(gold: Parse, test: Parse) -> Counts:
    """Counts the brackets of one sentence."""
    (gold_words, gold_spans), (test_words, test_spans) = map(_delete, (gold, test))
    is_error = not test_words or gold_words != test_words
    matched = 0 if is_error else (gold_spans & test_spans).total()
    return Counts(matched, gold_spans.total(), test_spans.total(), is_error)


def bracketing_scores(golds: Sequence[Parse], tests: Sequence[Parse]) -> list[Score]:
    """Computes the scores of a corpus. Brackets are counted over all sentences before the division.

    Returns:
      evalb's F1, precision, recall and share of complete matches, the share of error sentences, and an F1 in
      which error sentences count. All values are in per cent.

    Raises:
      UserError: if there are no trees, or the numbers of trees and references differ.
    """
    if not golds or len(golds) != len(tests):
        raise UserError(
            f"Expected at least one tree, and as many trees as references, got {len(tests):,} trees and "
            f"{len(golds):,} references."
        )
    counts = [count_brackets(*pair) for pair in zip(golds, tests, strict=True)]
    counted = [sentence for sentence in counts if not sentence.is_error]
    matched, gold, test = _add(counted)
    complete = sum(sentence.matched == sentence.gold == sentence.test for sentence in counted)
    signature = f"evalb's rules, COLLINS.prm, {len(counted):,} of {len(counts):,} sentences"
    _, all_gold, all_test = _add(counts)  # error sentences have no matches, so `matched` stays
    return [
        Score("bracketing F1", _percent(2 * matched, gold + test), signature),
        Score("bracketing precision", _percent(matched, test), f"{matched:,} of {test:,} brackets"),
        Score("bracketing recall", _percent(matched, gold), f"{matched:,} of {gold:,} brackets"),
        Score("complete match", _percent(complete, len(counted)), "per cent, all brackets of a sentence"),
        Score(
            "error sentences",
            _percent(len(counts) - len(counted), len(counts)),
            "per cent, left out of the scores above",
        ),
        Score(
            "bracketing F1, all",
            _percent(2 * matched, all_gold + all_test),
            "all sentences, brackets of error sentences wrong",
        ),
    ]


def _add(counts: Sequence[Counts]) -> list[int]:
    """Returns the sums of `matched`, `gold` and `test`."""
    return [sum(sentence[i] for sentence in counts) for i in range(3)]


def _delete(parse: Parse) -> tuple[list[str], Counter]:
    """Returns the remaining words, and a Counter of the brackets that count.

    The brackets are (label, start, end) with indices into the remaining words.
    """
    left = [tag not in DELETED for tag in parse.tags]
    number = [0, *itertools.accumulate(left)]
    spans = ((_base(label), number[start], number[end]) for label, start, end in parse.spans)
    kept = Counter(span for span in spans if span[0] not in DELETED and span[1] < span[2])
    return list(itertools.compress(parse.words, left)), kept


def _base(label: str) -> str:
    """Returns the label without functions and indices: "NP-SBJ-1" becomes "NP"."""
    base = label if label in DELETED else label.partition("-")[0].partition("=")[0]
    return EQUAL_LABELS.get(base, base)


def _percent(part: int, whole: int) -> float:
    """Returns `part` in per cent of `whole`, or 0 if `whole` is 0."""
    return 100 * part / whole if whole else 0.0
