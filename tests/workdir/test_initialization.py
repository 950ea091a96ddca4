"""Runs that begin with weights there already are: of another run, or their own with a new schedule."""

import copy
import dataclasses
import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest

from tests.support import tiny_regression
from tests.support.tiny import make_config, write_corpus
from tfm import config, tasks
from tfm.config import save
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import open_pairs
from tfm.errors import UserError
from tfm.export.bundle import write_bundle
from tfm.fields import leaves
from tfm.tasks import translation
from tfm.tasks.translation.task import Config
from tfm.testing.tasks import rows_without_times
from tfm.training.config import TrainingConfig
from tfm.training.loop import train
from tfm.training.optimizers import OPTIMIZERS, Adam, AdamW
from tfm.workdir import initialization, runs


def begin(config, workdir, *, steps, warm_start="", reset=False):
    """What train.py does with its flags, up to `steps`."""
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=steps))
    create = tasks.find(config.task).create
    workdir.mkdir(exist_ok=True)
    initialization.save_config(config, str(workdir), resets=reset)
    if warm_start:
        initialization.prepare_warm_start(str(warm_start), config, str(workdir))
    if reset:
        initialization.reset(create(config, str(workdir), new=False), str(workdir))
        assert runs.read_config(str(workdir)) == config
    task = create(config, str(workdir), new=not warm_start)
    initial = initialization.find_initial_variables(task, str(workdir), str(warm_start))
    train(task, config.training, str(workdir), initial_variables=initial)


def weights(workdir, step):
    return runs.load(str(workdir), checkpoint=str(step)).params


def settings(corpus, **options):
    """Keeps every checkpoint, and validates without a search."""
    config = make_config(corpus, checkpoint_every=1, keep=99, **options)
    return dataclasses.replace(config, validation_sentences=0)


def any_task(**options):
    """The same of the tiny regression, where the task does not matter."""
    return tiny_regression.make_config(checkpoint_every=1, keep=99, **options)


@pytest.fixture
def known(tiny_run, corpus, tmp_path):
    """A copy of the tiny run with its config, in a folder of its own."""
    return shutil.copytree(tiny_run, tmp_path / "known")


@pytest.fixture
def known_of_any_task(regression_run, tmp_path):
    return shutil.copytree(regression_run, tmp_path / "known")


def changed(config, path, value):
    """The config with one other value, however little it fits the others."""
    config = copy.deepcopy(config)
    *sections, name = path.split(".")
    section = functools.reduce(getattr, sections, config)
    object.__setattr__(section, name, value)
    return config


def another(leaf):
    """Another value of a field."""
    if leaf.info.choices:
        return next(choice for choice in leaf.info.choices if choice != leaf.value)
    if isinstance(leaf.value, bool):
        return not leaf.value
    if isinstance(leaf.value, tuple):
        return (*leaf.value, "another/*")
    return f"{leaf.value}x" if isinstance(leaf.value, str) else (leaf.value or 0) + 1


BASE = Config(data=PairsConfig(kind="text"))
# What the documentation promises; every other field is refused without the flag.
FREE = {
    *("training.steps", "training.log_every", "training.eval_every", "training.checkpoint_every"),
    *("training.patience", "training.keep", "training.keep_best", "training.keep_hours"),
    *("training.on_non_finite", "training.diverged_after", "training.parallel", "training.mesh_fsdp"),
    *(
        "training.mesh_tensor",
        "training.gradient_accumulation_steps",
        "loss_chunk_size",
        "validation_sentences",
    ),
    *("validation_samples", "training.trackers"),
    *("model.attention", "model.remat", "model.scan", "data.cache_dir", "data.directory", "data.test"),
}
FIXED = {
    *("task", "model.name", "model.encoder_layers", "model.decoder_layers"),
    *("model.d_model", "model.d_ff", "model.heads", "model.key_features", "model.value_features"),
    *("model.attention_bias", "model.activation", "model.norm_order", "model.positions"),
    *("model.max_positions", "model.layer_norm_epsilon", "model.norm", "model.deep_norm", "model.gated"),
    *("model.key_value_heads", "model.scale_attention", "model.attention_window", "model.tied_embeddings"),
    *("data.vocabulary_size", "data.vocabulary_pairs", "data.tokenizer"),
}
RESET = {
    *("training.optimizer.name", "training.optimizer.momentum", "training.optimizer.smallest_factored"),
    *("training.freeze", "training.ema_decay", "training.optimizer.parameter_scale"),
}
BASES = [dataclasses.replace(BASE, training=TrainingConfig(optimizer=made())) for made in OPTIMIZERS.values()]
LEAVES = {(type(leaf.section), leaf.path): (base, leaf) for base in BASES for leaf in leaves(base)}


