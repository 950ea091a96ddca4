"""Tests of prefixes of sources and targets, and of a tokenizer for each side."""

import dataclasses

import numpy as np
import pytest

import tfm
from tests.support.tiny import make_config, randomize_weights
from tests.support.tokenizers import make_json, train_model
from tfm.data.config import PairsConfig
from tfm.data.source import hold, prefix_targets
from tfm.data.sources.opening import open_corpora, open_pairs, read_sides
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.errors import UserError
from tfm.evaluation.translation_metrics import bleu
from tfm.tasks.translation import pipeline
from tfm.tasks.translation.report import score_corpora
from tfm.tasks.translation.task import Translation
from tfm.tasks.translation.text_form import TextForm
from tfm.workdir import runs

SOURCES = ["red dog", "big cat runs", "small bird sleeps"]


def with_data(task, **fields):
    """Returns the task with other fields of the data."""
    config = dataclasses.replace(task.config, data=dataclasses.replace(task.config.data, **fields))
    return Translation(config, task.tokenizer)


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


def test_training_texts_begin_with_the_prefixes(corpus):
    data = make_config(corpus).data
    plain = open_pairs(data, "train")
    prefixed = open_pairs(dataclasses.replace(data, source_prefix="<de>", target_prefix="a b"), "train")
    assert list(prefixed) == [(f"<de> {source}", f"a b {target}") for source, target in plain]
    assert prefixed.fingerprint != plain.fingerprint


def test_evaluation_reads_the_texts_without_prefixes(corpus):
    data = make_config(corpus).data
    prefixed = dataclasses.replace(data, source_prefix="<de>", target_prefix="<de>")
    assert read_sides(prefixed, "test") == read_sides(data, "test")


@pytest.mark.long
def test_source_prefix_is_added_once(run):
    task = with_data(run.task, source_prefix="big")
    by_hand = run.task.translate(run.params, [f"big {text}" for text in SOURCES])
    assert task.translate(run.params, [f"big {text}" for text in SOURCES]) == by_hand
    expected = [by_hand[0], run.task.translate(run.params, ["big cat runs"])[0], by_hand[2]]
    assert task.translate(run.params, SOURCES) == expected


@pytest.mark.long
def test_predictions_begin_with_the_target_prefix_and_lose_it(run):
    forced = run.task.hypotheses(run.params, SOURCES, prefixes=["hund rennt"] * len(SOURCES))
    hypotheses = with_data(run.task, target_prefix="hund rennt").hypotheses(run.params, SOURCES)
    for (theirs, *_), (ours, *_) in zip(forced, hypotheses, strict=True):
        assert theirs.text.startswith("hund rennt")
        assert ours.text.strip() == theirs.text.removeprefix("hund rennt").strip()
        np.testing.assert_allclose(ours.score, theirs.score, rtol=1e-5)


def test_each_part_of_a_long_input_has_the_prefixes(run, monkeypatch):
    calls = []

    def record(model, params, inputs, decoding, *, prefixes, **_):
        calls.append((inputs, prefixes))
        return [[([], 0.0)] for _ in inputs]

    monkeypatch.setattr(pipeline, "translate_ids", record)
    task = with_data(run.task, source_prefix="big", target_prefix="hund")
    decoding = dataclasses.replace(task.config.decoding, max_input=12, max_extra_tokens=4)
    task.translate(run.params, [" ".join(4 * SOURCES)], decoding)
    ((inputs, prefixes),) = calls
    (lead,), (forced,) = (task.tokenizer.encode([text]) for text in ("big", "hund"))
    assert len(inputs) > 1
    assert all(ids[: len(lead)] == lead and len(ids) <= 12 for ids in inputs)
    assert prefixes == [forced] * len(inputs)


def test_each_part_of_a_long_input_has_its_tag(run):
    form = with_data(run.task, tags="__a__,__a__b__").form
    tags = form.tokenizer.encode(["__a__", "__a__b__"])
    texts = form.encode_sources(["__a__b__ red dog", "__a__ red dog", "red __a__ dog", "__a__x__ dog"])
    assert [text.lead for text in texts] == [tags[1], tags[0], [], []]


