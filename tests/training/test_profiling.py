"""Tests of profiling: the range of steps, the summary of operations and the trace of a run."""

import glob
import os

import pytest

from tests.support.tiny_regression import Regression, make_config
from tfm.errors import UserError
from tfm.training import profiling
from tfm.training.profiling import Operation, Profiler
from tfm.workdir.train import train

COMPILED = """
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %fusion.2 = f32[4]{0} fusion(%x), kind=kLoop, metadata={op_type="add" op_name="jit(step)/encoder/add" id=3}
  ROOT dot.1 = f32[4]{0} dot(%fusion.2, %x), metadata={op_name="jit(step)/logits/dot_general"}
}
"""


@pytest.mark.parametrize("text", ["", "5", "5:", "0:3", "7:3", "1:x", "-1:3", "1:2:3", "1:9999999999"])
def test_invalid_range_of_steps_is_an_error(text):
    with pytest.raises(UserError, match=r"--profile .*FIRST:LAST"):
        profiling.parse_range(text)


def test_range_may_be_a_single_step():
    assert profiling.parse_range("20:20") == (20, 20)


def test_find_sources_reads_the_names_of_the_compiled_program():
    assert profiling.find_sources(COMPILED) == {
        "fusion.2": "jit(step)/encoder/add",
        "dot.1": "jit(step)/logits/dot_general",
    }


def test_summary_has_the_idle_time_and_the_slowest_operation_first():
    second = 1_000_000_000
    lines = [
        [Operation("dot.1", 0, 2 * second), Operation("fusion.2", 8 * second, second)],
        [Operation("dot.1", second // 2, second), Operation("dot.1", 9 * second, second)],
    ]
    whole, _, slowest, other = profiling.summarize(lines, {"dot.1": "logits"})
    assert whole.startswith("10.000 s, 60.0 % idle")
    assert whole.endswith("2 threads or devices computed for 5.000 s in total")
    assert slowest.split() == ["4.0000", "80.0", "%", "3", "dot.1", "logits"]
    assert other.split() == ["1.0000", "20.0", "%", "1", "fusion.2"]
    assert profiling.summarize([], {}) == ["no operation was recorded"]


def train_profiled(workdir, first, last, steps=6):
    config = make_config(steps=steps)
    train(
        Regression(config), config.training, str(workdir), hooks=iter([Profiler(first, last, str(workdir))])
    )


@pytest.mark.long
def test_profile_of_a_run_has_a_summary_and_a_trace(tmp_path, caplog):
    """An earlier trace in the same folder is not read."""
    earlier = tmp_path / "profile" / "plugins" / "profile" / "earlier"
    earlier.mkdir(parents=True)
    (earlier / "host.xplane.pb").touch()
    os.utime(earlier / "host.xplane.pb", (1, 1))
    train_profiled(tmp_path, 2, 4)
    summary = (tmp_path / "profile" / "summary.txt").read_text().splitlines()
    assert summary[0] == "steps 2 to 4"
    assert "% idle" in summary[1]
    assert any("jit(train_step)" in line for line in summary[3:])
    assert glob.glob(f"{tmp_path}/profile/plugins/profile/*/perfetto_trace.json.gz")
    assert "not profiled" not in caplog.text


@pytest.mark.long
def test_run_that_ends_before_the_range_writes_its_profile(tmp_path):
    train_profiled(tmp_path, 1, 99)
    assert (tmp_path / "profile" / "summary.txt").read_text().count("jit(train_step)") > 0


@pytest.fixture
def interrupted(tmp_path, caplog):
    """Returns the work directory of a run that has completed three steps without a profile."""
    train_profiled(tmp_path, 50, 60, steps=3)
    caplog.clear()
    return tmp_path


@pytest.mark.long
def test_range_may_begin_with_the_first_step_of_a_resumed_run(interrupted, caplog):
    train_profiled(interrupted, 4, 5)
    assert (interrupted / "profile" / "summary.txt").read_text().startswith("steps 4 to 5\n")
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
