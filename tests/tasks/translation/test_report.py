"""Tests of scores other than sacreBLEU: perplexity, and the challenges of the built-in language."""

import dataclasses
import types
from unittest import mock

import jax
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.programs import initialize
from tests.support.tiny import randomize_weights
from tfm.commands import evaluate as eval_command
from tfm.config import save
from tfm.data.config import PairsConfig
from tfm.data.sources.builtin import read_feature
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.evaluation.alignment import from_pharaoh
from tfm.tasks import translation
from tfm.tasks.translation import report
from tfm.tasks.translation.task import Config
from tfm.workdir import runs

LONG = (
    "red dog " * 29 + "red dog",
    "rot hund " * 39 + "rot hund",
)  # longer than data.max_length, so validation leaves the pair out


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


def losses(run, params, source, target):
    """Returns (sum, count) of the unsmoothed loss of a pair, computed by NumPy without padding."""
    (source, target) = ([*ids, EOS_ID] for ids in run.task.tokenizer.encode([source, target]))
    read = np.array([[BOS_ID, *target[:-1]]])
    logits = numpy64.transformer(params, np.array([source]), read)[0]
    chosen = logits[range(len(target)), target]
    return (np.log(np.exp(logits).sum(-1)) - chosen).sum(), len(target)


@pytest.mark.long
def test_perplexity_equals_plain_forward_passes(run):
    pairs = [*open_pairs(run.task.config.data, "test")[:3], LONG, ("", "rot"), ("red", "")]
    sums, counts = np.array([losses(run, run.params, *pair) for pair in pairs]).T
    found = report.perplexity(run.task, run.params, *map(list, zip(*pairs, strict=True)))
    assert found.value == pytest.approx(np.exp(sums.sum() / counts.sum()), rel=1e-5)
    counted = f"{int(counts.sum())} pieces of {len(pairs)} references, ends counted"
    assert found.signature == f"vocabulary {len(run.task.tokenizer)}, {counted}"


@pytest.mark.long
def test_perplexity_of_a_uniform_model_is_the_size_of_the_vocabulary(run):
    flat = jax.tree.map(np.zeros_like, run.params)
    found = report.perplexity(run.task, flat, ["red dog"], ["rot hund"])
    assert found.value == pytest.approx(len(run.task.tokenizer), rel=1e-5)


@pytest.mark.long
def test_last_score_of_a_report_is_the_perplexity(run):
    pairs = open_pairs(run.task.config.data, "test")
    sources, references = map(list, zip(*pairs[:], strict=True))
    found = next(report.report_split(run.task, run.params, "test")).scores
    assert found[-1] == report.perplexity(run.task, run.params, sources, references)
    assert found[0].name == "BLEU"


@pytest.mark.long
def test_pairs_longer_than_the_position_table_are_left_out(run):
    model = dataclasses.replace(run.task.config.model, positions="learned", max_positions=40)
    decoding = dataclasses.replace(run.task.config.decoding, max_input=20, max_extra_tokens=20)
    settings = dataclasses.replace(run.task.config, model=model, decoding=decoding)
    task = translation.Translation(settings, run.task.tokenizer)
    params = initialize(task)
    some, all_of_them = ["red dog"], ["red dog", LONG[0], "cat"]
    found = report.perplexity(task, params, all_of_them, ["rot hund", "rot", LONG[1]])
    alone = report.perplexity(task, params, some, ["rot hund"])
    assert found.value == alone.value
    assert found.signature == f"{alone.signature}, 2 pairs of over 40 tokens left out"
    with pytest.raises(UserError, match=r"\b40 tokens.*\b1 pairs"):
        report.perplexity(task, params, LONG[:1], LONG[1:])


@pytest.mark.parametrize(("positions", "counted"), [(0, 2), (-1, 1)])
def test_pair_as_long_as_the_position_table_is_counted(positions, counted, run):
    pairs = [("red", "rot"), ("red dog " * 9 + "red", "rot hund " * 9 + "rot")]
    longest = max(len(ids) + 1 for pair in pairs for ids in run.task.tokenizer.encode(pair)) + positions
    model = types.SimpleNamespace(max_length=longest)
    scored = []

    def score(params, sources, references):
        scored.extend(references)
        return [np.zeros(3)] * len(references)

    config = types.SimpleNamespace(model=model)
    task = types.SimpleNamespace(config=config, form=run.task.form, score=score)
    report.perplexity(task, None, *map(list, zip(*pairs, strict=True)))
    assert len(scored) == counted


def test_overflowing_perplexity_is_infinite(run, monkeypatch):
    certain = [np.full(3, -1e4, np.float32)]
    monkeypatch.setattr(run.task, "score", lambda *_: certain, raising=False)
    assert report.perplexity(run.task, None, ["a"], ["b"]).value == np.inf


def test_prefix_counts_towards_the_length_of_a_pair(run):
    """The model also reads the prefix, so a pair that is as long as its positions does not fit."""
    pairs = ["red", "red dog " * 9]
    longest = max(len(ids) + 1 for ids in run.task.tokenizer.encode(pairs))
    model = dataclasses.replace(run.task.config.model, positions="learned", max_positions=longest)
    data = dataclasses.replace(run.task.config.data, source_prefix="big", max_length=longest)
    decoding = dataclasses.replace(run.task.config.decoding, max_input=8, max_extra_tokens=4)
    config = dataclasses.replace(run.task.config, model=model, data=data, decoding=decoding)
    task = translation.Translation(config, run.task.tokenizer)
    found = report.perplexity(task, initialize(task), pairs, ["rot", "rot"])
    assert "1 pairs of over" in found.signature