def test_tags_and_a_prefix_of_sources_exclude_each_other():
    with pytest.raises(UserError, match=r"data\.tags and data\.source_prefix exclude"):
        PairsConfig(kind="text", tags="<a>,<b>", source_prefix="big")


@pytest.mark.parametrize("text", ["the cat", "the the cat", "theater", "", "the"])
def test_decoded_target_is_the_encoded_text(text, run):
    """The prefix is removed once, also if the text itself begins with it."""
    form = with_data(run.task, target_prefix="the").form
    (encoded,) = form.encode_targets([text])
    assert form.tokenizer.decode(encoded.ids).split() == ["the", *text.split()]
    assert form.decode(encoded.ids) == text
    data = [(text, text)] if text else []
    assert [target for _, target in prefix_targets(hold(data, ""), "the")] == [f"the {text}"] * len(data)


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_forced_beginning_after_a_prefix_has_the_ids_of_training(kind):
    tokenizer = TokenizerJson(make_json(kind, texts=["Die Frau schläft . <de> Die Katze"]))
    form = TextForm(tokenizer, target_prefix="<de>")
    training = prefix_targets(hold([("The cat", "Die Katze")], ""), "<de>")
    (whole,) = tokenizer.encode([target for _, target in training])
    (ids,) = form.encode_beginnings(["Die "])
    assert whole[: len(ids)] == ids
    assert form.encode_phrases(["Katze", " "]) == [whole[-len(form.encode_phrases(["Katze"])[0]) :]]
    assert form.decode(whole) == "Die Katze"


@pytest.mark.long
def test_white_space_at_the_ends_of_a_text_changes_nothing(run, tmp_path, caplog):
    """Lines of a file that is given as a list of texts have line ends."""
    translator = tfm.Translator(run)
    for name, text in (("source", "red dog\n"), ("target", "rot hund\r\n")):
        (tmp_path / name).write_text(text)
    with open(tmp_path / "source") as sources, open(tmp_path / "target", newline="") as targets:
        lines = translator.score(sources, targets)
    np.testing.assert_array_equal(lines, translator.score(["red dog"], ["rot hund"]))
    assert translator.align(["red dog "], [" rot hund"]) == translator.align(["red dog"], ["rot hund"])
    assert not caplog.records
    forced = translator.hypotheses(["red dog"], prefixes=["rot "])
    assert forced == translator.hypotheses(["red dog"], prefixes=["rot"])
    (text,) = forced[0]
    assert "  " not in text.text


@pytest.mark.long
def test_words_of_a_prefix_have_no_alignment(run):
    task = with_data(run.task, source_prefix="big cat", target_prefix="gross")
    ((*links,),) = [
        sorted(pairs, key=lambda link: link[1]) for pairs in task.align(run.params, ["red dog"], ["rot hund"])
    ]
    assert [target for _, target in links] == [0, 1]
    assert {source for source, _ in links} <= {0, 1}


@pytest.mark.long
def test_score_of_a_pair_includes_the_prefixes(run):
    task = with_data(run.task, source_prefix="big", target_prefix="hund")
    (ours,) = task.score(run.params, ["red dog"], ["rot"])
    (expected,) = run.task.score(run.params, ["big red dog"], ["hund rot"])
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_tokenizer_of_the_source_is_read_from_the_folder_of_a_run(tiny_run, tmp_path):
    content = (tiny_run / "vocabulary.model").read_bytes()
    (tmp_path / "vocabulary.model").write_bytes(content)
    (tmp_path / "source_vocabulary.model").write_bytes(content)
    tokenizer = load_word_pieces(str(tmp_path / "vocabulary.model"))
    assert tokenizer.source is not tokenizer
    task = Translation(runs.load(str(tiny_run)).task.config, tokenizer)
    assert task.assets() == dict.fromkeys(
        ("vocabulary.model", "source_vocabulary.model"), tokenizer.fingerprint
    )


def test_tokenizers_of_different_sizes_are_refused(tiny_run, tmp_path):
    (tmp_path / "vocabulary.model").write_bytes((tiny_run / "vocabulary.model").read_bytes())
    (tmp_path / "source_vocabulary.model").write_bytes(train_model())
    with pytest.raises(UserError, match=r"source_vocabulary\.model.*ids"):
        load_word_pieces(str(tmp_path / "vocabulary.model"))


