"""Tests of the comparison of two runs on a test set."""

import dataclasses
import math
import pathlib
import random

import pytest

from tests.support.commands import run_command
from tests.support.records import write_record
from tests.support.tiny import make_config, write_corpus
from tfm.commands import compare
from tfm.config import save
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.workdir import runs

SPLIT = "test"


@pytest.fixture
def folder(tmp_path):
    """Returns the folder of a corpus with 60 test sentences."""
    write_corpus(tmp_path, sizes=(("test", 60),))
    return tmp_path


def references(folder):
    return (folder / "test.de").read_text(encoding="utf-8").splitlines()


def worse(texts, share, seed=0):
    """Shuffles the words of a share of the texts and drops one word of each of them."""
    rng = random.Random(seed)
    broken = (rng.sample(text.split(), len(text.split()))[1:] for text in texts)
    return [
        " ".join(words) if rng.random() < share else text for text, words in zip(texts, broken, strict=True)
    ]


def evaluated(folder, name, hypotheses, corpus=None):
    """Writes the files of a run and of its evaluation that a comparison reads."""
    workdir = folder / name
    workdir.mkdir()
    save(make_config(corpus or folder), runs.config_path(str(workdir)))
    if hypotheses is not None:
        add_evaluation(workdir, "test", hypotheses)
    return str(workdir)


def add_evaluation(workdir, name, hypotheses, **fields):
    """Writes the hypotheses and the record of an evaluation with a name, as `tfm evaluate` does."""
    text = "".join(line + "\n" for line in hypotheses)
    pathlib.Path(workdir, f"{name}.de.hypotheses").write_text(text, encoding="utf-8")
    config = runs.open_folder(str(workdir)).config
    fields = {
        "split": "test",
        "texts": fingerprint_texts(*read_sides(config.data, "test")),
        "decoding": config.evaluation_settings,
        "data": dataclasses.asdict(config.data),
        "sentences": len(hypotheses),
    } | fields
    write_record(f"{workdir}/{name}.de.scores.json", **fields)


def systems(folder, first, second):
    return compare.read_systems(evaluated(folder, "a", first), evaluated(folder, "b", second), SPLIT)


def test_different_translations_of_one_sentence_have_no_p_value():
    rows = translation_metrics.paired_bootstrap(["a b c d"], ["a b c"], ["a b c d e"])
    assert [math.isnan(row.p_value) for row in rows] == [True] * 3


def test_equal_translations_of_one_sentence_do_not_differ():
    rows = translation_metrics.paired_bootstrap(["a b"], ["a b"], ["a b"])
    assert [row.p_value for row in rows] == [1.0] * 3


def bootstrap(folder, first, second):
    return translation_metrics.paired_bootstrap(first, second, references(folder))


def test_read_systems_returns_aligned_texts(folder):
    right = references(folder)
    first, second = systems(folder, right, worse(right, 0.5))
    assert first.sources == second.sources == (folder / "test.en").read_text(encoding="utf-8").splitlines()
    assert first.references == first.hypotheses == right
    assert second.hypotheses == worse(right, 0.5)
    assert first.language == "de"


def test_names_select_evaluations(folder):
    right = references(folder)
    run, other = evaluated(folder, "a", right), evaluated(folder, "b", None)
    add_evaluation(run, "averaged", worse(right, 0.5))
    add_evaluation(other, "averaged", worse(right, 0.7))

    def read(first, second, *names):
        return [system.hypotheses for system in compare.read_systems(first, second, SPLIT, names)]

    assert read(run, run, "test", "averaged") == [right, worse(right, 0.5)]
    assert read(run, other, "averaged") == [worse(right, 0.5), worse(right, 0.7)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test", "wide"], "tfm evaluate --workdir=.*/a --split=test --name=wide"),
        (["a", "b", "c"], "a, b, c"),
    ],
)
def test_names_of_missing_evaluations_or_too_many_names_are_errors(names, message, folder):
    run = evaluated(folder, "a", references(folder))
    with pytest.raises(UserError, match=message):
        compare.read_systems(run, run, SPLIT, names)


def test_test_set_may_be_a_file_stem(folder):
    right = references(folder)
    run = evaluated(folder, "a", right)
    first, second = compare.read_systems(run, run, str(folder / "test"))
    assert first.hypotheses == second.references == right


def test_system_does_not_differ_from_itself(folder):
    hypotheses = worse(references(folder), 0.5)
    for row in bootstrap(folder, hypotheses, hypotheses):
        assert row.p_value == 1
        assert row.first.score == row.second.score
    assert not compare.most_different(*systems(folder, hypotheses, hypotheses), 5)


@pytest.mark.parametrize("swapped", [False, True])
def test_worse_system_differs_in_every_metric(folder, swapped):
    right = references(folder)
    pair = [worse(right, 0.1), worse(right, 0.9)]
    rows = bootstrap(folder, *(pair[::-1] if swapped else pair))
    assert [row.name for row in rows] == ["BLEU", "chrF2", "TER"]
    assert all(row.p_value < 0.01 for row in rows)
    assert all(abs(row.first.score - row.second.score) > row.first.ci + row.second.ci for row in rows)
    assert all((row.first.score > row.second.score) == (swapped == (row.name == "TER")) for row in rows)
    expected = {score.name: score.value for score in translation_metrics.scores(pair[swapped], right, "de")}
    for row in rows:
        assert row.first.score == pytest.approx(expected[row.name])
        assert "|bs:1000|seed:12345|" in row.signature


