"""A test of a complete run from the command line: train, evaluate and translate."""

import json

from tests.support.commands import run_command
from tests.support.tiny import make_config, write_config_file
from tfm.training.run_log import read_metrics


def test_run_is_trained_evaluated_and_used_from_the_command_line(corpus, tmp_path):
    config, workdir = write_config_file(tmp_path, make_config(corpus)), tmp_path / "run"
    trained = run_command("train", f"--config={config}", f"--workdir={workdir}")
    assert trained.code == 0, trained.error
    losses = {row["step"]: row["train/loss"] for row in read_metrics(str(workdir)) if "train/loss" in row}
    assert list(losses) == [4, 6]

    greedy = "--config.decoding.beam_size=1"
    evaluated = run_command("evaluate", f"--workdir={workdir}", greedy, "--samples=1")
    assert evaluated.code == 0, evaluated.error
    assert "BLEU" in evaluated.output
    assert json.loads((workdir / "test.de.scores.json").read_text())["sentences"] == 20
    assert len((workdir / "test.de.hypotheses").read_text().splitlines()) == 20

    translated = run_command("translate", f"--workdir={workdir}", greedy, stdin="red dog\n\nbig cat\n")
    assert translated.code == 0, translated.error
    assert translated.output.count("\n") == 3
    assert translated.output.split("\n")[1] == ""  # an empty line stays empty