def begin_with(base, folder):
    """A config and a checkpoint, empty: what is in it does not matter here."""
    initialization.save_config(base, str(folder))
    (folder / "checkpoints" / "2").mkdir(parents=True)
    return folder


@pytest.fixture
def begun(tmp_path):
    """A work directory with a config and a checkpoint."""
    return begin_with(BASE, tmp_path)


@pytest.mark.parametrize("key", LEAVES, ids=lambda key: f"{key[0].__name__}-{key[1]}")
def test_what_a_resumed_run_may_change(key, tmp_path, caplog):
    base, leaf = LEAVES[key]
    path, value, begun = leaf.path, another(leaf), begin_with(base, tmp_path)
    new, saved = changed(base, path, value), (begun / "config.json").read_bytes()

    def save(**options):
        """Returns the error message, or "" if the config was saved."""
        try:
            initialization.save_config(new, str(begun), **options)
        except UserError as error:
            assert (begun / "config.json").read_bytes() == saved
            return str(error)
        return ""

    is_free = path in FREE or path.startswith("decoding.")
    with caplog.at_level("INFO", "tfm"):
        message = save()
    assert is_free == (message == "")
    assert f"{path} was {leaf.value!r} and is now {value!r}" in (message or caplog.text)
    if path in FIXED:
        assert "--allow_change" not in message
        assert f"--allow_change={path}" in save(allow_change=[path])
        assert "never" in message
    elif path in RESET:
        assert "--reset_schedule" in message
        assert "--reset_schedule" in save(allow_change=[path])
        assert save(resets=True) == ""  # the reset itself writes the config
    elif not is_free:
        assert f"--allow_change={path}" in message
        assert save(allow_change=[f"config.{path}"]) == ""
    assert f"config.{path} was" in caplog.text or path in FIXED
    assert (saved == (begun / "config.json").read_bytes()) == (path in (*FIXED, *RESET))


def test_a_lost_config_is_read_from_the_record(begun, caplog):
    (begun / "config.json").unlink()
    other = changed(BASE, "training.seed", 7)
    with pytest.raises(UserError, match=r"config\.json"):
        initialization.save_config(other, str(begun))
    (begun / "starts.jsonl").write_text(json.dumps({"config": dataclasses.asdict(BASE)}) + "\n")
    with pytest.raises(UserError, match=r"training\.seed .*\b0\b.*\b7\b"):
        initialization.save_config(other, str(begun))
    assert not (begun / "config.json").exists()
    initialization.save_config(BASE, str(begun))
    assert runs.read_config(str(begun)) == BASE
    assert "config.json is missing: reading the config of the last start" in caplog.text


