"""Tests of the checkpoints that are loaded, averaged or rejected, and of configs that do not fit."""

import collections
import dataclasses
import json
import re
import runpy
import shutil
import types

import numpy as np
import pytest

from tests.support.comparison import assert_trees_equal
from tests.support.paths import CONFIGS
from tfm.checkpoints import trees
from tfm.checkpoints.store import CheckpointStore
from tfm.commands import evaluate as evaluating
from tfm.data.config import ImagesConfig
from tfm.errors import UserError
from tfm.io.files import append_json_line
from tfm.tasks import translation
from tfm.tasks.translation.task import VOCABULARY_FILE
from tfm.workdir import runs
from tfm.workdir.starts import RECORD_FILE, last_start
from tfm.workdir.train import train


def kept(training):
    """Returns the steps that a complete run keeps if its first evaluation is the best."""
    saved = [
        step
        for step in range(1, training.steps + 1)
        if step % training.checkpoint_every == 0 or step % training.eval_every == 0 or step == training.steps
    ]
    best = min(step for step in saved if step % training.eval_every == 0)
    return sorted({best, *saved[-training.keep :]})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_documented_averages_are_possible(path):
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
        ([10, 20, 30, 37, 40, 50], 4, 10, [20, 30, 40, 50]),  # step 37 was saved at a signal
        ([10, 20, 23, 30, 37], 3, 10, [10, 20, 30]),  # the step saved at a signal is the newest
        ([10, 70, 80, 90], 3, 10, [70, 80, 90]),  # step 10 is the best
        ([3, 6], 2, 100, [3, 6]),  # the run is shorter than the distance
        ([100, 110, 120, 130], 4, 50, [100, 110, 120, 130]),  # the distance was 10 in training
        ([10, 70, 80, 90], 4, 10, []),
        ([94_500, 96_000, 97_500, 99_000, 100_000], 5, 1500, []),
        ([6], 2, 2, []),
        ([2, 4], 10**20, 2, []),  # returns immediately
    ],
)
def test_averaged_steps_are_equally_spaced(steps, count, every, chosen):
    assert runs.spaced_steps(steps, count, every) == chosen


UNKNOWN_FIELD = b"\xf8\x7f\x00"  # readers of the protocol buffer skip it


@pytest.fixture
def other_vocabulary(tiny_run, tmp_path):
    """Returns a copy of the run with another vocabulary of the same size."""
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    with open(workdir / VOCABULARY_FILE, "ab") as file:
        file.write(UNKNOWN_FIELD)
    return str(workdir)


@pytest.mark.parametrize("several", [{}, {"average": 2}, {"ensemble": 2}, {"checkpoint": "4"}])
def test_loading_with_another_tokenizer_is_an_error(several, other_vocabulary):
    with pytest.raises(UserError, match=r"step [246] .*vocabulary\.model"):
        runs.load(other_vocabulary, **several)


@pytest.mark.long
def test_resuming_with_another_tokenizer_is_an_error(other_vocabulary):
    config = runs.open_folder(other_vocabulary).config
    task = translation.create(config, other_vocabulary)
    longer = dataclasses.replace(config.training, steps=9)
    with pytest.raises(UserError, match="content of vocabulary has changed"):
        train(task, longer, other_vocabulary)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["chosen", "read"])
def test_loading_survives_that_training_deletes_the_chosen_step(moment, tiny_run, tmp_path, monkeypatch):
    """Another step is chosen. If the user chose the step, the deletion is an error."""
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    place, name = (CheckpointStore, "restore_variables") if moment == "chosen" else (trees, "read_tree")
    plain = getattr(place, name)

    def delete_first(*arguments):
        shutil.rmtree(workdir / "checkpoints" / "6", ignore_errors=True)
        return plain(*arguments)

    monkeypatch.setattr(place, name, delete_first)
    assert runs.load(str(workdir), checkpoint="last").steps == [4]
    shutil.copytree(tiny_run / "checkpoints" / "6", workdir / "checkpoints" / "6")
    with pytest.raises(UserError, match=r"\b6\b"):
        runs.load(str(workdir), checkpoint="6")


def choose(best=3, steps=(2, 3, 4, 6), **choice):
    """Returns the chosen steps of a run whose last checkpoint is damaged."""
    store = types.SimpleNamespace(
        folder="folder", steps=lambda: list(steps), latest=lambda: 4, best=lambda: best
    )
    return runs.choose_steps(store, runs.Choice(**choice), 2)


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        ({}, [3]),
        ({"checkpoint": "best"}, [3]),
        ({"best": None}, [4]),  # the newest intact step
        ({"checkpoint": "last"}, [4]),
        ({"checkpoint": "6"}, [6]),
        ({"checkpoint": 2}, [2]),
        ({"average": 2}, [4, 6]),
        ({"average": 2, "checkpoint": "last"}, [4, 6]),
        ({"ensemble": 2, "checkpoint": "4"}, [2, 4]),
        ({"average": 2, "checkpoint": "3"}, [2, 3]),  # there is only one multiple of 2 up to 3
        ({"average": 3, "steps": (0, 2, 4, 6)}, [2, 4, 6]),
    ],
)
def test_checkpoints_are_chosen(choice, steps):
    assert choose(**choice) == steps


