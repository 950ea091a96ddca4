"""Tests of the task of summarization."""

import dataclasses

import pytest

from tests.tasks.cases import make_summarization
from tfm.data.sources.opening import open_documents
from tfm.decoding.generate import Continuation
from tfm.errors import UserError
from tfm.systems.t_dmca import task as summarization


@pytest.fixture
def task(tmp_path):
    return summarization.create(make_summarization(tmp_path), str(tmp_path))


def test_documents_are_split_at_their_last_separator(task):
    texts = ["one; two; three four ", "five; six"]
    assert task.split_documents(texts) == (["one; two;", "five;"], ["three four", "six"])


def test_tokens_of_an_article_are_the_first_tokens_of_its_document(tmp_path):
    """Otherwise, a model that has learned the documents would see an unknown beginning of the summary."""
    config = make_summarization(tmp_path)
    data = dataclasses.replace(config.data, tokenizer="word_pieces", vocabulary_size=300)
    config = dataclasses.replace(config, data=data)
    task = summarization.create(config, str(tmp_path))
    documents = [text for (text,) in open_documents(data, "test")]
    prefixes, _ = task.split_documents(documents)
    for prefix, document in zip(*map(task.tokenizer.encode, (prefixes, documents)), strict=True):
        assert len(prefix) < len(document)
        assert document[: len(prefix)] == prefix


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
    assert all(prefix.endswith(";") for prefix in seen)
    assert report.scores[0].name == "exact match"
    assert report.scores[0].value == 100