def test_an_export_is_no_work_directory(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=f"--warm_start={tmp_path}"):
        initialization.save_config(BASE, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_all_changes_that_are_refused_are_named(begun):
    other = dataclasses.replace(
        BASE,
        training=TrainingConfig(seed=1, optimizer=Adam(b2=0.9), keep=3),
        model=dataclasses.replace(BASE.model, heads=4),
    )
    with pytest.raises(UserError) as error:
        initialization.save_config(other, str(begun), allow_change=["training.seed"])
    assert "optimizer.b2 was 0.98 and is now 0.9 (--allow_change=training.optimizer.b2" in str(error.value)
    assert "model.heads was 8 and is now 4 (never" in str(error.value)
    assert "seed" not in str(error.value)
    assert "keep" not in str(error.value)


RENAMED = (  # section, name today, name in an older version
    ("training", "gradient_accumulation_steps", "micro_batches"),
    ("decoding", "max_extra_tokens", "extra_length"),
    ("decoding", "overflow", "over_long"),
    ("", "loss_chunk_size", "logits_at_once"),
)


def as_of_an_older_version(made):
    """A config as it was saved when Adam's numbers stood in the training section."""
    saved = dataclasses.asdict(made)
    training = saved["training"]
    for name in ("peak_learning_rate", "clip_norm", "freeze"):
        del training[name]
    optimizer = training.pop("optimizer")
    del optimizer["name"]
    training.update({f"adam_{name}": value for name, value in optimizer.items()})
    for section, new, old in RENAMED:
        section = saved[section] if section else saved
        section[old] = section.pop(new)
    return saved


def test_a_run_of_an_older_version_resumes(begun, caplog):
    """Its config is the same, read with one warning, and is written by today's names."""
    numbers = Adam(b1=0.8, b2=0.95, epsilon=1e-8, mean_dtype="bfloat16")
    made = dataclasses.replace(BASE, training=TrainingConfig(optimizer=numbers))
    (begun / "config.json").write_text(json.dumps(as_of_an_older_version(made)))
    config.warn_once.cache_clear()
    assert runs.read_config(str(begun)) == made
    initialization.save_config(made, str(begun))
    (message,) = caplog.messages
    assert message.startswith("The config was written by an older version: config.")
    assert "config.training.adam_b1 is read as optimizer.b1" in message
    assert all(f"{old} is read as {new}" in message for _, new, old in RENAMED)
    assert json.loads((begun / "config.json").read_text()) == json.loads(json.dumps(dataclasses.asdict(made)))
    slower = changed(made, "training.optimizer.b1", 0.5)
    initialization.save_config(slower, str(begun), allow_change=["training.adam_b1"])
    assert runs.read_config(str(begun)) == slower


def test_a_field_by_its_old_and_its_new_name():
    both = {"adam_b1": 0.8, "optimizer": {"name": "adam", "b1": 0.7}}
    with pytest.raises(UserError, match=r"adam_b1 .*\bb1\b"):
        config.from_mapping(TrainingConfig, both)
    mixed = {"adam_b1": 0.8, "optimizer": {"name": "adamw", "b2": 0.7}}
    assert config.from_mapping(TrainingConfig, mixed).optimizer == AdamW(b1=0.8, b2=0.7)
    with pytest.raises(UserError, match=r"config\.optimizer .*'name'.*\b3\b"):
        config.from_mapping(TrainingConfig, {"adam_b1": 0.8, "optimizer": 3})


@pytest.mark.parametrize("schedule", ["linear_decay", "cosine_decay"])
def test_steps_of_a_decay_need_the_flag(schedule, tmp_path):
    """The learning rate of every step depends on them."""
    linear = TrainingConfig(schedule=schedule, steps=5000)
    initialization.save_config(dataclasses.replace(BASE, training=linear), str(tmp_path))
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    longer = dataclasses.replace(BASE, training=dataclasses.replace(linear, steps=9000))
    with pytest.raises(
        UserError, match=r"training\.steps .*5000.*9000.*training\.schedule.*--allow_change=training\.steps"
    ):
        initialization.save_config(longer, str(tmp_path))
    other = dataclasses.replace(longer, training=TrainingConfig(schedule="inverse_sqrt", steps=9000))
    with pytest.raises(UserError, match=r"training\.steps"):  # the steps before the change depended on it
        initialization.save_config(other, str(tmp_path), allow_change=["training.schedule"])
    initialization.save_config(longer, str(tmp_path), allow_change=["training.steps"])


def test_a_flag_that_allows_no_field_is_refused(begun):
    with pytest.raises(UserError, match=r"training\.sead.*training\.seed"):
        initialization.save_config(BASE, str(begun), allow_change=["training.sead"])


def test_moved_data_must_have_the_same_content(begun, corpus, tmp_path):
    """The record of the last start has the hashes."""
    data = dataclasses.replace(make_config(corpus).data, cache_dir=str(tmp_path / "cache"))
    here = dataclasses.replace(BASE, data=data)
    hashes = {split: open_pairs(data, split).fingerprint for split in ("train", "validation")}
    (begun / "starts.jsonl").write_text(json.dumps({"step": 0, "data": hashes}) + "\n")
    save(here, begun / "config.json")
    moved = shutil.copytree(corpus, tmp_path / "moved", ignore=shutil.ignore_patterns("cache"))
    there = changed(here, "data.directory", str(moved))
    initialization.save_config(there, str(begun))
    assert runs.read_config(str(begun)) == there
    elsewhere = shutil.copytree(moved, tmp_path / "elsewhere")
    (elsewhere / "train.de").write_text((moved / "train.de").read_text().replace("rot", "blau"))
    other = changed(here, "data.directory", str(elsewhere))
    with pytest.raises(UserError, match=r"data\.directory .*\btrain\b.*--allow_change=data\.directory"):
        initialization.save_config(other, str(begun))
    assert runs.read_config(str(begun)) == there
    initialization.save_config(other, str(begun), allow_change=["data.directory"])
    assert runs.read_config(str(begun)) == other


def test_a_run_without_checkpoint_may_change(tmp_path):
    """All but what its vocabulary was made from."""
    new = str(tmp_path)
    initialization.save_config(BASE, new)
    smaller = changed(changed(BASE, "data.vocabulary_size", 300), "training.seed", 3)
    initialization.save_config(smaller, new)
    assert runs.read_config(new) == smaller
    (tmp_path / "vocabulary.model").touch()
    light = changed(
        changed(changed(smaller, "model.heads", 2), "data.max_length", 64), "data.validation", "v"
    )
    initialization.save_config(light, new)
    with pytest.raises(UserError, match=r"vocabulary\.model .*data\.vocabulary_size .*\b300\b"):
        initialization.save_config(BASE, new)
    assert runs.read_config(new) == light


def test_a_reset_may_change_all_but_the_weights(begun):
    """The config becomes that of the run when the reset is made, not before."""
    saved = (begun / "config.json").read_bytes()
    slower = changed(BASE, "training.learning_rate_scale", 0.1)
    initialization.save_config(slower, str(begun), resets=True)
    assert (begun / "config.json").read_bytes() == saved
    with pytest.raises(UserError, match=r"model\.heads .*\b8\b.*\b4\b"):
        initialization.save_config(changed(slower, "model.heads", 4), str(begun), resets=True)
    (begun / "before_reset").mkdir()
    (begun / "checkpoints").rename(begun / "before_reset" / "checkpoints")  # killed behind the move
    with pytest.raises(UserError, match=r"model\.heads .*\b8\b.*\b4\b"):
        initialization.save_config(changed(slower, "model.heads", 4), str(begun))
    initialization.save_config(slower, str(begun), resets=True)
    assert runs.read_config(str(begun)) == slower
    (begun / "checkpoints" / "0").mkdir(parents=True)
    with pytest.raises(UserError, match=r"learning_rate_scale .*0\.1.*1\.0"):
        initialization.save_config(BASE, str(begun), resets=True)  # which was made before
    average = changed(slower, "training.ema_decay", 0.5)
    with pytest.raises(UserError, match=r"training\.ema_decay .*--reset_schedule .*--workdir"):
        initialization.save_config(average, str(begun), resets=True)


@pytest.mark.long
def test_a_warm_start_takes_the_best_weights_once(known_of_any_task, tmp_path):
    known, config, new = known_of_any_task, any_task(ema_decay=0.5), tmp_path / "new"
    begin(config, new, warm_start=known, steps=2)
    best = runs.load(str(known)).params
    jax.tree.map(np.testing.assert_array_equal, weights(new, 0), best)
    shutil.rmtree(known)  # which is not needed again
    begin(config, new, warm_start=known, steps=4)
    assert [row["step"] for row in rows_without_times(new) if "train/loss" in row] == [2, 4]
    whole = shutil.copytree(new, tmp_path / "whole")
    for step in range(1, 5):
        shutil.rmtree(whole / "checkpoints" / str(step))
    begin(config, whole, steps=4)  # and without the flag: resumes from its beginning
    jax.tree.map(np.testing.assert_array_equal, weights(whole, 4), weights(new, 4))
    changed = jax.tree.map(lambda a, b: (a != b).any(), weights(new, 4), best)
    assert any(jax.tree.leaves(changed))


def test_a_warm_start_keeps_the_tokenizer(known, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", sizes=(("train", 90), ("val", 9), ("test", 9)))
    config = settings(tmp_path / "other")
    wider = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=301))
    with caplog.at_level("INFO"):
        initialization.prepare_warm_start(str(known), wider, str(tmp_path / "new"))
    assert f"uses the vocabulary of {known}" in caplog.text
    assert "data.vocabulary_size was 330 and is now 301" in caplog.text
    assert translation.create(config, str(tmp_path / "new")).tokenizer.fingerprint == tokenizer(known)


