"""Tests of the fields that a resumed run may change, and of the step that it resumes from."""

import copy
import dataclasses
import functools
import json
import os
import re
import shutil

import pytest

from tests.support import tiny_regression
from tests.support.comparison import assert_trees_equal
from tests.support.records import write_record
from tests.support.tiny import make_config
from tests.support.workdirs import write_start
from tfm.config import save, walk_fields
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import open_pairs
from tfm.errors import UserError
from tfm.tasks.translation.task import Config
from tfm.testing.tasks import rows_without_times
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import OPTIMIZERS, Adam
from tfm.workdir import resume, runs
from tfm.workdir.train import train


def changed(config, path, value):
    """Returns the config with another value of a field, without any checks."""
    config = copy.deepcopy(config)
    *sections, name = path.split(".")
    section = functools.reduce(getattr, sections, config)
    object.__setattr__(section, name, value)
    return config


def another(leaf):
    """Returns another value of a field."""
    if leaf.info.choices:
        return next(choice for choice in leaf.info.choices if choice != leaf.value)
    if isinstance(leaf.value, bool):
        return not leaf.value
    if isinstance(leaf.value, tuple):
        return (*leaf.value, "another/*=2" if leaf.path.endswith("_factors") else "another/*")
    return f"{leaf.value}x" if isinstance(leaf.value, str) else (leaf.value or 0) + 1


BASE = Config(data=PairsConfig(kind="text"))
DATA = {"vocabulary": "a", "train": "b", "validation": "c"}  # fingerprints, as a translation has them
# The documentation promises these fields. All other fields need the flag.
FREE = {
    *("training.steps", "training.log_every", "training.eval_every", "training.checkpoint_every"),
    *("training.patience", "training.keep", "training.keep_best", "training.keep_hours"),
    *("training.on_non_finite", "training.parallel", "training.mesh_fsdp"),
    *(
        "training.mesh_tensor",
        "training.gradient_accumulation_steps",
        "loss_chunk_size",
        "validation_sentences",
    ),
    *("validation_samples", "training.trackers", "training.best_by", "bleu_tokenizer", "ter"),
    *("model.attention", "model.remat", "model.scan", "data.cache_dir", "data.directory", "data.test"),
    "data.references",
}
FIXED = {
    *("task", "model.name", "model.encoder_layers", "model.decoder_layers"),
    *("model.d_model", "model.d_ff", "model.heads", "model.key_features", "model.value_features"),
    *("model.attention_bias", "model.activation", "model.norm_order", "model.positions"),
    *("model.max_positions", "model.layer_norm_epsilon", "model.norm", "model.deep_norm", "model.gated"),
    *("model.key_value_heads", "model.scale_attention", "model.attention_window", "model.tied_embeddings"),
    *("model.logits_bias", "model.embedding_norm", "model.scale_embedding", "model.first_position"),
    "model.feed_forward_kernel",
    *("data.vocabulary_size", "data.vocabulary_pairs", "data.tokenizer", "data.normalization"),
}
OPTIMIZER = {  # a warm start may change them, but no resumed run
    *("training.optimizer.name", "training.optimizer.momentum", "training.optimizer.smallest_factored"),
    *("training.freeze", "training.ema_decay", "training.optimizer.parameter_scale"),
}
BASES = [dataclasses.replace(BASE, training=TrainingConfig(optimizer=made())) for made in OPTIMIZERS.values()]
LEAVES = {(type(leaf.section), leaf.path): (base, leaf) for base in BASES for leaf in walk_fields(base)}


def save_config(config, folder, **options):
    """Writes a config as `tfm train` does: before the first checkpoint at once, otherwise with the start."""
    resume.check_config(config, folder, **options)
    save(config, runs.config_path(folder))


def begin_with(base, folder):
    """Writes a config and an empty checkpoint, because its content does not matter here."""
    save_config(base, str(folder))
    (folder / "checkpoints" / "2").mkdir(parents=True)
    return folder


@pytest.fixture
def begun(tmp_path):
    """Returns a run folder with a config and a checkpoint."""
    return begin_with(BASE, tmp_path)


