"""Tests of profiling: the range of steps, and the trace of a run."""

import glob
import gzip

import pytest

from tests.support.tiny_regression import Regression, make_config
from tfm.errors import UserError
from tfm.training import profiling
from tfm.training.profiling import Profiler
from tfm.workdir.train import train


@pytest.mark.parametrize("text", ["", "5", "5:", "0:3", "7:3", "1:x", "-1:3", "1:2:3", "1:9999999999"])
def test_invalid_range_of_steps_is_an_error(text):
    with pytest.raises(UserError, match=r"--profile .*FIRST:LAST"):
        profiling.parse_range(text)


def test_range_may_be_a_single_step():
    assert profiling.parse_range("20:20") == (20, 20)


def train_profiled(workdir, first, last, steps=6):
    config = make_config(steps=steps)
    train(
        Regression(config), config.training, str(workdir), hooks=iter([Profiler(first, last, str(workdir))])
    )


def read_trace(workdir):
    """Returns the only trace of a run as JSON."""
    (path,) = glob.glob(f"{workdir}/profile/plugins/profile/*/perfetto_trace.json.gz")
    with gzip.open(path) as file:
        return file.read()


@pytest.mark.long
def test_profile_of_a_run_has_a_trace_of_its_steps(tmp_path, caplog):
    with caplog.at_level("INFO", "tfm"):
        train_profiled(tmp_path, 2, 4)
    assert b"train_step" in read_trace(tmp_path)
    assert f"The trace of steps 2 to 4 is in {tmp_path}" in caplog.text
    assert "not profiled" not in caplog.text


@pytest.mark.long
def test_run_that_ends_within_the_range_writes_the_part_of_its_profile(tmp_path, caplog):
    with caplog.at_level("INFO", "tfm"):
        train_profiled(tmp_path, 1, 99)
    assert b"train_step" in read_trace(tmp_path)
    assert "The trace of steps 1 to 99 is incomplete, because the run ended" in caplog.text
    assert f"steps 1 to 99 is in {tmp_path}" not in caplog.text


@pytest.fixture
def interrupted(tmp_path, caplog):
    """Returns the work directory of a run that has completed three steps without a profile."""
    train_profiled(tmp_path, 50, 60, steps=3)
    caplog.clear()
    return tmp_path


@pytest.mark.long
def test_range_may_begin_with_the_first_step_of_a_resumed_run(interrupted, caplog):
    train_profiled(interrupted, 4, 5)
    assert b"train_step" in read_trace(interrupted)
    assert "not profiled" not in caplog.text


@pytest.mark.long
def test_range_before_the_steps_of_a_resumed_run_gives_a_warning(interrupted, caplog):
    train_profiled(interrupted, 1, 2)
    assert "Steps 1 to 2 were not profiled" in caplog.text
    assert not (interrupted / "profile").exists()


@pytest.mark.long
def test_range_after_the_last_step_gives_a_warning(tmp_path, caplog):
    train_profiled(tmp_path, 50, 60)
    assert "Steps 50 to 60 were not profiled" in caplog.text
    assert not (tmp_path / "profile").exists()