@pytest.mark.long
def test_source_is_encoded_by_its_own_tokenizer(run):
    tokenizer = reverse_sources(run.task.tokenizer)
    task = Translation(run.task.config, tokenizer)
    (ours,) = task.score(run.params, ["red dog"], ["rot"])
    (expected,) = run.task.score(run.params, ["dog red"], ["rot"])
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_words_of_sources_are_divided_by_their_own_tokenizer(run):
    own, calls = run.task.tokenizer, []

    class Recorded(type(own)):
        def word_starts(self, ids):
            calls.append(self.decode(list(ids)))
            return super().word_starts(ids)

    _, (content,) = own.__reduce__()
    target = type(own)(content)
    target.source = Recorded(content)
    task = Translation(run.task.config, target)
    task.align(run.params, ["red dog"], ["rot hund"])
    assert calls == ["red dog"]
    task.observe({"params": run.params}, "big red dog", 20)
    assert calls[1:] == ["big red dog"]


def reverse_sources(tokenizer):
    """Returns a tokenizer whose sources have their words in reverse order."""

    class Reversed(type(tokenizer)):
        def encode(self, texts):
            return super().encode([" ".join(reversed(text.split())) for text in texts])

    _, (content,) = tokenizer.__reduce__()
    target = type(tokenizer)(content)
    target.source = Reversed(content)
    return target


DIRECTIONS = PairsConfig(kind="builtin", test="test, reversed:test", tags="<de>,<en>")


def test_built_in_language_is_read_in_both_directions():
    forward, backward = open_corpora(DIRECTIONS, "test")
    for (source, target), (reversed_source, reversed_target) in zip(forward[:5], backward[:5], strict=True):
        assert source == f"<de> {reversed_target}"
        assert reversed_source == f"<en> {target}"
    assert forward.fingerprint != backward.fingerprint


def test_each_direction_has_a_score():
    references = [target for _, target in [*open_pairs(DIRECTIONS, "test")]]
    half = len(references) // 2
    hypotheses = references[:half] + [""] * half
    scores = score_corpora(DIRECTIONS, "test", hypotheses, references, "13a")
    assert [score.name for score in scores] == ["BLEU, test", "BLEU, reversed:test"]
    assert scores[0].value == pytest.approx(bleu(references[:half], references[:half]).value)
    assert scores[1].value == 0
    assert score_corpora(PairsConfig(kind="builtin"), "test", references, references, "13a") == []


@pytest.mark.long
def test_translations_contain_the_phrases_of_their_line(run):
    phrases = [["hund rennt"], [], ["gross", "vogel"]]
    texts = [best.text for best, *_ in run.task.hypotheses(run.params, SOURCES, phrases=phrases)]
    assert all(phrase in text for text, wanted in zip(texts, phrases, strict=True) for phrase in wanted)
    assert texts[1] == run.task.translate(run.params, SOURCES)[1]


@pytest.mark.long
def test_translations_with_phrases_begin_with_their_prefix(run):
    prefixes, phrases = ["vogel", "hund", ""], [["hund rennt"], ["gross"], []]
    best = run.task.hypotheses(run.params, SOURCES, prefixes=prefixes, phrases=phrases)
    texts = [hypotheses[0].text for hypotheses in best]
    assert all(text.startswith(prefix) for text, prefix in zip(texts, prefixes, strict=True))
    assert all(phrase in text for text, wanted in zip(texts, phrases, strict=True) for phrase in wanted)


def test_every_sentence_has_a_list_of_phrases(run):
    with pytest.raises(UserError, match="phrases for 3 sentences, got 1"):
        run.task.hypotheses(run.params, SOURCES, phrases=[["rot"]])
    with pytest.raises(UserError, match="phrases"):
        run.task.hypotheses(run.params, SOURCES, phrases=["rot", "rot", "rot"])


def test_phrases_need_a_beam_search(run):
    decoding = dataclasses.replace(run.task.config.decoding, beam_size=1)
    with pytest.raises(UserError, match=r"decoding\.beam_size"):
        run.task.hypotheses(run.params, SOURCES, decoding, phrases=[["a"], [], []])
