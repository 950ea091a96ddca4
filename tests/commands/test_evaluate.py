"""Tests of `tfm evaluate`: early checks of the output, and scores that survive errors."""

import errno
import io
import json
import re
import types

import pytest

from tests.support.io_conditions import unwritable
from tests.support.tiny import make_config
from tfm import config
from tfm.commands import evaluate as evaluating
from tfm.commands.compare import read_systems
from tfm.commands.options import Evaluate
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.errors import UserError
from tfm.evaluation.translation_metrics import Score
from tfm.io.files import only_writer
from tfm.training.task import Report
from tfm.workdir import runs
from tfm.workdir.evaluations import read_record

BLEU, MATCH = Score("BLEU", 12.5, "signature"), Score("exact match", 50.0, "per cent")


def make_options(**fields):
    return Evaluate(**{"workdir": "run", "config": None, "overrides": {}} | fields)


@pytest.fixture
def command(corpus, tmp_path, monkeypatch):
    """Returns a function that evaluates a run with fixed scores. `.loaded` counts the evaluations."""
    chosen = make_config(corpus)
    workdir = tmp_path / "run"
    workdir.mkdir()
    config.save(chosen, runs.config_path(str(workdir)))
    sources, references = read_sides(chosen.data, "test")

    def report(params, split):
        call.loaded += 1
        pairs = zip(sources, references, strict=True)
        examples = [{"source": source, "reference": text} for source, text in pairs]
        found = Report(
            [f"{text} ü" for text in references],
            [BLEU],
            examples,
            {"beam_size": 4},
            3.0,
            fingerprint_texts(sources, references),
        )
        yield found
        for further in call.further:
            yield found._replace(scores=[BLEU, further()])

    def call(**flags):
        task = types.SimpleNamespace(config=chosen, report=report)
        monkeypatch.setattr(Evaluate, "load", lambda _: runs.Run(task, {"params": None}, [2, 4]))
        evaluating.main.run(make_options(workdir=str(workdir), config=chosen, samples=1, **flags))

    call.loaded, call.workdir, call.further = 0, workdir, ()
    return call


def scores_of(folder, name="test"):
    report = json.loads((folder / f"{name}.de.scores.json").read_text())
    assert len((folder / f"{name}.de.hypotheses").read_text().splitlines()) == report["sentences"] == 20
    return [score["name"] for score in report["scores"]]


def test_settings_are_printed_before_the_scores(command, capsys):
    command()
    shown = capsys.readouterr().out.splitlines()
    assert shown.index("beam_size=4") < shown.index(str(BLEU))


class Closed(io.StringIO):
    """A closed standard output."""

    def write(self, text):
        raise BrokenPipeError


def test_results_are_written_before_printing(command, monkeypatch):
    command.further = [lambda: MATCH]
    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        command(average=2)
    assert scores_of(command.workdir) == ["BLEU", "exact match"]
    report = json.loads((command.workdir / "test.de.scores.json").read_text())
    assert len(report["scores_of_the_last_checkpoint_alone"]) == 1


@pytest.fixture(autouse=True)
def _last(monkeypatch):
    """Replaces the evaluation of the last checkpoint without averaging."""
    monkeypatch.setattr(evaluating, "score_last_checkpoint", lambda run, options: [BLEU])


@pytest.mark.parametrize("error", [UserError("no pronouns"), ZeroDivisionError(), KeyboardInterrupt()])
def test_scores_are_kept_if_a_challenge_fails(command, capsys, error):
    def fail():
        assert scores_of(command.workdir) == ["BLEU"]
        raise error

    command.further = [fail]
    with pytest.raises(type(error)) as raised:
        command()
    assert scores_of(command.workdir) == ["BLEU"]
    assert not read_record(str(command.workdir / "test.de.scores.json")).complete
    assert str(BLEU) in capsys.readouterr().out
    if isinstance(error, KeyboardInterrupt):
        assert str(raised.value).startswith(f"the scores above are in {command.workdir}/test.de.scores.json")


@pytest.mark.parametrize("ensemble", [False, True])
def test_outputs_are_single_lines_and_records_describe_ensembles(ensemble, corpus, tmp_path, capsys):
    task = types.SimpleNamespace(config=make_config(corpus))
    run = types.SimpleNamespace(task=task, variables=({}, {}) if ensemble else {}, steps=[2, 4])
    report = Report(["red\ndog", "a\u2028b "], [BLEU], [], {}, 1.0, "hash")
    evaluating.write_outputs(report, run, str(tmp_path / "test"))
    assert (tmp_path / "test.hypotheses").read_text() == "red dog\na b\n"
    record = evaluating.make_record(report, [], run, make_options(split="a/test", ensemble=1 + ensemble))
    assert (record.split, record.ensemble, record.checkpoints) == ("test", ensemble, [2, 4])
    assert record.checkpoint == ("last" if ensemble else "best")
    evaluating.show(report, [], run, make_options())
    assert f"{'ensemble' if ensemble else 'mean'} of steps [2, 4]" in capsys.readouterr().out


def test_ctrl_c_does_not_mention_older_scores(command, monkeypatch):
    command()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluating, "write_outputs", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        command()


def test_unwritable_scores_are_printed(command, monkeypatch, capsys):
    def fail(*_):
        raise UserError("Cannot write")

    monkeypatch.setattr(evaluating, "write_outputs", fail)
    with pytest.raises(UserError):
        command()
    assert str(BLEU) in capsys.readouterr().out


def test_output_in_use_is_an_error_before_the_evaluation(command):
    with only_writer(command.workdir / "test.de.hypotheses", ""):
        with pytest.raises(UserError, match=r"Another process is writing .*test\.de\.hypotheses"):
            command()
        assert command.loaded == 0
        command(name="other")
    assert {path.name for path in command.workdir.iterdir()} == {
        "config.json",
        "other.de.hypotheses",
        "other.de.scores.json",
    }


def test_read_only_run_requires_an_output_folder(command, tmp_path, corpus):
    for folder in (tmp_path, *list(tmp_path.parents)[:-2], corpus, corpus.parent):
        folder.chmod(0o755)
    with (
        unwritable(command.workdir),
        pytest.raises(UserError, match=r"choose another folder \(--output_dir\)"),
    ):
        command()
    assert command.loaded == 0
    before = sorted(command.workdir.iterdir())
    out = tmp_path / "deep" / "out"
    command(output_dir=str(out))
    assert scores_of(out) == ["BLEU"]
    assert sorted(command.workdir.iterdir()) == before
    command()
    assert read_record(str(command.workdir / "test.de.scores.json")).complete
    first, second = read_systems(str(command.workdir), str(out), "test")
    assert first.hypotheses == second.hypotheses


def test_output_folders_of_other_runs_are_errors(command, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    command(output_dir=str(command.workdir))
    saved = json.loads((command.workdir / "config.json").read_text())
    saved["data"]["test"] = "val"
    (out / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=re.escape("or on other data (data.test was 'val' and")):
        command(output_dir=str(out))
    saved["data"]["test"], saved["model"]["d_ff"] = "test", 41
    (out / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"evaluations of another run .*model\.d_ff was 41 and"):
        command(output_dir=str(out))
    (out / "checkpoints").mkdir()
    with pytest.raises(UserError, match="contains another run"):
        command(output_dir=str(out))
    assert command.loaded == 1


def test_failed_write_keeps_the_old_scores(command, monkeypatch):
    command()
    path = command.workdir / "test.de.scores.json"
    before = path.read_bytes()

    def fail(content, file, **options):
        file.write("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises((OSError, UserError)):
        command()
    assert path.read_bytes() == before