def tokenizer(workdir):
    return runs.load(str(workdir)).task.tokenizer.fingerprint


def test_a_warm_start_from_an_export(known, corpus, tmp_path):
    run, export, new = runs.load(str(known)), tmp_path / "export", tmp_path / "new"
    write_bundle(run, str(export), workdir=str(known))
    initialization.prepare_warm_start(str(export), settings(corpus), str(new))
    task = translation.create(settings(corpus), str(new))
    found = initialization.find_initial_variables(task, str(new), str(export))()
    jax.tree.map(np.testing.assert_array_equal, found, run.variables)


def test_impossible_warm_starts_are_refused(known, corpus, tmp_path):
    config = settings(corpus)
    with pytest.raises(UserError, match="--warm_start"):
        initialization.prepare_warm_start(str(known), config, str(known))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none"))):
        initialization.prepare_warm_start(str(tmp_path / "none"), config, str(tmp_path / "new"))
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, norm_order="pre"))
    with pytest.raises(UserError, match=r"model\.norm_order .*'post'.*'pre'"):
        initialization.prepare_warm_start(str(known), other, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    small = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=300))
    (tmp_path / "new").mkdir()
    translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match=rf"new/vocabulary\.model .*{known}"):
        initialization.prepare_warm_start(str(known), config, str(tmp_path / "new"))
    task = translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match=r"embedding/table .*\(300, 32\).*\(330, 32\)"):
        train(
            task,
            config.training,
            str(tmp_path / "new"),
            initial_variables=lambda: runs.load(str(known)).variables,
        )