def parametrize_fields(condition):
    """Parametrizes a test by the fields whose paths fulfil a condition, with the fixture `change`."""
    keys = [key for key in LEAVES if condition(key[1])]
    return pytest.mark.parametrize("key", keys, ids=lambda key: f"{key[0].__name__}-{key[1]}")


def is_free(path):
    return path in FREE or path.startswith("decoding.")


@pytest.fixture
def change(key, tmp_path):
    """Returns (path of a field, run folder, config with another value, text about the change)."""
    base, leaf = LEAVES[key]
    value = another(leaf)
    text = f"{leaf.path} was {leaf.value!r} and is now {value!r}"
    return leaf.path, begin_with(base, tmp_path), changed(base, leaf.path, value), text


@parametrize_fields(is_free)
def test_free_field_may_change(change, caplog):
    _, folder, new, text = change
    before = (folder / "config.json").read_bytes()
    with caplog.at_level("INFO", "tfm"):
        save_config(new, str(folder))
    assert f"config.{text}" in caplog.text
    assert (folder / "config.json").read_bytes() != before


@parametrize_fields(lambda path: path in FIXED | OPTIMIZER)
def test_fixed_field_may_never_change(change):
    path, folder, new, text = change
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match="never") as error:
        save_config(new, str(folder))
    assert text in str(error.value)
    assert "--allow_change" not in str(error.value)
    assert ("--warm_start" in str(error.value)) == (path in OPTIMIZER)
    assert (folder / "config.json").read_bytes() == before


@parametrize_fields(lambda path: path in FIXED | OPTIMIZER)
def test_flag_does_not_permit_the_change_of_a_fixed_field(change):
    path, folder, new, _ = change
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match=re.escape(f"--allow_change={path}")):
        save_config(new, str(folder), allow_change=[path])
    assert (folder / "config.json").read_bytes() == before


@parametrize_fields(lambda path: not is_free(path) and path not in FIXED | OPTIMIZER)
def test_other_field_may_change_with_a_flag(change, caplog):
    path, folder, new, text = change
    with pytest.raises(UserError, match=re.escape(f"--allow_change={path}")) as error:
        save_config(new, str(folder))
    assert text in str(error.value)
    before = (folder / "config.json").read_bytes()
    save_config(new, str(folder), allow_change=[f"config.{path}"])
    assert (folder / "config.json").read_bytes() != before
    assert f"config.{path} was" in caplog.text


def test_lost_config_is_read_from_the_record_of_starts(begun, caplog):
    (begun / "config.json").unlink()
    other = changed(BASE, "training.seed", 7)
    with pytest.raises(UserError, match=r"config\.json"):
        save_config(other, str(begun))
    write_start(begun, BASE, DATA)
    with pytest.raises(UserError, match=r"training\.seed .*\b0\b.*\b7\b"):
        save_config(other, str(begun))
    assert not (begun / "config.json").exists()
    save_config(BASE, str(begun))
    assert runs.open_folder(str(begun)).config == BASE
    assert "config.json is missing: reading the config of the last start" in caplog.text


