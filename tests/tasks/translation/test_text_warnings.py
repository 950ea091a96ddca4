"""Tests of the warnings about texts that a model reads but has not learned to translate."""

import dataclasses
import logging

import pytest

import tfm
from tests.support.tiny import randomize_weights
from tests.support.tokenizers import make_json, train_model
from tfm.commands.config_files import read_config_file
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.unknown_text import UnknownTextWarning, find_unknown, find_unknown_parts
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.decoding.hypotheses import TokenHypothesis
from tfm.tasks.translation import pipeline
from tfm.tasks.translation.task import Translation
from tfm.tasks.translation.text_form import TextForm
from tfm.workdir import runs

TEXTS = ["the dog sleeps", "a cat sees the big dog"] * 30


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture
def answers(monkeypatch):
    """Replaces the search. Returns the list of the (ids, score) that it returns for each input."""
    hypotheses = []

    def decode(model, params, inputs, config, *, n_best, **_):
        return [[TokenHypothesis(ids, score) for ids, score in hypotheses[:n_best]] for _ in inputs]

    monkeypatch.setattr(pipeline, "translate_ids", decode)
    return hypotheses


def list_warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("quickstart", marks=pytest.mark.long),  # reading the rules takes a second
        pytest.param("quickstart_both_directions", marks=pytest.mark.long),
        pytest.param("quickstart_rnn", marks=pytest.mark.long),
        "table3_small",
    ],
)
def test_vocabulary_of_the_built_in_language_folds_blanks(name, tmp_path):
    """Two blanks and no-break spaces, which training never saw, are blanks."""
    config, _ = read_config_file(f"configs/{name}.py")
    normalization = config.data.normalization
    tokenizer = learn_word_pieces(TEXTS, 300, str(tmp_path / "v.model"), normalization=normalization)
    plain, *others = tokenizer.encode(["the dog", "the  dog", "the\u00a0dog", " the dog\u3000"])
    assert others == [plain] * 3
    if name.startswith("quickstart"):
        typed, straight = tokenizer.encode(["the dog\u2019s \u201ccat\u201d", 'the dog\'s "cat"'])
        assert typed == straight
    assert find_unknown(tokenizer, ["the\u00a0dog"]) == []


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (lambda: WordPieces(train_model(TEXTS)), "\u201cthe\u00a0dog\u201d", ["\u201c", "\u201d"]),
        (lambda: TokenizerJson(make_json("bytes", texts=TEXTS)), "\u201cthe\u00a0dog", []),
        (lambda: TokenizerJson(make_json("unigram", texts=TEXTS)), "the \u96e8 dog", ["\u96e8"]),
        (lambda: TokenizerJson(make_json("words", texts=TEXTS)), "the god sees", ["god"]),
    ],
)
def test_unknown_parts_are_characters_or_words(tokenizer, text, expected):
    assert find_unknown(tokenizer(), [text, *TEXTS[:2]]) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("words", "the zebra sees \u2603 zebra", ["zebra", "\u2603"]),
        ("unigram", "the dog\u2603 sees", ["\u2603"]),
        ("bytes", "the zebra \u2603", []),
    ],
)
def test_unknown_letters_are_marked_as_the_words_that_contain_them(kind, text, expected):
    assert find_unknown_parts(TokenizerJson(make_json(kind, texts=TEXTS)), text) == expected


def test_one_warning_names_the_unknown_characters(run, answers, caplog):
    answers.append(([9], -1.0))
    form = TextForm(run.task.tokenizer)
    task = Translation(run.task.config, run.task.tokenizer)
    texts = ["red\u00a0dog", "\u201cred dog\u201d", "big cat"]
    for _ in range(2):
        task.translate(run.params, texts)
    (warning,) = list_warnings(caplog)
    assert all(code in warning for code in ("U+00A0", "U+201C", "U+201D", "2 of 3 texts"))
    caplog.clear()
    form.encode_sources(["red dog", ""])
    assert not list_warnings(caplog)


