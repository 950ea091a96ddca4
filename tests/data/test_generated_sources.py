"""Tests of generated pairs and documents: copying, reversing, adding, and reports with summaries."""

import re

import pytest

from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.sources.opening import open_documents, open_pairs
from tfm.systems.t_dmca.reports import FACTS, SEPARATOR, reports
from tfm.systems.universal.algorithms import LENGTHS, MAX_TRAINED, add, copy, reverse

PAIRS, DOCUMENTS = PairsConfig(), DocumentsConfig()
ALGORITHMS = (copy, reverse, add)


@pytest.mark.parametrize("split", ["validation", "test", "double", "quadruple"])
def test_targets_are_the_results_of_the_algorithms(split):
    for source, target in copy(PAIRS, split):
        assert target == source
    for source, target in reverse(PAIRS, split):
        assert target.split() == source.split()[::-1]
    for source, target in add(PAIRS, split):
        first, second = (int(number[::-1]) for number in source.replace(" ", "").split("+"))
        assert int(target.replace(" ", "")[::-1]) == first + second


@pytest.mark.parametrize("function", ALGORITHMS)
@pytest.mark.parametrize("split", LENGTHS)
def test_test_splits_have_one_length(function, split):
    lengths = {len(source.split()) for source, _ in function(PAIRS, split)}
    assert lengths == {LENGTHS[split] - (function is add)}  # an even number of digits and a plus


@pytest.mark.parametrize("function", ALGORITHMS)
def test_training_has_no_longer_sources(function):
    lengths = {len(source.split()) for source, _ in function(PAIRS, "train")[:2000]}
    assert max(lengths) <= MAX_TRAINED
    assert len(lengths) >= 4


@pytest.mark.parametrize("function", [*ALGORITHMS, reports])
def test_rows_depend_only_on_the_split(function):
    first, again = (function(None, "validation") for _ in range(2))
    assert list(first) == list(again)
    assert first.fingerprint == again.fingerprint != function(None, "test").fingerprint
    assert list(first) != list(function(None, "test"))
    with pytest.raises(MissingFile, match="elsewhere"):
        function(None, "elsewhere")


def test_configs_open_the_functions_by_name():
    pairs = PairsConfig(kind="tfm.systems.universal.algorithms:reverse")
    assert list(open_pairs(pairs, "test")) == list(reverse(PAIRS, "test"))
    documents = DocumentsConfig(kind="tfm.systems.t_dmca.reports:reports")
    assert list(open_documents(documents, "test")) == list(reports(DOCUMENTS, "test"))


def test_summary_of_a_report_has_its_facts_in_alphabetical_order():
    for (text,) in reports(DOCUMENTS, "test"):
        article, summary = text.split(SEPARATOR)
        facts = re.findall(r"They noted the (\w+) (\w+)\.", article)
        assert len(facts) == FACTS
        assert summary == ", ".join(" ".join(fact) for fact in sorted(facts))
