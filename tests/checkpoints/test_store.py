"""Tests of the checkpoint store: skipped, moved, deleted and damaged steps. See also test_contracts.py."""

import contextlib
import errno
import logging
import os
import random
import shutil
import threading

import jax
import numpy as np
import pytest

from tests.checkpoints.store_contract import flip_bit
from tests.support.comparison import assert_trees_equal
from tests.support.io_conditions import open_folder, unreadable, unwritable
from tests.support.processes import LIMIT, wait_until
from tfm.checkpoints import manifest, trees
from tfm.checkpoints.retention import Retention
from tfm.checkpoints.store import CheckpointDeleted, CheckpointStore, list_steps
from tfm.errors import UserError
from tfm.io.lock import DirectoryGuard

STEPS = (2, 4, 6)


def tree_of(step):
    """Returns a tree whose values depend on its step."""
    params = {"w": np.full((3, 2), step, np.float32), "large": np.arange(5000, dtype=np.float32) + step}
    return {"params": params, "optimizer": {"step": np.int32(step)}}


SCORES = {2: -2.0, 4: 0.0, 6: -2.0}


def open_store(folder, keep=6, **options):
    options = {"scores": lambda: SCORES, "retention": Retention(keep)} | options
    return contextlib.closing(CheckpointStore(folder, **options))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns a folder with three steps. Tests share the folder and must not change it."""
    folder = tmp_path_factory.mktemp("whole")
    with open_store(folder) as store:
        for step in STEPS:
            store.save(step, tree_of(step), progress={"sums": {"loss": (step / 3, 1.0)}})
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(step_folder):
    """Flips a bit of the largest file."""
    paths = [path for path in step_folder.rglob("*") if path.is_file()]
    flip_bit(max(paths, key=lambda path: path.stat().st_size), random.Random(0))


def parameters_of(step):
    return {"params": tree_of(step)["params"]}


def assert_is(tree, step):
    assert_trees_equal(tree, tree_of(step))


# Reading.


def test_store_reads_steps_progress_shapes_and_parameters(whole):
    with open_store(whole) as store:
        assert (store.steps(), store.latest(), store.best(), store.recover()) == ([2, 4, 6], 6, 4, 6)
        assert store.progress(4) == {"sums": {"loss": [4 / 3, 1.0]}}
        assert store.shapes(4)["params"]["w"] == jax.ShapeDtypeStruct((3, 2), np.float32)
        assert_is(store.restore_variables(2, parameters_of(0)) | {"optimizer": {"step": 2}}, 2)


def test_restore_variables_returns_the_average_if_it_exists(tmp_path):
    with open_store(tmp_path) as store:
        store.save(2, tree_of(2) | {"average": parameters_of(7)})
        weights = store.restore_variables(2, parameters_of(0))["params"]
    assert_trees_equal(weights, tree_of(7)["params"])


def test_latest_and_best_skip_damaged_steps_without_moving_them(copy, caplog):
    for step in ("4", "6"):
        damage(copy / step)
    with open_store(copy) as store, caplog.at_level(logging.WARNING, "tfm"):
        assert (store.latest(), store.best()) == (2, 2)
        with pytest.raises(UserError, match=r"step 6 in .* is damaged \(.*checksum"):
            store.restore(6, tree_of(0))
    assert sorted("step 6" in message for message in caplog.messages) == [False, True]
    assert names(copy) == ["2", "4", "6"]


def test_renamed_step_is_damaged(copy):
    """Otherwise its parameters would be used as the parameters of another step."""
    shutil.rmtree(copy / "4")
    (copy / "6").rename(copy / "4")
    with open_store(copy) as store:
        assert (store.latest(), store.best()) == (2, 2)
        with pytest.raises(UserError, match=r"step 4 in .* is damaged \(.*step 6, renamed"):
            store.shapes(4)


def test_checkpoint_of_another_version_is_damaged(copy):
    content = manifest.read(copy / "6")
    (copy / "6" / manifest.FILE).unlink()
    manifest.write(copy / "6", {name: value for name, value in content.items() if name != "progress"})
    with open_store(copy) as store:
        assert (store.latest(), store.best()) == (4, 4)
        with pytest.raises(UserError, match=r"step 6 in .* is damaged \(manifest has no progress, so"):
            store.shapes(6)


def test_step_deleted_while_it_is_read_is_not_damaged(copy, monkeypatch, caplog):
    check = manifest.check

    def delete_first(folder, **options):
        shutil.rmtree(folder)
        return check(folder, **options)

    monkeypatch.setattr(manifest, "check", delete_first)
    with open_store(copy) as store:
        with pytest.raises(CheckpointDeleted, match=r"step 6 .* was deleted"):
            store.latest()
        with pytest.raises(CheckpointDeleted, match=r"step 6 .*\[2, 4\]"):
            store.restore(6, tree_of(0))
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_error_of_the_file_system_is_not_damage(code, copy, monkeypatch):
    """The store moves nothing and does not return an older step instead."""
    scandir = os.scandir

    def fail(path):
        if os.fspath(path) == str(copy / "6"):
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with open_store(copy) as store:
        for call in (store.recover, store.latest):
            with pytest.raises(OSError, match=os.strerror(code)):
                call()
    assert names(copy) == ["2", "4", "6"]


def test_unreadable_folder_is_an_error_instead_of_an_empty_list(whole):
    with open_folder() as folder:
        shutil.copytree(whole, os.path.join(folder, "run", "checkpoints"))
        with unreadable(os.path.join(folder, "run")), pytest.raises(PermissionError):
            list_steps(os.path.join(folder, "run", "checkpoints"))
        assert list_steps(os.path.join(folder, "run", "checkpoints")) == [2, 4, 6]


def test_file_instead_of_a_folder_of_checkpoints_is_an_error(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match=r"a folder of checkpoints at .*, got a file"):
        CheckpointStore(tmp_path / "checkpoints")


def test_error_without_a_checkpoint_advises_training_first(tmp_path):
    with open_store(tmp_path) as store, pytest.raises(UserError, match="train first"):
        store.restore(2, tree_of(0))


# Recovering.


def test_damaged_step_is_moved_and_can_be_saved_again(copy):
    for moved in (["6.damaged"], ["6.damaged", "6.damaged.1"]):
        damage(copy / "6")
        with open_store(copy, scores=lambda: SCORES | {6: 9.0}) as store:
            assert store.recover() == 4
            store.save(6, tree_of(6))
            assert (store.steps(), store.best()) == ([2, 4, 6], 6)
            assert_is(store.restore(6, tree_of(0)), 6)
        assert names(copy) == ["2", "4", "6", *moved]


def test_recover_stops_at_the_newest_intact_step(copy, monkeypatch):
    damage(copy / "2")
    damage(copy / "6")
    read, check = [], manifest.check
    monkeypatch.setattr(manifest, "check", lambda folder: read.append(folder) or check(folder))
    with open_store(copy) as store:
        assert store.recover() == 4
    assert [os.path.basename(folder) for folder in read] == ["6", "4"]
    assert names(copy) == ["2", "4", "6.damaged"]


def test_recover_without_an_intact_step_moves_nothing(copy):
    for step in STEPS:
        damage(copy / str(step))
    with open_store(copy) as store:
        for call in (store.latest, store.recover):
            with pytest.raises(UserError, match=r"None of the checkpoints \[2, 4, 6\] in .* is intact"):
                call()
    assert names(copy) == ["2", "4", "6"]


def test_recover_removes_only_the_leftovers_of_a_kill(copy):
    others = {"007", "\u0663", "6.0", "-1", "backup", "backup.deleted", "my.manifest"}
    for name in others | {"2.deleted", "8.orbax-checkpoint-tmp"}:
        (copy / name).mkdir()
    with open_store(copy) as store:
        assert store.recover() == 6
        assert store.steps() == [2, 4, 6]
    assert set(names(copy)) == {"2", "4", "6"} | others


def test_recover_in_a_read_only_folder_is_an_error(whole):
    with open_folder() as folder:
        inside = shutil.copytree(whole, os.path.join(folder, "copy"))
        with unwritable(inside), open_store(inside) as store:
            with pytest.raises(UserError, match=r"Cannot write .*copy: Permission denied"):
                store.recover()
            assert store.latest() == 6


# Writing.


@pytest.mark.parametrize("name", ["t[x]", "t*", "t?", "\xfcn\xef \u4e2d", "{a}#%20", "a\nb"])
def test_special_characters_of_a_path_are_literal(name, tmp_path):
    for folder in (name, "tx"):
        (tmp_path / folder).mkdir()
    with open_store(tmp_path / "tx" / "c") as other, open_store(tmp_path / name / "c") as store:
        other.save(2, tree_of(2))
        store.save(4, tree_of(4))
        assert_is(store.restore(4, tree_of(0)), 4)
        assert (store.recover(), other.steps()) == (4, [2])


@pytest.fixture
def before_reading_back(monkeypatch):
    """Returns a list of functions that are called with the folder of a save before it is read back."""
    calls, find = [], trees.find_difference

    def call_first(folder, digests):
        for call in calls:
            call(folder)
        return find(folder, digests)

    monkeypatch.setattr(trees, "find_difference", call_first)
    return calls


# If several reads fail, TensorStore may finish one of them after Orbax has continued.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("before", [[], [2]])
def test_data_changed_by_the_disk_during_a_save_are_an_error(before, tmp_path, before_reading_back):
    """This holds for the first save of a process and for later saves."""
    store = CheckpointStore(tmp_path)
    for step in before:
        store.save(step, tree_of(step))
    store.wait()
    before_reading_back.append(lambda folder: damage(tmp_path / os.path.basename(folder)))
    store.save(7, tree_of(7))
    with pytest.raises(UserError, match=r"step 7 in .* is not read back as it was saved"):
        store.wait()
    assert names(tmp_path) == [str(step) for step in before]


def test_failed_save_is_reported_once_without_waiting(tmp_path, before_reading_back):
    began, end = threading.Event(), threading.Event()

    def fail(_):
        began.set()
        end.wait(LIMIT)
        raise ValueError("NOT_FOUND: an error of TensorStore")

    before_reading_back.append(fail)
    store = CheckpointStore(tmp_path)
    store.check()
    store.save(7, tree_of(7))
    assert began.wait(LIMIT)
    store.check()  # still running
    end.set()
    with pytest.raises(UserError, match=r"step 7 in .* could not be written: NOT_FOUND: an error"):
        wait_until(store.check, "the error")
    store.check()
    store.close()
    assert names(tmp_path) == []


# The run folder.


@pytest.fixture
def run(tmp_path):
    """Creates the folder of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def store(run):
    """Opens a store with a guard in the folder of the run."""
    with contextlib.closing(DirectoryGuard(run)) as guard:
        yield CheckpointStore(run / "checkpoints", guard=guard)


