"""Tests of generated reports by an independent reading of them."""

import collections
import itertools
import re

import numpy as np
import pytest

from tfm.data.config import DocumentsConfig
from tfm.data.data_errors import MissingFile
from tfm.systems.t_dmca.reports import FACTS, FILLERS, SENTENCES, VALUES, reports

FACT = re.compile(r"They noted the (\w+) (\w+)\.")
PARTS = re.compile(r"(.*) Summary: (.*)")


def read(split):
    """Returns the sentences and the summary of each report of a split."""
    matches = [PARTS.fullmatch(text) for (text,) in reports(DocumentsConfig(), split)[:]]
    return [(re.findall(r"[^.]+\.", match[1]), match[2]) for match in matches]


@pytest.fixture(scope="module")
def texts():
    """The reports of the training split."""
    return read("train")


def is_near(counts, number):
    """Returns whether `number` things are equally frequent, except for chance."""
    expected = sum(counts.values()) / number
    return len(counts) == number and all(
        abs(count - expected) < 5 * expected**0.5 for count in counts.values()
    )


def test_a_summary_lists_the_facts_of_its_report_in_alphabetical_order(texts):
    for sentences, summary in texts:
        facts = [FACT.fullmatch(sentence.strip()) for sentence in sentences]
        found = sorted(match.groups() for match in facts if match)
        assert len({name for name, _ in found}) == len(found) == FACTS == 4
        assert summary == ", ".join(f"{name} {value}" for name, value in found)
        others = {sentence.strip() for sentence, match in zip(sentences, facts, strict=True) if not match}
        assert others <= set(FILLERS)


def test_all_values_of_all_attributes_are_equally_frequent(texts):
    counts = collections.Counter(fact for _, summary in texts for fact in summary.split(", "))
    assert set(counts) == {f"{name} {value}" for name, values in VALUES.items() for value in values}
    assert is_near(counts, 48)


def test_all_numbers_of_sentences_about_nothing_are_equally_frequent(texts):
    counts = collections.Counter(len(sentences) - FACTS for sentences, _ in texts)
    assert (min(counts), max(counts)) == SENTENCES == (4, 16)
    assert is_near(counts, 13)
    assert is_near(collections.Counter(s.strip() for text, _ in texts for s in text if "noted" not in s), 10)


def test_sentences_about_nothing_are_drawn_one_by_one(texts):
    """A sentence equals the one before it in a tenth of the cases."""
    drawn = [[s.strip() for s in sentences if "noted" not in s] for sentences, _ in texts]
    equal = [one == other for sentences in drawn for one, other in itertools.pairwise(sentences)]
    assert np.mean(equal) == pytest.approx(0.1, abs=0.005)


def test_facts_lie_anywhere_in_a_report(texts):
    """In a report of n sentences, each place has a fact with probability 4 / n."""
    sized = [sentences for sentences, _ in texts if len(sentences) == 12]
    shares = np.mean([[bool(FACT.search(sentence)) for sentence in text] for text in sized], axis=0)
    np.testing.assert_allclose(shares, 4 / 12, atol=5 * (0.25 / len(sized)) ** 0.5)


def test_facts_are_in_any_order(texts):
    ascending = 0
    for sentences, summary in texts[:2000]:
        names = [match[1] for match in map(FACT.search, sentences) if match]
        ascending += names == [fact.split()[0] for fact in summary.split(", ")]
    assert ascending / 2000 == pytest.approx(1 / 24, abs=0.03)


def test_splits_have_their_sizes_and_different_reports(texts):
    others = {split: read(split) for split in ("validation", "test")}
    assert (len(texts), len(others["validation"]), len(others["test"])) == (20_000, 200, 200)
    known = {" ".join(sentences) for sentences, _ in texts}
    for split in others.values():
        assert not known & {" ".join(sentences) for sentences, _ in split}
    assert others["validation"] != others["test"]


def test_the_content_of_a_split_has_its_fingerprint():
    fingerprints = [reports(DocumentsConfig(), split).fingerprint for split in ("test", "test", "validation")]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_another_split_is_an_error():
    with pytest.raises(MissingFile, match=r"train, validation, test.*'other'"):
        reports(DocumentsConfig(), "other")
