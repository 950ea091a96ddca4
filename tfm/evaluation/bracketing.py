"""Labelled bracketing of constituency trees: precision, recall, F1 and complete matches as evalb counts them.

evalb is the program of Sekine and Collins that published scores come from, here with its parameters
COLLINS.prm:

- a word whose tag is punctuation (, . : `` '') or -NONE- is deleted, in each tree by that tree's own tags;
- a bracket TOP or with a label of that list, or without a word that is left, does not count;
- a label ends before its first "-" or "="; PRT equals ADVP;
- a bracket matches one of the same label over the same words; of equal ones each matches once;
- a sentence whose words, as far as they are left, differ in the two trees is an error sentence: it is left
  out of all scores, and so is one without any word left in the test tree.

That last rule rewards a parser for sentences that it cannot parse, so there is also an F1 over all sentences,
in which brackets of an error sentence count as wrong.
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
    """A tree as evalb sees it: words, a tag for each, brackets (label, first word, word behind the last)."""

    words: Sequence[str]
    tags: Sequence[str]
    spans: Sequence[tuple[str, int, int]]


class Counts(NamedTuple):
    """Brackets of a sentence: those that match, those of the gold tree, those of the test tree.

    `is_error` says that evalb leaves the sentence out; none of its brackets matches.
    """

    matched: int
    gold: int
    test: int
    is_error: bool


def count_brackets(gold: Parse, test: Parse) -> Counts:
    """The counts of one sentence."""
    (gold_words, gold_spans), (test_words, test_spans) = map(_delete, (gold, test))
    is_error = not test_words or gold_words != test_words
    matched = 0 if is_error else (gold_spans & test_spans).total()
    return Counts(matched, gold_spans.total(), test_spans.total(), is_error)


def bracketing_scores(golds: Sequence[Parse], tests: Sequence[Parse]) -> list[Score]:
    """F1, precision, recall and complete matches of a corpus by evalb, its error sentences, F1 with these.

    Brackets are added over sentences before the division.

    Raises:
      UserError: no trees, or unequal numbers of them.
    """
    if not golds or len(golds) != len(tests):
        raise UserError(
            f"Expected as many trees as references, and at least one, got {len(tests):,} trees and "
            f"{len(golds):,} references."
        )
    counts = [count_brackets(*pair) for pair in zip(golds, tests, strict=True)]
    counted = [each for each in counts if not each.is_error]
    matched, gold, test = _add(counted)
    complete = sum(each.matched == each.gold == each.test for each in counted)
    signature = f"evalb's rules, COLLINS.prm, {len(counted):,} of {len(counts):,} sentences"
    _, all_gold, all_test = _add(counts)  # matched are the same
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


def _add(counts):
    return [sum(each[i] for each in counts) for i in range(3)]


def _delete(parse):
    """(words that are left, Counter of the brackets that count), the brackets over the words left."""
    left = [tag not in DELETED for tag in parse.tags]
    number = [0, *itertools.accumulate(left)]
    spans = ((_base(label), number[start], number[end]) for label, start, end in parse.spans)
    kept = Counter(span for span in spans if span[0] not in DELETED and span[1] < span[2])
    return list(itertools.compress(parse.words, left)), kept


def _base(label):
    base = label if label in DELETED else label.partition("-")[0].partition("=")[0]
    return EQUAL_LABELS.get(base, base)


def _percent(part, whole):
    return 100 * part / whole if whole else 0.0