def test_save_does_not_create_a_deleted_folder(run, store):
    store.save(2, tree_of(2))
    store.wait()
    shutil.rmtree(run)
    with pytest.raises(UserError, match="was deleted or moved while this run"):
        store.save(4, tree_of(4))
    assert not run.exists()


@pytest.mark.parametrize("fails", [True, False])
def test_folder_replaced_during_a_save_is_an_error(fails, run, store, before_reading_back):
    """If Orbax fails because of the change, the message names the change instead of Orbax's error."""

    def replace(_):
        shutil.copytree(run, run.with_name("copy"))
        run.rename(run.with_name("moved"))
        run.with_name("copy").rename(run)
        if fails:
            raise OSError("an error of Orbax")

    before_reading_back.append(replace)
    store.save(2, tree_of(2))
    with pytest.raises(UserError, match="was replaced while this run"):
        store.wait()
    store.close()


def test_save_in_a_replaced_folder_changes_no_checkpoint(run, store):
    """A user may replace the folder of a run with a copy."""
    store.save(2, tree_of(2))
    store.wait()
    shutil.copytree(run, run.with_name("copy"))
    run.rename(run.with_name("moved"))
    run.with_name("copy").rename(run)
    with pytest.raises(UserError, match="was replaced"):
        store.save(4, tree_of(4))
    assert names(run / "checkpoints") == ["2"]