@pytest.mark.parametrize("kind", ["average", "ensemble"])
def test_untrained_checkpoint_of_a_warm_start_is_not_averaged(kind):
    with pytest.raises(UserError, match=r"Expected 4 checkpoints .*\[2, 4, 6\]"):
        choose(steps=(0, 2, 4, 6), **{kind: 4})


@pytest.mark.parametrize("several", [{}, {"average": 2}, {"ensemble": 2}])
@pytest.mark.parametrize("checkpoint", ["best", "5", "newest", "\u00b2"])
def test_unknown_checkpoint_is_an_error_with_all_steps(several, checkpoint):
    if several or checkpoint != "best":
        with pytest.raises(UserError, match=rf"'last'.*\[2, 3, 4, 6\].*{re.escape(repr(checkpoint))}"):
            choose(checkpoint=checkpoint, **several)


def test_too_few_checkpoints_and_invalid_counts_are_errors(tiny_run):
    with pytest.raises(UserError, match=r"\b40\b.*\b2 steps.*\[2, 3, 4, 6\]"):
        choose(average=40)
    with pytest.raises(UserError, match="checkpoint in folder"):
        choose(steps=())
    for name, value in (("average", 0), ("ensemble", -3), ("average", 2.5), ("ensemble", True)):
        with pytest.raises(UserError, match=rf"at least 1 .*{name}.* {value}\b"):
            runs.load(str(tiny_run), **{name: value})
    with pytest.raises(UserError, match=r"workdir.*None"):
        runs.load(None)


def test_ensemble_of_a_task_that_averages_no_models_is_an_error(tiny_run, monkeypatch):
    monkeypatch.setattr(translation.task.Translation, "averages_models", False)
    with pytest.raises(UserError, match=r"task translation cannot evaluate an ensemble.*--average"):
        runs.load(str(tiny_run), ensemble=2)


@pytest.mark.long
def test_last_checkpoint_is_scored_without_averaging(tiny_run, monkeypatch):
    run = runs.load(str(tiny_run), average=2, checkpoint="4")
    result = collections.namedtuple("Result", "scores")
    monkeypatch.setattr(
        translation.Translation, "report", lambda task, variables, split: iter([result(variables)])
    )
    arguments = collections.namedtuple("Arguments", "workdir split")(str(tiny_run), "test")
    expected = runs.load(str(tiny_run), checkpoint="4").variables
    assert_trees_equal(evaluating.score_last_checkpoint(run, arguments), expected)


def test_loading_with_the_config_of_another_model_is_an_error(tiny_run):
    """Another model with the same shapes would give wrong results without an error."""
    saved = runs.open_folder(str(tiny_run)).config
    for name, value in (("activation", "gelu"), ("norm_order", "pre")):
        chosen = dataclasses.replace(saved, model=dataclasses.replace(saved.model, **{name: value}))
        with pytest.raises(UserError, match=rf"model\.{name} .*'{value}'"):
            runs.load(str(tiny_run), config=chosen)
    decoding = dataclasses.replace(saved.decoding, beam_size=2)
    chosen = dataclasses.replace(saved, decoding=decoding, loss_chunk_size=7)
    assert runs.load(str(tiny_run), config=chosen).task.config == chosen


@pytest.mark.parametrize("field", ["heads", "decoder_layers"])
def test_config_that_does_not_fit_the_checkpoints_is_an_error(field, tiny_run, tmp_path):
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    content = json.loads((workdir / "config.json").read_text())
    content["model"][field] = 1 if content["model"][field] > 1 else 2
    (workdir / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"model\.{field} was \d and is now \d"):
        runs.load(str(workdir))
    (workdir / RECORD_FILE).unlink()
    with pytest.raises(UserError, match=r"params/decoder/layers_\d/.*config"):
        runs.load(str(workdir))


def test_flipped_bit_of_the_config_is_an_error(tiny_run, tmp_path):
    """The position changes the translations, but no shape and no asset."""
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    text = (workdir / "config.json").read_text()
    assert '"first_position": 0' in text
    (workdir / "config.json").write_text(text.replace('"first_position": 0', '"first_position": 4'))
    with pytest.raises(UserError, match=r"config\.json .*model\.first_position was 0 and is now 4"):
        runs.load(str(workdir))


def test_config_of_the_start_before_is_valid_after_a_kill(tiny_run, tmp_path):
    """A start writes its record first, and then its config."""
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    start = last_start(str(workdir))
    later = start | {"config": start["config"] | {"ter": False}}
    append_json_line(str(workdir / RECORD_FILE), later)
    assert runs.open_folder(str(workdir)).config == runs.open_folder(str(tiny_run)).config


@pytest.mark.parametrize("split", ["new", "../photos/new", "../photos/new/"])
def test_files_of_an_evaluation_have_the_name_of_the_folder_of_the_split(split):
    """A shell completes the path of a folder with a slash, and the files were hidden files without a name."""
    assert runs.evaluation_stem("runs/pets", split, "labels") == "runs/pets/new.labels"
    assert runs.evaluation_stem("runs/pets", split, "labels", name="second") == "runs/pets/second.labels"


def test_exported_config_names_the_split_of_a_folder_with_a_slash():
    data = ImagesConfig(kind="folder", directory="/data", train="/data/pets/train/", test="/data/pets/test/")
    exported = data.without_paths()
    assert (exported.train, exported.test) == ("train", "test")
