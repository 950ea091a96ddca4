"""Runs that begin with weights there already are: of another run, or their own with a new schedule."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from tests.kills import stream
from tests.tiny import make_config, write_corpus
from tfm import artefact, runs, starts
from tfm.errors import UserError
from tfm.tasks import translation
from tfm.training.loop import train


def begin(config, workdir, *, warm_start="", reset=False, steps=None):
    """What train.py does with its flags, up to `steps`."""
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=steps or 6))
    workdir.mkdir(exist_ok=True)
    starts.keep_config(config, str(workdir))
    if warm_start:
        starts.adopt(str(warm_start), config, str(workdir))
    if reset:
        starts.reset(translation.create(config, str(workdir), new=False), str(workdir))
    task = translation.create(config, str(workdir), new=not warm_start)
    weights = starts.first_weights(task, str(workdir), str(warm_start))
    train(task, config.training, str(workdir), first_weights=weights)


def weights(workdir, step):
    return runs.load(str(workdir), checkpoint=str(step)).params


def settings(corpus, **options):
    """Keeps every checkpoint."""
    return make_config(corpus, checkpoint_every=1, keep=99, **options)


@pytest.fixture
def known(tiny_run, corpus, tmp_path):
    """A copy of the tiny run with its config, in a folder of its own."""
    return shutil.copytree(tiny_run, tmp_path / "known")


def test_until_its_first_checkpoint_a_run_may_still_be_mended(corpus, tmp_path):
    config, new = settings(corpus), str(tmp_path)
    starts.keep_config(config, new)
    smaller = dataclasses.replace(
        config, data=dataclasses.replace(config.data, vocabulary_size=300, batch_tokens=128)
    )
    starts.keep_config(smaller, new)
    assert runs.read_config(new) == smaller
    translation.create(smaller, new)  # makes the vocabulary
    light = dataclasses.replace(
        smaller,
        model=dataclasses.replace(config.model, heads=2, remat=True),
        data=dataclasses.replace(smaller.data, batch_tokens=64),
    )
    starts.keep_config(light, new)
    with pytest.raises(UserError, match=r"vocabulary.model was made .*: vocabulary_size 300 there, 330 now"):
        starts.keep_config(config, new)
    assert runs.read_config(new) == light


def test_a_run_that_has_begun_may_change_what_changes_no_number(known, corpus):
    config = make_config(corpus)
    free = dataclasses.replace(
        config, model=dataclasses.replace(config.model, remat=True, scan=True, attention="xla")
    )
    starts.keep_config(free, str(known))
    assert runs.read_config(str(known)) == free
    for section, field in (("model", {"heads": 2}), ("data", {"batch_tokens": 512})):
        other = dataclasses.replace(
            config, **{section: dataclasses.replace(getattr(config, section), **field)}
        )
        (name,) = field
        with pytest.raises(UserError, match=rf"another config\.{section}: {name} "):
            starts.keep_config(other, str(known))


@pytest.mark.long
def test_a_warm_start_begins_with_the_best_weights_of_another_run_once(known, corpus, tmp_path):
    config, new = settings(corpus, ema_decay=0.5), tmp_path / "new"
    begin(config, new, warm_start=known, steps=2)
    best = runs.load(str(known)).params
    jax.tree.map(np.testing.assert_array_equal, weights(new, 0), best)
    shutil.rmtree(known)  # which is not needed again
    begin(config, new, warm_start=known, steps=4)
    assert [row["step"] for row in stream(new) if "train/loss" in row] == [2, 4]
    whole = shutil.copytree(new, tmp_path / "whole")
    for step in range(1, 5):
        shutil.rmtree(whole / "checkpoints" / str(step))
    begin(config, whole, steps=4)  # and without the flag: goes on from its beginning
    jax.tree.map(np.testing.assert_array_equal, weights(whole, 4), weights(new, 4))
    changed = jax.tree.map(lambda a, b: (a != b).any(), weights(new, 4), best)
    assert any(jax.tree.leaves(changed))


def test_a_warm_start_takes_the_vocabulary_along_to_other_data(known, tmp_path):
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", sizes=(("train", 90), ("val", 9), ("test", 9)))
    config = settings(tmp_path / "other")
    starts.adopt(str(known), config, str(tmp_path / "new"))
    assert translation.create(config, str(tmp_path / "new")).vocabulary.fingerprint == vocabulary(known)


def vocabulary(workdir):
    return runs.load(str(workdir)).task.vocabulary.fingerprint


def test_a_warm_start_from_an_export(known, corpus, tmp_path):
    run, export, new = runs.load(str(known)), tmp_path / "export", tmp_path / "new"
    artefact.save(run, str(export), workdir=str(known))
    starts.adopt(str(export), settings(corpus), str(new))
    task = translation.create(settings(corpus), str(new))
    found = starts.first_weights(task, str(new), str(export))()
    jax.tree.map(np.testing.assert_array_equal, found, run.params)


def test_warm_starts_that_make_no_sense_are_refused(known, corpus, tmp_path):
    config = settings(corpus)
    with pytest.raises(UserError, match="names the run itself"):
        starts.adopt(str(known), config, str(known))
    with pytest.raises(UserError, match="Expected the folder of a run"):
        starts.adopt(str(tmp_path / "none"), config, str(tmp_path / "new"))
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, norm_order="pre"))
    with pytest.raises(UserError, match="has another model: norm_order 'post' there, 'pre' now"):
        starts.adopt(str(known), other, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    small = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=300))
    (tmp_path / "new").mkdir()
    translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match="is another vocabulary than that of"):
        starts.adopt(str(known), config, str(tmp_path / "new"))
    task = translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match="What the run would begin with is of another model"):
        train(
            task, config.training, str(tmp_path / "new"), first_weights=lambda: runs.load(str(known)).params
        )


@pytest.mark.long
def test_a_reset_begins_anew_with_the_newest_weights_once(known, corpus):
    config, newest = settings(corpus), weights(known, 6)
    begin(config, known, reset=True, steps=3)
    jax.tree.map(np.testing.assert_array_equal, weights(known, 0), newest)
    first = [row for row in stream(known) if "train/loss" in row]
    assert [row["step"] for row in first] == [2, 3]  # the metrics begin anew, and so does the learning rate
    assert first[0]["train/learning_rate"] == stream(known / "before_reset")[0]["train/learning_rate"]
    begin(config, known, reset=True, steps=4)
    assert [row["step"] for row in stream(known) if "train/loss" in row] == [2, 3, 4]
    assert sorted(path.name for path in (known / "before_reset" / "checkpoints").iterdir()) == [
        "2",
        "3",
        "4",
        "6",
    ]


def test_a_reset_that_was_killed_begins_with_the_same_weights_without_the_flag(known, corpus):
    """Killed behind the move, before anything new is saved."""
    config, newest = settings(corpus), weights(known, 6)
    starts.reset(translation.create(config, str(known), new=False), str(known))
    task = translation.create(config, str(known), new=False)
    jax.tree.map(np.testing.assert_array_equal, starts.first_weights(task, str(known), "")(), newest)


def test_a_reset_needs_a_run_that_has_begun(known, corpus):
    shutil.rmtree(known / "checkpoints")
    task = translation.create(settings(corpus), str(known), new=False)
    with pytest.raises(UserError, match="needs a run that has begun"):
        starts.reset(task, str(known))
