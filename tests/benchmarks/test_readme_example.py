"""Tests of the example of README.md."""

import pytest

from benchmarks.readme_example import find_changes, read_example, run_example
from tfm.commands import train

STEPS = ("training.steps", "training.eval_every", "training.checkpoint_every")


def test_example_has_at_most_eight_lines_of_code():
    code, _ = read_example()
    assert len([line for line in code.splitlines() if line]) <= 8


def test_one_line_of_the_output_has_another_translation():
    _, output = read_example()
    assert find_changes(output.splitlines()) == ["1 0 Das Tier überquerte die Straße, weil es zu müde war."]


@pytest.mark.long
def test_example_prints_a_line_for_each_head_of_a_run_of_the_quick_start(tmp_path):
    fields = [f"--config.{field}=10" for field in STEPS]
    small = ["--config.validation_sentences=10", f"--config.data.cache_dir={tmp_path / 'cache'}"]
    train.main(["--config=quickstart", f"--workdir={tmp_path / 'run'}", *fields, *small])
    lines = run_example(str(tmp_path / "run"))
    _, output = read_example()
    assert [line[:4] for line in lines] == [line[:4] for line in output.splitlines()]