def test_sentences_that_differ_most_come_first(folder):
    right = references(folder)
    wrong = [*right]
    wrong[3] += "x"
    wrong[7] = "ganz anders"
    both = systems(folder, wrong, right)
    found = compare.most_different(*both, 5)
    assert [number for number, *_ in found] == [8, 4]
    assert found[0][1] < found[1][1] < found[0][2] == pytest.approx(100)
    assert compare.most_different(*both, 1) == found[:1]
    assert compare.most_different(*both, 0) == []


@pytest.mark.parametrize("language", ["en", "de"])
def test_test_sets_with_different_texts_are_an_error(folder, language):
    other = folder / "other"
    other.mkdir()
    write_corpus(other, sizes=(("test", 60),))
    file = other / f"test.{language}"
    file.write_text(file.read_text(encoding="utf-8").replace("r", "R", 1), encoding="utf-8")
    first = evaluated(folder, "a", references(folder))
    second = evaluated(folder, "b", references(folder), corpus=other)
    with pytest.raises(UserError, match="different sources or references"):
        compare.read_systems(first, second, SPLIT)


def test_test_sets_of_different_sizes_are_an_error(folder):
    with pytest.raises(UserError, match=r"\b59\b.*\b60\b"):
        systems(folder, references(folder), references(folder)[:-1])


def test_hypotheses_of_other_texts_are_an_error(folder):
    """The number of hypotheses equals that of the test set, but they belong to other texts."""
    texts = (folder / "test.en").read_text(encoding="utf-8").splitlines()
    first, second = (evaluated(folder, name, references(folder)) for name in "ab")
    report = pathlib.Path(second, "test.de.scores.json")
    compare.read_systems(first, second, SPLIT)
    other = fingerprint_texts(texts[::-1], references(folder))
    add_evaluation(second, "test", references(folder), texts=other)
    with pytest.raises(UserError, match=f"{report} and its hypotheses belong to other texts"):
        compare.read_systems(first, second, SPLIT)


def test_evaluation_of_an_export_is_compared_on_the_data_of_its_record(folder):
    """The config of an export has no folder of the data. tfm evaluate had it from the command line."""
    first, second = (evaluated(folder, name, references(folder)) for name in "ab")
    config = make_config(folder)
    texts = (folder / "test.en").read_text(encoding="utf-8").splitlines()
    for workdir in (first, second):
        save(config.without_paths(), runs.config_path(workdir))
    assert compare.read_systems(first, second, SPLIT)[1].sources == texts
    write_record(f"{second}/test.de.scores.json", data=dataclasses.asdict(config.data) | {"train": 5})
    with pytest.raises(UserError, match=r"data in .*test\.de\.scores\.json\.train"):
        compare.read_systems(first, second, SPLIT)


def test_systems_have_the_tokenizer_of_their_evaluation(folder):
    first, second = (evaluated(folder, name, references(folder)) for name in "ab")
    settings = make_config(folder).evaluation_settings | {"bleu_tokenizer": "zh"}
    for workdir in (first, second):
        add_evaluation(workdir, "test", references(folder), decoding=settings)
    assert [system.tokenizer for system in compare.read_systems(first, second, SPLIT)] == ["zh", "zh"]


@pytest.mark.long
def test_compare_prints_scores_and_sentences(folder):
    right = references(folder)
    wrong = [right[0] + "x", *worse(right[1:], 0.9)]
    first, second = evaluated(folder, "a", right), evaluated(folder, "b", wrong)
    result = run_command("compare", first, second, "--sentences=2")
    assert result.code == 0, result.error
    printed = result.output
    assert f"A  {first}/test.de.hypotheses\nB  {second}/test.de.hypotheses\n60 sentences\n" in printed
    assert all(score.name in printed for score in translation_metrics.scores(wrong, right, "de"))
    assert "0.0010  nrefs:1|bs:1000|seed:12345|" in printed
    assert printed.count("\nsentence ") == printed.count("\nsource     ") == 2
    assert f"\nreference  {right[0]}\nA          {right[0]}\n" not in printed  # other sentences differ more


def test_error_without_hypotheses_asks_to_run_evaluate(folder):
    first, second = evaluated(folder, "a", references(folder)), evaluated(folder, "b", None)
    with pytest.raises(UserError) as error:
        compare.main([first, second])
    assert str(error.value) == (
        f"Expected hypotheses in {second}/test.de.hypotheses, but there are none: "
        f"run tfm evaluate --workdir={second} --split=test first."
    )


def test_single_run_is_an_error(folder):
    with pytest.raises(UserError) as error:
        compare.main([str(folder)])
    assert str(error.value) == f"Expected DIR_A DIR_B in addition to the flags, got {folder}."