class Oracle:
    """A task with fixed answers.

    Targets that end in "!" have a larger sum, but a smaller mean, of log-probabilities.
    """

    config = Config(data=PairsConfig(kind="builtin"))

    def score(self, params, sources, targets):
        return [np.full(1, -2.0) if target.endswith("!") else np.full(3, -1.0) for target in targets]

    def translate(self, params, sources):
        return sources

    def align(self, params, sources, references):
        return [{(0, 0)}, {(0, 0)}]


@pytest.fixture
def builtin(monkeypatch):
    """Replaces the splits of the built-in language."""
    sides = {"pronoun": (["a"] * 4, ["x!", "x!", "x!", "x"]), "long": (["a b c d e"], ["a b c d e"])}
    sides["test"] = (["a", "b"], ["a", "z"])
    features = {"wrong": ["y", "y", "y!", "y!"], "alignment": ["0-0", "1-1"]}
    monkeypatch.setattr(report, "read_sides", lambda data, split: sides[split])
    monkeypatch.setattr(report, "read_feature", lambda split, name: features[name])
    monkeypatch.setattr(report, "scores", lambda *_, **__: [])
    monkeypatch.setattr(report, "perplexity", lambda *_: "perplexity")


def test_builtin_challenges_follow_the_scores_of_the_split(builtin):
    first, second = report.report_split(Oracle(), None, "test")
    assert (first.scores, first.outputs) == (["perplexity"], ["a", "b"])
    assert first.examples[1] == {"source": "b", "reference": "z", "hypothesis": "b"}
    assert second.scores[0] == "perplexity"
    expected = {"exact match": 50, "pronoun accuracy": 50, "BLEU, long": 100, "alignment error rate": 50}
    assert {score.name: score.value for score in second.scores[1:]} == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "split"), [("builtin", "long"), ("text", "test")])
def test_other_splits_have_no_challenges(builtin, kind, split):
    task = Oracle()
    task.config = Config(data=PairsConfig(kind=kind, directory="corpus"))
    assert len(list(report.report_split(task, None, split))) == 1


def test_other_directions_have_no_challenges(builtin):
    """Only the German side of the built-in language has wrong pronouns, and alignments begin in English."""
    task = Oracle()
    data = PairsConfig(kind="builtin", source_language="de", target_language="en")
    task.config = Config(data=data)
    assert len(list(report.report_split(task, None, "test"))) == 1


@pytest.mark.parametrize("name", ["test[10:50]", "validation"])
def test_challenges_are_scored_on_the_configured_test_split(name, monkeypatch):
    monkeypatch.setattr(report, "scores", lambda *_, **__: [])
    monkeypatch.setattr(report, "perplexity", lambda *_: "perplexity")
    task = Oracle()
    task.config = Config(data=PairsConfig(kind="builtin", test=name))
    task.align = lambda params, sources, references: list(map(from_pharaoh, read_feature(name, "alignment")))
    _, second = report.report_split(task, None, "test")
    assert (second.scores[-1].name, second.scores[-1].value) == ("alignment error rate", 0)
    assert name in second.scores[-1].signature


def test_challenges_without_an_alignment_have_the_other_scores(builtin, caplog):
    task = Oracle()
    task.align = mock.Mock(side_effect=UserError("There is no attention."))
    assert len(report.score_challenges(task, None, ["a"], ["x"], ["x"])) == 3
    assert "There is no attention." in caplog.text


def test_challenges_of_a_reversed_corpus_have_no_alignment(builtin, monkeypatch, caplog):
    """Only whole splits from English to German have alignments."""
    wrong = report.read_feature("pronoun", "wrong")
    monkeypatch.setattr(
        report, "read_feature", lambda split, name: wrong if name == "wrong" else read_feature(split, name)
    )
    task = Oracle()
    task.config = Config(data=PairsConfig(kind="builtin", test="test,reversed:test"))
    assert len(report.score_challenges(task, None, ["a"], ["x"], ["x"])) == 3
    assert "No alignment error rate" in caplog.text


@pytest.mark.long
def test_writing_outputs_to_a_run_with_other_data_is_an_error(tmp_path):
    """Outputs of `tfm evaluate` with another beam are allowed."""
    save(Config(), runs.config_path(str(tmp_path)))
    eval_command.check_output_dir(str(tmp_path), "run", Config(decoding=DecodingConfig(beam_size=1)))
    other = Config(data=PairsConfig(test="dev"))
    with pytest.raises(UserError, match=r"on other data \(data\.test was 'test' and is now 'dev'\)"):
        eval_command.check_output_dir(str(tmp_path), "run", other)


@pytest.mark.parametrize(("count", "warns"), [(2, False), (3, True)])
def test_references_that_seem_tokenized_give_a_warning(count, warns, caplog):
    report.warn_of_tokenized_texts(["Der Hund schläft ."] * count + ["Der Hund schläft."] * 2)
    assert ("tokenized" in caplog.text) == warns
