"""Tests of `tfm replay`: output and errors."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.workdirs import make_workdir
from tfm.commands import replay
from tfm.data.config import VOCABULARY_FILE
from tfm.errors import UserError
from tfm.training.step import TrainState
from tfm.workdir.bundle import PARAMETERS_FILE
from tfm.workdir.replay import Change, Replay


def entries(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.long
def test_replayed_step_is_printed_and_written(tiny_run, tmp_path, capsys):
    before = entries(tiny_run)
    output = tmp_path / "step.npz"
    replay.main([f"--workdir={tiny_run}", "--step=6", f"--output={output}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 6, from the checkpoint of step 4"
    assert lines[1].startswith('batch: {"epoch": ')
    assert "gradient_norm" in lines[2]
    assert lines[-1] == f"wrote {output}"
    assert entries(tiny_run) == before
    with np.load(output) as arrays:
        path = "decoder/layers_0/cross_attention/query/kernel"
        update = arrays[f"after/{path}"] - arrays[f"before/{path}"]
        gradient = arrays[f"gradient/{path}"]
        assert arrays["batch/inputs"].shape == arrays["batch/input_positions"].shape
    [row] = [line.split() for line in lines if line.startswith(path)]
    assert [float(x) for x in row[2:]] == pytest.approx(
        [np.linalg.norm(gradient), np.linalg.norm(update)], rel=1e-3
    )


def test_output_that_cannot_be_written_is_an_error_before_the_computation(tiny_run, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write .*step\.npz"):
        replay.main([f"--workdir={tiny_run}", "--step=6", f"--output={tmp_path}/file/step.npz"])
    assert not capsys.readouterr().out


def test_table_has_a_row_for_each_parameter():
    changes = [Change("a/kernel", 3.0, 0.5, 0.25), Change("b/bias", 2.0, 0.125, 1e-9)]
    assert [line.split() for line in replay.format_changes(changes)] == [
        ["parameter", "norm", "gradient", "update"],
        ["a/kernel", "3", "0.5", "0.25"],
        ["b/bias", "2", "0.125", "1e-09"],
    ]


def test_arrays_in_bfloat16_are_written_in_float32(tmp_path):
    value = jnp.array([1.5, -2.0], jnp.bfloat16)
    state = TrainState(0, {"y": value}, {})
    step = Replay(1, 0, {"x": np.arange(2)}, {}, {}, state, state, {})
    replay.write_arrays(str(tmp_path / "step.npz"), step)
    with np.load(tmp_path / "step.npz") as arrays:
        assert {name: array.dtype.name for name, array in arrays.items()} == {
            "batch/x": "int64",
            "before/y": "float32",
            "after/y": "float32",
        }
        np.testing.assert_array_equal(arrays["before/y"], [1.5, -2.0])


def test_run_without_its_vocabulary_is_an_error_and_learns_no_other(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / VOCABULARY_FILE).unlink()
    with pytest.raises(UserError, match=VOCABULARY_FILE):
        replay.main([f"--workdir={tmp_path / 'run'}", "--step=6"])
    assert not (tmp_path / "run" / VOCABULARY_FILE).exists()


def test_replaying_an_export_is_an_error(tmp_path):
    export = make_workdir(tmp_path / "export")
    (export / PARAMETERS_FILE).touch()
    with pytest.raises(UserError, match="is an export and has no steps to replay"):
        replay.main([f"--workdir={export}", "--step=3"])
    with pytest.raises(UserError, match=r"--output must end in \.npz, got 'x'"):
        replay.main([f"--workdir={export}", "--step=3", "--output=x"])