def test_training_in_the_folder_of_an_export_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=f"--warm_start={tmp_path}"):
        save_config(BASE, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_error_lists_all_rejected_changes(begun):
    other = dataclasses.replace(
        BASE,
        training=TrainingConfig(seed=1, optimizer=Adam(b2=0.9), keep=3),
        model=dataclasses.replace(BASE.model, heads=4),
    )
    with pytest.raises(UserError) as error:
        save_config(other, str(begun), allow_change=["training.seed"])
    assert "optimizer.b2 was 0.98 and is now 0.9 (tfm train --allow_change=training.optimizer.b2" in str(
        error.value
    )
    assert "model.heads was 8 and is now 4 (never" in str(error.value)
    assert "seed" not in str(error.value)
    assert "keep" not in str(error.value)


@pytest.mark.parametrize("schedule", ["linear_decay", "cosine_decay"])
def test_changed_steps_of_a_decay_require_the_flag(schedule, tmp_path):
    """The learning rate of every step depends on the number of steps."""
    linear = TrainingConfig(schedule=schedule, steps=5000)
    save_config(dataclasses.replace(BASE, training=linear), str(tmp_path))
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    longer = dataclasses.replace(BASE, training=dataclasses.replace(linear, steps=9000))
    with pytest.raises(
        UserError, match=r"training\.steps .*5000.*9000.*training\.schedule.*--allow_change=training\.steps"
    ):
        save_config(longer, str(tmp_path))
    other = dataclasses.replace(longer, training=TrainingConfig(schedule="inverse_sqrt", steps=9000))
    with pytest.raises(UserError, match=r"training\.steps"):  # the completed steps depended on the number
        save_config(other, str(tmp_path), allow_change=["training.schedule"])
    save_config(longer, str(tmp_path), allow_change=["training.steps"])


def test_allow_change_of_an_unknown_field_is_an_error(begun):
    with pytest.raises(UserError, match=r"training\.sead.*training\.seed"):
        save_config(BASE, str(begun), allow_change=["training.sead"])


def test_moved_data_must_have_the_same_content(begun, corpus, tmp_path):
    """The record of the last start contains the hashes of the data."""
    data = dataclasses.replace(make_config(corpus).data, cache_dir=str(tmp_path / "cache"))
    here = dataclasses.replace(BASE, data=data)
    hashes = {split: open_pairs(data, split).fingerprint for split in ("train", "validation")}
    write_start(begun, here, DATA | hashes)
    save(here, begun / "config.json")
    moved = shutil.copytree(corpus, tmp_path / "moved", ignore=shutil.ignore_patterns("cache"))
    there = changed(here, "data.directory", str(moved))
    save_config(there, str(begun))
    write_start(begun, there, DATA | hashes)
    assert runs.open_folder(str(begun)).config == there
    elsewhere = shutil.copytree(moved, tmp_path / "elsewhere")
    (elsewhere / "train.de").write_text((moved / "train.de").read_text().replace("rot", "blau"))
    other = changed(here, "data.directory", str(elsewhere))
    for options in ({}, {"allow_change": ["data.directory"]}):
        with pytest.raises(UserError, match=r"data\.directory .*never .*\btrain\b") as error:
            save_config(other, str(begun), **options)
        assert "--allow_change" not in str(error.value)
    assert runs.open_folder(str(begun)).config == there


def test_moved_validation_data_with_other_content_require_the_flag(begun, corpus, tmp_path):
    data = dataclasses.replace(make_config(corpus).data, cache_dir=str(tmp_path / "cache"))
    here = dataclasses.replace(BASE, data=data)
    write_start(begun, here, DATA | {"train": open_pairs(data, "train").fingerprint})
    save(here, begun / "config.json")
    moved = shutil.copytree(corpus, tmp_path / "moved", ignore=shutil.ignore_patterns("cache"))
    there = changed(here, "data.directory", str(moved))
    with pytest.raises(
        UserError, match=r"\bvalidation has changed; tfm train --allow_change=data\.directory"
    ):
        save_config(there, str(begun))
    save_config(there, str(begun), allow_change=["data.directory"])


@pytest.mark.long
def test_failed_start_leaves_the_config_of_the_run(regression_run, tmp_path):
    """The content of the training data is compared while the run is prepared."""
    run = shutil.copytree(regression_run, tmp_path / "run")
    before = (run / "config.json").read_bytes()
    lines = (run / "starts.jsonl").read_text().splitlines()
    start = json.loads(lines[-1])
    start["data"] = dict.fromkeys(start["data"], "other")
    (run / "starts.jsonl").write_text("\n".join([*lines[:-1], json.dumps(start)]) + "\n")
    config = tiny_regression.make_config(checkpoint_every=1, steps=99, seed=7)
    resume.save_config(config, str(run), allow_change=["training.seed"])
    task = tiny_regression.create(config, str(run))
    with pytest.raises(UserError, match="has changed since the last start"):
        train(task, config.training, str(run))
    assert (run / "config.json").read_bytes() == before


@pytest.mark.long
def test_start_of_a_finished_run_leaves_its_config(regression_run, tmp_path):
    run = shutil.copytree(regression_run, tmp_path / "run")
    before = runs.open_folder(str(run)).config
    config = changed(before, "training.seed", before.training.seed + 1)
    resume.save_config(config, str(run), allow_change=["training.seed"])
    train(tiny_regression.create(config, str(run)), config.training, str(run))
    assert runs.open_folder(str(run)).config == before


@pytest.mark.long
def test_run_that_resumes_has_its_new_config(regression_run, tmp_path):
    run = shutil.copytree(regression_run, tmp_path / "run")
    config = runs.open_folder(str(run)).config
    config = changed(config, "training.steps", config.training.steps + 1)
    resume.save_config(config, str(run))
    train(tiny_regression.create(config, str(run)), config.training, str(run))
    assert runs.open_folder(str(run)).config == config


def test_run_without_a_checkpoint_may_change_all_but_its_vocabulary(tmp_path):
    new = str(tmp_path)
    save_config(BASE, new)
    smaller = changed(changed(BASE, "data.vocabulary_size", 300), "training.seed", 3)
    save_config(smaller, new)
    assert runs.open_folder(new).config == smaller
    (tmp_path / "vocabulary.model").touch()
    light = changed(
        changed(changed(smaller, "model.heads", 2), "data.max_length", 64), "data.validation", "v"
    )
    save_config(light, new)
    with pytest.raises(UserError, match=r"vocabulary\.model .*data\.vocabulary_size .*\b300\b"):
        save_config(BASE, new)
    assert runs.open_folder(new).config == light


@pytest.mark.long
def test_run_that_is_reset_to_a_step_equals_the_unbroken_run(regression_run, tmp_path, caplog):
    """After the reset, the step is the newest step, and the same command does not reset the run again."""
    workdir = str(shutil.copytree(regression_run, tmp_path / "run"))
    task = tiny_regression.create(tiny_regression.make_config(), workdir)
    with pytest.raises(UserError, match=r"step 3\b.*\[2, 4, 6\]|step 5\b"):
        resume.resume_from(5, task, workdir)
    for _ in range(2):
        resume.resume_from(2, task, workdir)
        assert {name for name in os.listdir(f"{workdir}/checkpoints") if name.isdecimal()} == {"2"}
        assert os.listdir(f"{workdir}/checkpoints/after_2")
    train(task, task.config.training, workdir)
    with caplog.at_level("INFO", "tfm"):
        resume.resume_from(2, task, workdir)
    assert "set back to step 2 before" in caplog.text
    assert rows_without_times(workdir) == rows_without_times(regression_run)
    one, other = (runs.load(str(each), checkpoint="last") for each in (workdir, regression_run))
    assert one.steps == other.steps == [6]
    assert_trees_equal(one.params, other.params)


def test_interrupted_reset_leaves_no_evaluation_of_later_steps(tmp_path, regression_run, monkeypatch):
    workdir = shutil.copytree(regression_run, tmp_path / "run")
    task = tiny_regression.create(tiny_regression.make_config(), str(workdir))
    write_record(workdir / "new.x.scores.json", checkpoints=[6])
    rename = os.rename

    def stop_at_the_last_rename(old, new):
        if str(new).endswith("after_2"):
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", stop_at_the_last_rename)
    with pytest.raises(KeyboardInterrupt):
        resume.resume_from(2, task, str(workdir))
    monkeypatch.undo()
    resume.resume_from(2, task, str(workdir))
    assert not list(workdir.glob("*.scores.json"))
    assert (workdir / "checkpoints" / "after_2" / "new.x.scores.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("was_saved_again", [False, True])
def test_interrupted_reset_continues(was_saved_again, tmp_path, regression_run):
    """A kill in the middle loses no checkpoint, even if the run trains on before the command is repeated."""
    workdir = str(shutil.copytree(regression_run, tmp_path / "run"))
    folder = f"{workdir}/checkpoints"
    os.mkdir(f"{folder}/after_2.part")
    move = shutil.copytree if was_saved_again else os.rename
    move(f"{folder}/4", f"{folder}/after_2.part/4")
    task = tiny_regression.create(tiny_regression.make_config(), workdir)
    resume.resume_from(2, task, workdir)
    expected = {"4", "4.1", "6"} if was_saved_again else {"4", "6"}
    assert expected == set(os.listdir(f"{folder}/after_2")) - {"3"}
    assert not os.path.exists(f"{folder}/after_2.part")
