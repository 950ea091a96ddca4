"""Tests of inputs longer than `decoding.max_input`, which are split or cut."""

import dataclasses

import pytest

from tests.support.tiny import randomize_weights
from tfm.decoding.hypotheses import TokenHypothesis
from tfm.tasks.translation import pipeline
from tfm.workdir import runs

MAX_INPUT = 14  # word pieces including EOS; a word has at most six
LONG, SHORT = "red dog small cat big bird blue dog runs red cat", "blue cat"


@pytest.fixture
def searched(monkeypatch):
    """Replaces the search by one that returns its input. Returns the list of (inputs, prefixes)."""
    calls = []

    def decode(model, params, inputs, config, n_best, prefixes, phrases, indices):
        calls.append((inputs, prefixes))
        return [[TokenHypothesis(ids[:-1], -1.0)] for ids in inputs]

    monkeypatch.setattr(pipeline, "translate_ids", decode)
    return calls


def translate(run, overflow, prefixes=None):
    decoding = dataclasses.replace(run.task.config.decoding, max_input=MAX_INPUT, overflow=overflow)
    return run.task.hypotheses(None, [LONG, SHORT], decoding, prefixes=prefixes)


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.mark.long
def test_only_the_first_part_of_a_split_input_has_the_prefix(run, searched):
    translate(run, "split", prefixes=["rot", "blau"])
    ((inputs, prefixes),) = searched
    rot, blau = run.task.tokenizer.encode(["rot", "blau"])
    assert len(inputs) > 2
    assert prefixes == [rot, *([] for _ in inputs[2:]), blau]


def test_translation_of_a_split_input_joins_its_parts_and_adds_their_scores(run, searched):
    (long,), (short,) = translate(run, "split")
    ((inputs, _),) = searched
    assert (long.text, short.text) == (LONG, SHORT)
    assert (long.score, short.score) == (1.0 - len(inputs), -1.0)
    assert max(map(len, inputs)) <= MAX_INPUT


def test_parts_without_a_translation_add_no_blanks(run, monkeypatch):
    def decode(model, params, inputs, config, n_best, prefixes, phrases, indices):
        return [[TokenHypothesis(ids[:-1] if number % 2 else [], -1.0)] for number, ids in enumerate(inputs)]

    monkeypatch.setattr(pipeline, "translate_ids", decode)
    (long,), _ = translate(run, "split")
    assert long.text
    assert long.text == " ".join(long.text.split())


def test_cut_input_is_searched_once(run, searched):
    (long,), (short,) = translate(run, "cut")
    ((inputs, _),) = searched
    assert len(inputs) == 2
    assert LONG.startswith(long.text)
    assert short.text == SHORT


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["我喜欢。", "他不来。"], "我喜欢。他不来。"),
        (["私は", "好きです"], "私は好きです"),
        (["가다.", "오다."], "가다. 오다."),
        (["가", "오"], "가 오"),
        (["Yes.", "No."], "Yes. No."),
        (["", "No."], "No."),
        (["", ""], ""),
    ],
)
def test_parts_are_joined_with_blanks_only_where_the_script_has_blanks(texts, expected):
    (joined,) = pipeline.join_parts([[pipeline.Hypothesis(text, -1.0)] for text in texts], 1)
    assert joined == pipeline.Hypothesis(expected, -float(len(texts)))
