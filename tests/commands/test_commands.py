"""Tests of commands as users run them: outputs, files, error messages and exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.support.commands import run_command
from tests.support.paths import ROOT
from tests.support.processes import LIMIT, finish, run_python, wait_until
from tests.support.tiny import make_config, write_config_file
from tfm.commands import evaluate, train
from tfm.errors import UserError
from tfm.training.run_log import read_metrics

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def workdir(tiny_run, tmp_path_factory):
    """Returns a copy of the tiny run that tests may change."""
    return shutil.copytree(tiny_run, tmp_path_factory.mktemp("copy") / "run")


def test_second_start_with_more_steps_resumes_the_run(corpus, tmp_path):
    config = write_config_file(tmp_path, make_config(corpus))
    with config.open("a") as file:
        file.write(f"open({str(tmp_path / 'reads')!r}, 'a').write('read ')\n")
    command = ("train.py", f"--workdir={tmp_path / 'run'}", "--config.training.log_every=1")
    first = run_python(*command, f"--config={config}", "--config.training.steps=2")
    assert first.returncode == 0, first.stderr.decode()
    assert (tmp_path / "reads").read_text() == "read "
    assert b"step 2/2  loss" in first.stderr
    assert b"tokens/s" in first.stderr
    assert b"First step finished after" in first.stderr
    cut = tmp_path / "run" / "compiled" / "program-cache"
    cut.parent.mkdir(exist_ok=True)
    cut.touch()  # as after a kill
    again = (f"--config={tmp_path / 'run' / 'config.json'}", f"--config.data.cache_dir={tmp_path / 'moved'}")
    second = run_command("train", *command[1:], *again, "--config.training.steps=3")
    assert "Resuming from step 2" in second.error
    steps = [row["step"] for row in read_metrics(str(tmp_path / "run")) if "train/loss" in row]
    assert steps == [1, 2, 3]
    assert not cut.exists()


def test_evaluate_writes_hypotheses_and_scores(workdir):
    result = run_command("evaluate", f"--workdir={workdir}", "--samples=1", "--config.decoding.beam_size=2")
    assert result.code == 0, result.error
    printed = result.output
    assert "BLEU" in printed
    assert "chrF2" in printed
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in printed
    assert printed.count("hypothesis  ") == 1
    assert len((workdir / "test.de.hypotheses").read_text().splitlines()) == 20
    report = json.loads((workdir / "test.de.scores.json").read_text())
    assert report["sentences"] == 20
    assert report["decoding"]["beam_size"] == 2
    assert report["scores"][-1]["name"] == "perplexity"
    assert f"{report['scores'][-1]['value']:.2f}  vocabulary " in printed


@pytest.mark.parametrize("absolute", [False, True])
def test_evaluation_of_a_file_stem_is_written_to_the_run(workdir, corpus, tmp_path, absolute):
    (tmp_path / "sub").mkdir()
    for language in ("en", "de"):
        lines = (corpus / f"test.{language}").read_text().splitlines(keepends=True)
        (tmp_path / "sub" / f"nt.{language}").write_text("".join(lines[:2]))
    stem = str(tmp_path / "sub" / "nt") if absolute else "sub/nt"
    name = ["--name=greedy"] if absolute else []
    options = ("--config.decoding.beam_size=1", f"--config.data.directory={tmp_path}", *name)
    result = run_command("evaluate", f"--workdir={workdir}", f"--split={stem}", *options)
    assert result.code == 0, result.error
    written = f"{'greedy' if absolute else 'nt'}.de"
    assert len((workdir / f"{written}.hypotheses").read_text().splitlines()) == 2
    assert json.loads((workdir / f"{written}.scores.json").read_text())["split"] == "nt"
    assert {path.name for path in (tmp_path / "sub").iterdir()} == {"nt.en", "nt.de"}


def test_scores_of_the_last_checkpoint_alone_use_all_options(workdir, tmp_path):
    options = (f"--workdir={workdir}", "--split=val", "--config.decoding.min_length=2", "--checkpoint=4")
    reports = []
    for average in (2, 1):
        folder = tmp_path / str(average)
        assert run_command("evaluate", *options, f"--average={average}", f"--output_dir={folder}").code == 0
        reports.append(json.loads((folder / "val.de.scores.json").read_text()))
    averaged, alone = reports
    assert averaged["scores_of_the_last_checkpoint_alone"] == alone["scores"] != averaged["scores"]


def test_translate_writes_one_line_for_each_line(workdir):
    text = "red dog\n\nbig\tcat \u2028 runs\n   \n\U0001f600 bird".encode() + b"\nred \xff dog\n"
    result = run_command("translate", f"--workdir={workdir}", "--config.decoding.beam_size=1", stdin=text)
    assert result.code == 0, result.error
    lines = result.output.split("\n")
    assert len(lines) == 7
    assert lines[1] == lines[3] == lines[6] == ""
    assert "Line 6 is not valid UTF-8" in result.error


def test_translate_writes_json_and_leaves_no_partial_file(workdir, tmp_path):
    (tmp_path / "in").write_text("red dog\n\nblue cat\n")
    options = ("--format=jsonl", "--n_best=2", "--alignments", f"--input={tmp_path / 'in'}")
    result = run_command("translate", f"--workdir={workdir}", *options, f"--output={tmp_path / 'out'}")
    assert result.code == 0, result.error
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["source"] for row in rows] == ["red dog", "", "blue cat"]
    assert [len(row["translations"]) for row in rows] == [2, 1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


LINES = 5_000  # several chunks


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_translate_resumes_after_a_kill(workdir, tmp_path):
    (tmp_path / "in").write_text("red dog\n" * LINES)
    command = ("-m", "tfm", "translate", f"--workdir={workdir}", f"--input={tmp_path / 'in'}")
    command = [sys.executable, *command, "--config.decoding.beam_size=1", f"--output={tmp_path / 'out'}"]
    options = {"cwd": ROOT, "env": os.environ | {"JAX_PLATFORMS": "cpu"}, "stderr": subprocess.PIPE}
    part, done = tmp_path / "out.part", 0
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(command, **options)
        wait_until(lambda done=done: lines_of(part) > done, f"more than {done} lines in {part}", process)
        process.send_signal(number)
        _, error = finish(process)
        before, done = done, lines_of(part)  # a kill may leave an incomplete line
        assert before < done < LINES
        assert not before or f"Resuming after line {before:,}".encode() in error
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert f"interrupted: {done:,} lines".encode() in error
            assert b"Traceback" not in error
    again = subprocess.run(command, check=False, timeout=LIMIT, **options)
    assert f"Resuming after line {done:,}".encode() in again.stderr
    assert len((tmp_path / "out").read_text().splitlines()) == LINES


@pytest.mark.parametrize(
    ("into", "code", "error"),
    [("head -c 0", 141, ""), ("/dev/full", 2, "No space left on device")],
)
def test_closed_or_full_output_ends_the_command(workdir, into, code, error):
    command = f"{sys.executable} -m tfm translate --workdir={workdir} --config.decoding.beam_size=1"
    sink = f"> {into}" if into.startswith("/") else f"| {into} 2> /dev/null"
    result = subprocess.run(
        ["bash", "-c", f"yes red dog | head -n 1100 | {command} {sink}; exit ${{PIPESTATUS[2]}}"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert result.returncode == code, result.stderr[-2000:]
    assert "Traceback" not in result.stderr
    assert error in result.stderr


def test_visualize_writes_png_files_and_a_page(workdir):
    result = run_command("visualize", f"--workdir={workdir}", "red dog runs")
    assert result.code == 0, result.error
    drawn = {path.name for path in (workdir / "figures").iterdir()}
    parts = ("encoder", "decoder", "cross")
    assert drawn == {
        "curves.png",
        "attention.html",
        *(f"attention-1-{part}.png" for part in parts),
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (workdir / "figures").glob("*.png"))


def test_n_best_above_the_beam_size_is_an_error(workdir, tmp_path):
    (tmp_path / "in").write_text("red dog\n")
    options = ("--format=jsonl", "--n_best=5", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}")
    result = run_command("translate", f"--workdir={workdir}", *options)
    assert result.code == 2
    assert "decoding.beam_size" in result.error
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


TRAIN = ("train.py", "--config=configs/multi30k_en_de.py", "--workdir={tmp}/new")
MISTAKES = {
    "typo in a field": (
        (*TRAIN, "--config.model.d_modle=3"),
        "config.model.d_modle does not exist; did you mean",
    ),
    "missing data": ((*TRAIN, "--config.data.directory={tmp}"), "Expected the file {tmp}/train.en"),
    "no run there": (("eval.py", "--workdir={tmp}/none"), "Expected the folder of a run at {tmp}/none"),
    "other shape": (("eval.py", "--workdir={run}", "--config.model.d_ff=128"), "belong to another model"),
    "other model": (
        ("train.py", "--config={tiny}", "--workdir={run}", "--config.model.d_ff=128"),
        "model.d_ff was 40 and is now 128",
    ),
    "two beginnings": (
        ("train.py", "--config={tiny}", "--workdir={tmp}/new", "--warm_start_map=a=b"),
        "--warm_start_map chooses parameters of --warm_start",
    ),
    "no such step": (
        ("eval.py", "--workdir={run}", "--checkpoint=77"),
        "must be 'best', 'last' or one of the steps",
    ),
    "attention of another device": (
        ("eval.py", "--workdir={run}", "--config.model.attention=cudnn", "--config.model.dtype=bfloat16"),
        "needs a CUDA device, but this is a cpu. Set --config.model.attention=xla.",
    ),
    "a name with a folder": (
        ("eval.py", "--workdir={run}", "--name=best/beam4"),
        "must not contain a folder, got 'best/beam4'",
    ),
    "the best of an average": (
        ("eval.py", "--workdir={run}", "--checkpoint=best", "--average=2"),
        "of an average or an ensemble must be 'last' or one of the steps",
    ),
}


@pytest.fixture
def mistake(tiny_run, corpus, tmp_path):
    """Returns a function that returns the arguments and the message of a mistake."""
    places = {"tmp": tmp_path, "run": tiny_run, "tiny": write_config_file(tmp_path, make_config(corpus))}

    def fill_in(name):
        arguments, message = MISTAKES[name]
        return [argument.format(**places) for argument in arguments], message.format(**places)

    return fill_in


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_errors(name, mistake):
    (program, *arguments), message = mistake(name)
    main = {"train.py": train.main, "eval.py": evaluate.main}[program]
    with pytest.raises(UserError) as error:
        main(arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_process_reports_a_mistake_in_one_line_with_exit_code_2(mistake):
    arguments, message = mistake("missing data")
    result = run_python(*arguments)
    error = result.stderr.decode().strip().splitlines()[-1]
    assert result.returncode == 2
    assert error.startswith("error: ")
    assert message in error
    assert b"Traceback" not in result.stderr
