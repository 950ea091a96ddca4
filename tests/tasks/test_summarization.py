"""Tests of the task of summarization."""

import pytest

from tests.tasks.cases import make_summarization
from tfm.decoding.generate import Continuation
from tfm.errors import UserError
from tfm.tasks import summarization


@pytest.fixture
def task(tmp_path):
    return summarization.create(make_summarization(tmp_path), str(tmp_path))


def test_documents_are_split_at_their_last_separator(task):
    texts = ["one; two; three four ", "five; six"]
    assert task.split_documents(texts) == (["one; two; ", "five; "], ["three four", "six"])


def test_document_without_separator_is_an_error(task):
    with pytest.raises(UserError, match=r"'; '.*document 2 .*separator"):
        task.split_documents(["one; two", "one two"])


def test_report_compares_the_continuation_of_articles_with_their_summaries(task, monkeypatch):
    seen = []

    def generate(params, prefixes, decoding):
        seen.extend(prefixes)
        return [[Continuation(f" {prefix.split()[0].rstrip(';')}\n", 0.0)] for prefix in prefixes]

    monkeypatch.setattr(task, "generate", generate)
    (report,) = task.report({"params": None}, "test")
    assert len(seen) == 8
    assert all(prefix.endswith("; ") for prefix in seen)
    assert report.scores[0].name == "exact match"
    assert report.scores[0].value == 100
