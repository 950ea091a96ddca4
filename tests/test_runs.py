"""Which checkpoints a run is loaded from: those of an average, and what may be asked for."""

import collections
import pathlib
import re
import runpy

import jax
import numpy as np
import pytest

import eval as evaluating
from tfm import runs
from tfm.errors import UserError

CONFIGS = sorted((pathlib.Path(__file__).parent.parent / "configs").glob("*.py"))


def kept(training):
    """The steps that stay of a full run, by the rules of the loop, with the first evaluated as the best."""
    saved = [
        step
        for step in range(1, training.steps + 1)
        if step % training.checkpoint_every == 0 or step % training.eval_every == 0 or step == training.steps
    ]
    best = min(step for step in saved if step % training.eval_every == 0)
    return sorted({best, *saved[-training.keep :]})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_averages_that_a_config_documents_can_be_had_of_its_run(path):
    training = runs.parse_config(runpy.run_path(str(path))["get_config"]()).training
    for asked in re.findall(r"--average=(\d+)", path.read_text(encoding="utf-8")):
        chosen = runs.spaced_steps(kept(training), int(asked), training.checkpoint_every)
        assert len(chosen) == int(asked)
        assert set(np.diff(chosen)) == {training.checkpoint_every}
        assert training.steps - chosen[-1] < training.checkpoint_every


@pytest.mark.parametrize(
    ("steps", "count", "every", "chosen"),
    [
        ([94_500, 96_000, 97_500, 99_000, 100_000], 4, 1500, [94_500, 96_000, 97_500, 99_000]),
        ([10, 20, 30, 37, 40, 50], 4, 10, [20, 30, 40, 50]),  # a signal saved 37
        ([10, 20, 23, 30, 37], 3, 10, [10, 20, 30]),  # and is the newest
        ([10, 70, 80, 90], 3, 10, [70, 80, 90]),  # 10 is the best
        ([3, 6], 2, 100, [3, 6]),  # shorter than the distance
        ([100, 110, 120, 130], 4, 50, [100, 110, 120, 130]),  # another distance when it was trained
        ([10, 70, 80, 90], 4, 10, []),
        ([94_500, 96_000, 97_500, 99_000, 100_000], 5, 1500, []),
        ([6], 2, 2, []),
    ],
)
def test_an_average_takes_the_regular_checkpoints_and_else_what_stands_at_equal_distances(
    steps, count, every, chosen
):
    assert runs.spaced_steps(steps, count, every) == chosen


def test_too_few_checkpoints_are_a_sentence_that_says_what_there_is(tiny_run):
    with pytest.raises(UserError, match=r"Expected 40 .* every 2 steps, .* \[2, 3, 4, 6\]: take fewer"):
        runs.load(str(tiny_run), average_last=40)


def test_what_averaging_brings_is_measured_beside_its_own_last_checkpoint(tiny_run, monkeypatch):
    run = runs.load(str(tiny_run), average_last=2)._replace(steps=[2, 4])
    result = collections.namedtuple("Result", "scores")
    monkeypatch.setattr(evaluating.evaluation, "evaluate", lambda task, params, split: result(params))
    arguments = collections.namedtuple("Arguments", "workdir split")(str(tiny_run), "test")
    expected = runs.load(str(tiny_run), checkpoint="4").params
    jax.tree.map(np.testing.assert_array_equal, evaluating.last_alone(run, arguments), expected)