@pytest.mark.long
def test_a_reset_keeps_the_newest_weights(known_of_any_task, caplog):
    known, config = known_of_any_task, any_task()
    newest = weights(known, 6)
    logged = {"samples.jsonl", "trackers.json", "tensorboard"}  # of the schedule before
    for name in logged - {"tensorboard"}:
        (known / name).write_text("{}")
    begin(config, known, reset=True, steps=3)
    assert logged <= {path.name for path in (known / "before_reset").iterdir()}
    assert not (known / "trackers.json").exists()
    jax.tree.map(np.testing.assert_array_equal, weights(known, 0), newest)
    first = [row for row in rows_without_times(known) if "train/loss" in row]
    assert [row["step"] for row in first] == [3]  # the metrics begin anew, and so does the learning rate
    rates = {
        row["step"]: row["train/learning_rate"]
        for row in rows_without_times(known / "before_reset")
        if "train/loss" in row
    }
    assert first[0]["train/learning_rate"] > rates[4]  # the peak, which step 4 has left
    begin(config, known, reset=True, steps=4)
    assert "--warm_start does nothing" not in caplog.text
    task = tasks.find(config.task).create(config, str(known))
    assert initialization.find_initial_variables(task, str(known), "other") is not None
    assert "--warm_start does nothing, because the schedule of" in caplog.text
    assert [row["step"] for row in rows_without_times(known) if "train/loss" in row] == [3, 4]
    assert sorted(path.name for path in (known / "before_reset" / "checkpoints").iterdir()) == [
        "2",
        "3",
        "4",
        "6",
    ]


def test_a_reset_leaves_nothing_of_the_old_schedule_in_the_run_folder(known_of_any_task):
    known, config = known_of_any_task, any_task()
    for name in ("samples/000006/attention.png", "tensorboard/events", "samples.jsonl", "trackers.json"):
        (known / name).parent.mkdir(parents=True, exist_ok=True)
        (known / name).write_text("{}")
    kept = {"config.json", "starts.jsonl", "lock", "compiled", "before_reset"}
    logged = {path.name for path in known.iterdir()} - kept
    task = tasks.find(config.task).create(config, str(known), new=False)
    initialization.reset(task, str(known))
    assert {path.name for path in known.iterdir()} <= kept
    assert {path.name for path in (known / "before_reset").iterdir()} == logged
    assert (known / "before_reset" / "samples" / "000006" / "attention.png").exists()


@pytest.mark.long
def test_a_reset_of_a_run_with_an_average_begins_from_the_average(tmp_path):
    """The run was validated with its average."""
    begin(any_task(), tmp_path / "plain", steps=4)
    averaged = any_task(ema_decay=0.5)
    begin(averaged, tmp_path / "averaged", steps=4)
    average, last = (jax.tree.leaves(weights(tmp_path / name, 4)) for name in ("averaged", "plain"))
    assert any((x != y).any() for x, y in zip(average, last, strict=True))
    begin(averaged, tmp_path / "averaged", reset=True, steps=1)
    started = jax.tree.leaves(weights(tmp_path / "averaged", 0))
    assert all((x == y).all() for x, y in zip(started, average, strict=True))


def test_a_killed_reset_resumes_without_the_flag(known, corpus):
    """Killed behind the move, before anything new is saved."""
    config, newest = settings(corpus), weights(known, 6)
    initialization.reset(translation.create(config, str(known), new=False), str(known))
    task = translation.create(config, str(known), new=False)
    found = initialization.find_initial_variables(task, str(known), "")()
    jax.tree.map(np.testing.assert_array_equal, found, {"params": newest})


def test_a_reset_needs_a_run_that_has_begun(known, corpus):
    shutil.rmtree(known / "checkpoints")
    task = translation.create(settings(corpus), str(known), new=False)
    with pytest.raises(UserError, match=f"--reset_schedule .*{known}"):
        initialization.reset(task, str(known))