@pytest.mark.parametrize(
    ("normalization", "text", "advice"),
    [
        ("none", "\u201cthe\u00a0dog\u201d", "data.normalization=nmt_nfkc, which folds '\\xa0' (U+00A0)"),
        ("none", "\u201cthe dog\u201d", None),
        (
            "nmt_nfkc",
            "the dog\u2014\u201ea\u201d",
            "data.normalization=nmt_nfkc_quotes, which folds '\u2014' (U+2014)",
        ),
        ("none", "the dog \uff04", None),
        ("nmt_nfkc", "\u201cthe\u00a0dog\u201d", None),
    ],
)
def test_normalization_is_advised_if_it_folds_the_characters(normalization, text, advice, tmp_path, caplog):
    """The vocabulary may lack the folded character as well: it has a hyphen, but no straight quotes."""
    texts = [*TEXTS, "a big-dog"]
    tokenizer = learn_word_pieces(texts, 300, str(tmp_path / "v.model"), normalization=normalization)
    UnknownTextWarning("translations", has_normalization=True).check(tokenizer, [text])
    (warning,) = list_warnings(caplog)
    assert warning.endswith(advice or "Replace them with text that the training data contain")


def test_many_unknown_characters_are_named_in_part(run, caplog):
    form = TextForm(run.task.tokenizer)
    form.encode_sources(["".join(map(chr, range(0x4E00, 0x4E30)))])
    form.encode_sources(["\u5000"])
    (warning,) = list_warnings(caplog)
    assert "and 28 more" in warning


def test_empty_translation_of_a_text_is_a_warning(run, answers, caplog):
    answers.append(([], -1.0))
    assert run.task.translate(run.params, ["red dog", " "]) == ["", ""]
    (warning,) = list_warnings(caplog)
    assert "1 of 2 texts have an empty translation, for example 'red dog'" in warning


def test_prefixes_and_phrases_of_empty_texts_are_named(run, answers, caplog):
    answers.append((run.task.tokenizer.encode(["rot"])[0], -1.0))
    run.task.hypotheses(run.params, ["red", " "], prefixes=["", "rot"], phrases=[["rot"], ["rot"]])
    assert sorted(list_warnings(caplog)) == [
        f"Ignored the {name} of 1 empty texts, because the translation of an empty text is empty"
        for name in ("phrases", "prefixes")
    ]


def test_texts_of_an_n_best_list_differ(run, answers):
    """Pieces of one text may be divided in several ways. The search looks for enough other texts."""
    rot, hund = run.task.tokenizer.encode(["rot", "hund"])
    letters = [i for letter in "rot" for i in run.task.tokenizer.encode(["x" + letter])[0][-1:]]
    (start,) = run.task.tokenizer.encode([" "]) or [[]]
    answers += [(rot, -1.0), ([*start, *letters], -2.0), (hund, -3.0)]
    assert {run.task.form.decode(ids) for ids, _ in answers[:2]} == {"rot"}
    decoding = dataclasses.replace(run.task.config.decoding, beam_size=3)
    (found,) = run.task.hypotheses(run.params, ["red"], decoding, n_best=2)
    assert found == [("rot", -1.0), ("hund", -3.0)]


@pytest.mark.parametrize(
    ("tags", "texts", "expected"),
    [
        ("<de>,<en>", ["<de> red", "<en> blue", ""], []),
        ("<de>,<en>", ["<de> red", "blue", "red"], ["2 of 3 texts begin with no tag"]),
        ("<de>,<en>", ["<dd> red"], ["<dd> begins a text, but is no tag of data.tags (<de>, <en>)"]),
        ("<de>,", ["red"], []),
        ("<de>,", [">>de<< red"], [">>de<< begins a text"]),
        ("", ["<dd> red"], []),
    ],
)
def test_missing_and_unknown_tags_are_a_warning(tags, texts, expected, run, answers, caplog):
    answers.append(([9], -1.0))
    data = dataclasses.replace(run.task.config.data, tags=tags)
    task = Translation(dataclasses.replace(run.task.config, data=data), run.task.tokenizer)
    for _ in range(2):
        tfm.Translator(run._replace(task=task)).translate(texts)
    warnings = [warning for warning in list_warnings(caplog) if "vocabulary lacks" not in warning]
    assert len(warnings) == len(expected)
    assert all(start in warning for start, warning in zip(expected, warnings, strict=True))
