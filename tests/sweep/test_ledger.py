"""The ledger of a sweep: what a row has, lines that a kill cut short, and another config."""

import dataclasses
import json

import pytest

from tests.support.sweeps import BASE, FLOPS, planned
from tfm.errors import UserError
from tfm.sweep import ledger

ROW = {"variant": "base", "seed": 0, "config": {}, "scores": []}
ASKED = ("sweep", "validation", "last")


def write_run(folder):
    """A work directory as `tfm train` and `tfm evaluate` leave it, as far as the ledger reads it."""
    run = planned()._replace(workdir=str(folder))
    times = [(100, 50.0), (200, 70.0), (300, 1090.0), (400, 1110.0)]  # an interruption before step 300
    rows = [{"step": step, "time": time, "train/loss": 1.0} for step, time in times]
    rows.insert(1, {"step": 150, "time": 60.0, "validation/bleu": 3.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    versions = {"python": "3.11.7", "jax": "0.10.2", "unrelated": "1"}
    start = {"devices": ["cpu"], "code": {"commit": "abc"}, "versions": versions, "data": {"train": "123"}}
    (folder / "starts.jsonl").write_text(json.dumps(start) + "\n")
    score = {"name": "BLEU", "value": 25.8, "signature": "tok:13a"}
    scores = {"scores": [score], "split": "validation", "texts": "456", "checkpoints": [400], "decoding": {}}
    (folder / "validation.de.scores.json").write_text(json.dumps(scores))
    return run, str(folder / "validation.de.scores.json")


def test_a_row_has_what_its_figures_depend_on(tmp_path):
    row = ledger.make_row(*write_run(tmp_path), "last")
    ledger.append_row(str(tmp_path), row)
    (row,) = ledger.read_ledger(str(tmp_path))
    assert (row["variant"], row["seed"], row["overrides"]) == ("base", 0, {"model.d_ff": 7})
    assert row["scores"] == [{"name": "BLEU", "value": 25.8, "signature": "tok:13a"}]
    assert (row["data"], row["texts"], row["checkpoints"]) == ({"train": "123"}, "456", [400])
    assert (row["split"], row["checkpoint"]) == ("validation", "last")
    assert (row["versions"]["jax"], row["code"], row["devices"]) == ("0.10.2", {"commit": "abc"}, ["cpu"])
    assert "unrelated" not in row["versions"]
    assert row["config"]["model"]["d_model"] == 512
    assert row["seconds_per_step"] == pytest.approx(0.2)  # the median, whatever the interruption took
    assert row["flops_per_second"] == pytest.approx(FLOPS / 100_000 / 0.2)


def test_a_line_cut_short_is_no_row(tmp_path):
    ledger.append_row(str(tmp_path), ROW)
    with open(tmp_path / "ledger.jsonl", "a") as file:
        file.write(json.dumps(ROW | {"seed": 1})[:20])
    assert ledger.read_ledger(str(tmp_path)) == [ROW]
    ledger.append_row(str(tmp_path), ROW | {"seed": 2})
    assert [row["seed"] for row in ledger.read_ledger(str(tmp_path))] == [0, 2]


@pytest.mark.parametrize("line", ["[]", "3", '{"variant": "base"}', json.dumps(ROW | {"seed": "0"})])
def test_what_is_no_row_is_left_out(tmp_path, line):
    (tmp_path / "ledger.jsonl").write_text(line + "\n")
    assert ledger.read_ledger(str(tmp_path)) == []


def test_no_ledger_has_no_rows(tmp_path):
    assert ledger.read_ledger(str(tmp_path)) == []


def test_finished_run_of_other_config_is_refused():
    config = json.loads(json.dumps(dataclasses.asdict(BASE)))
    ledger.check_ledger([ROW | {"config": config}], [planned()], *ASKED)
    del config["model"]["remat"]  # as of a version before that field
    ledger.check_ledger([ROW | {"config": config}], [planned()], *ASKED)
    config["model"]["d_ff"] = 99
    ledger.check_ledger([ROW | {"config": config, "variant": "other"}], [planned()], *ASKED)
    with pytest.raises(UserError, match=r"base seed 0 .*model\.d_ff .*99.*2048"):
        ledger.check_ledger([ROW | {"config": config}], [planned()], *ASKED)


@pytest.mark.parametrize(("name", "value"), [("split", "test"), ("checkpoint", "best"), ("texts", "789")])
def test_runs_evaluated_otherwise_are_refused(name, value):
    row = ROW | {"split": "validation", "checkpoint": "last", "texts": "456"}
    ledger.check_ledger([ROW, row, row | {"seed": 1}], [], *ASKED)  # older rows do not tell all
    with pytest.raises(UserError, match=f"base seed 2.*{name} {value}"):
        ledger.check_ledger([row, row | {"seed": 2, name: value}], [], *ASKED)


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_scores_that_cannot_be_read_are_an_error(tmp_path, content):
    run, path = write_run(tmp_path)
    with open(path, "w") as file:
        file.write(content)
    with pytest.raises(UserError, match=r"validation\.de\.scores\.json"):
        ledger.make_row(run, path, "last")


def test_one_line_of_the_log_has_no_speed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 2.0, "train/loss": 1.0}\n')
    assert ledger.seconds_per_step(str(tmp_path)) is None