# Assets and values of parameters.


def test_parameters_of_other_assets_are_an_error(tmp_path):
    with open_store(tmp_path, assets={"vocabulary.model": "a" * 64}) as store:
        store.save(2, tree_of(2))
    for assets in ({"vocabulary.model": "a" * 64}, {}):
        with open_store(tmp_path, assets=assets) as store:
            assert_is(store.restore(2, tree_of(0)), 2)
    with open_store(tmp_path, assets={"vocabulary.model": "b" * 64}) as store:
        for restore in (
            store.restore,
            lambda step, _: store.restore_variables(step, parameters_of(0)),
        ):
            with pytest.raises(UserError, match=r"vocabulary.model \(SHA-256 a+\.\.\.\).*\(b+\."):
                restore(2, tree_of(0))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("branch", ["params", "average"])
def test_non_finite_parameters_are_an_error_that_names_the_parameter(branch, value, tmp_path):
    damaged = {"w": np.float32([1, value]), "large": np.zeros(2)}
    tree = tree_of(2) | {branch: damaged if branch == "params" else {"params": damaged}}
    with open_store(tmp_path) as store:
        store.save(2, tree)
        for restore, like in ((store.restore, tree), (store.restore_variables, {"params": damaged})):
            with pytest.raises(UserError, match=r"not finite, the first in parameter .*w"):
                restore(2, like)
