"""Tests of the task of summarization."""

import dataclasses
import json

import pytest

from tests.tasks.cases import make_summarization
from tfm.data.sources.opening import open_documents
from tfm.decoding.generate import Continuation
from tfm.errors import UserError
from tfm.systems.t_dmca import task as summarization
from tfm.systems.t_dmca.summaries import SummariesConfig, split_documents


@pytest.fixture
def task(tmp_path):
    return summarization.create(make_summarization(tmp_path), str(tmp_path))


def test_documents_are_split_at_their_last_separator():
    texts = ["one; two; three four ", "five; six"]
    assert split_documents(texts, "; ") == (["one; two;", "five;"], ["three four", "six"])


def test_tokens_of_an_article_are_the_first_tokens_of_its_document(tmp_path):
    """Otherwise, a model that has learned the documents would see an unknown beginning of the summary."""
    config = make_summarization(tmp_path)
    data = dataclasses.replace(config.data, tokenizer="word_pieces", vocabulary_size=300)
    config = dataclasses.replace(config, data=data)
    task = summarization.create(config, str(tmp_path))
    documents = [text for (text,) in open_documents(data, "test")]
    prefixes, _ = split_documents(documents, "; ")
    for prefix, document in zip(*map(task.tokenizer.encode, (prefixes, documents)), strict=True):
        assert len(prefix) < len(document)
        assert document[: len(prefix)] == prefix


def test_document_without_separator_is_an_error():
    with pytest.raises(UserError, match=r"'; '.*document 2 .*data\.before_summary"):
        split_documents(["one; two", "one two"], "; ")


@pytest.mark.parametrize("split", ["train", "test"])
def test_document_without_separator_is_an_error_before_training(tmp_path, split):
    config = make_summarization(tmp_path)
    (path,) = tmp_path.glob(f"{split}*")
    path.write_text(f"{path.read_text()}\na document without a summary\n")
    with pytest.raises(UserError, match=rf"'{split}': .*'; '.* data\.before_summary"):
        summarization.create(config, str(tmp_path))


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


def test_summary_that_contains_the_text_before_it_is_an_error_of_a_report(tmp_path):
    """A split of tfm evaluate need not be a split of the run. The text would end the article too late."""
    rows = [{"document": f"article {i}", "summary": "one; two"} for i in range(2)]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = SummariesConfig(
        kind="table",
        directory=str(tmp_path),
        feature="document",
        summary_column="summary",
        before_summary="; ",
        tokenizer="bytes",
    )
    task = summarization.plan(summarization.Config(data=data))
    with pytest.raises(UserError, match=r"summary of row 1 of the split 'other'.*data\.before_summary"):
        next(task.report({"params": None}, "other"))


class Clock:
    """A clock that advances by four seconds at each look."""

    seconds = 0.0

    @classmethod
    def monotonic(cls):
        cls.seconds += 4
        return cls.seconds


def test_report_has_the_best_continuation_of_each_article_on_one_line(task, monkeypatch):
    decodings = []

    def generate(params, prefixes, decoding):
        decodings.append((params, decoding.samples))
        return [[Continuation(f"\n the  {i} \n", -1.0), Continuation("worse", -2.0)] for i in range(8)]

    sampling = dataclasses.replace(task.config, decoding=dataclasses.replace(task.config.decoding, samples=3))
    task = summarization.Summarization(sampling, task.tokenizer)
    monkeypatch.setattr(task, "generate", generate)
    monkeypatch.setattr(summarization, "time", Clock)
    (report,) = task.report({"params": "parameters"}, "test")
    assert decodings == [("parameters", 0)]
    assert report.outputs == [f"the {i}" for i in range(8)]
    assert report.rate == 2
    assert report.settings["samples"] == 0
    texts = [text.strip() for (text,) in open_documents(task.config.data, "test")]
    for example, text, output in zip(report.examples, texts, report.outputs, strict=True):
        assert text == f"{example['article']} {example['reference']}"
        assert example["summary"] == output


def test_the_identity_of_a_report_depends_on_articles_and_summaries(task, monkeypatch):
    monkeypatch.setattr(task, "generate", lambda _, prefixes, __: [[Continuation("", 0.0)] for _ in prefixes])

    def identify(*documents):
        monkeypatch.setattr(summarization, "open_documents", lambda *_: [(text,) for text in documents])
        (report,) = task.report({"params": None}, "test")
        return report.identity

    identities = [identify("one; two"), identify("one; three"), identify("four; two")]
    assert len(set(identities)) == 3
    assert identify("one; two") == identities[0]


def test_a_separator_of_blanks_remains():
    assert split_documents(["one  two   three "], "  ") == (["one  two   "], ["three"])


def test_words_of_a_summary_have_one_blank_between_them():
    assert split_documents(["one; two \n three"], "; ") == (["one;"], ["two three"])
