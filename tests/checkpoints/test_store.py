"""Checkpoints: verified, skipped if damaged, kept and deleted."""

import contextlib
import dataclasses as dc
import datetime as dt
import errno
import json
import logging
import math
import os
import random
import shutil
import threading
from types import SimpleNamespace as Part

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import checkpoint_manager

from tests.support.io_conditions import open_folder, unwritable
from tests.support.processes import LIMIT, wait_until
from tfm.checkpoints import manifest, orbax_paths, readback
from tfm.checkpoints import store as saved
from tfm.errors import UserError
from tfm.io.lock import LOCK_FILE, DirectoryGuard
from tfm.training.step import TrainState

STEPS = (2, 4, 6)


def state_of(step):
    """A state whose numbers are all of its step, with an array that is too large for the quick look."""
    large = jax.random.normal(jax.random.key(step), (manifest.SMALL // 2,))
    params = {"w": jnp.full((3, 2), float(step)), "large": large}
    return TrainState(jnp.int32(step), params, optax.adam(1e-3).init(params))


def open_store(folder, **options):
    return contextlib.closing(saved.Checkpoints(folder, best_metric="bleu", **options))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder of three steps; the second is the best. Not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    with open_store(folder) as store:
        for step in STEPS:
            store.save(state_of(step), {"bleu": -abs(step - 4.0)}, {"sums": {"loss": (step / 3, 1.0)}})
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def large_file(folder):
    return max(files(folder), key=lambda path: path.stat().st_size)


def flip(path, place=None):
    content = bytearray(path.read_bytes())
    place = len(content) // 2 if place is None else place
    content[place] ^= 1
    path.write_bytes(content)


def assert_is_of(state, step):
    jax.tree.map(np.testing.assert_array_equal, state, state_of(step))


@pytest.mark.long
def test_a_step_is_restored_with_its_progress(whole):
    with open_store(whole) as store:
        assert (store.steps(), store.latest(), store.best()) == ([2, 4, 6], 6, 4)
        assert store.recover() == 6
        for step in STEPS:
            assert_is_of(store.restore(state_of(0), step), step)
            assert store.restore_progress(step)["sums"]["loss"] == [step / 3, 1.0]
        weights = store.restore_weights(state_of(0).params, 2)
        jax.tree.map(np.testing.assert_array_equal, weights, state_of(2).params)


def test_orbax_commits_the_manifest(whole):
    """There is no moment at which a step has its name and not its manifest."""
    for step in STEPS:
        assert manifest.check(whole / str(step)) is True
        assert (whole / str(step) / manifest.FILE).stat().st_mtime_ns < committed(whole / str(step))


def committed(folder):
    return json.loads((folder / manifest.HEADER).read_text())["commit_timestamp_nsecs"]


def test_a_damaged_newest_step_is_skipped(copy, caplog):
    damaged = large_file(copy / "6")
    flip(damaged)
    with open_store(copy) as store, caplog.at_level(logging.WARNING, "tfm"):
        assert (store.latest(), store.best()) == (4, 4)
        assert_is_of(store.restore(state_of(0)), 4)
        with pytest.raises(UserError, match=r"of step 6 in .* is damaged \(.* has another checksum\)"):
            store.restore(state_of(0), 6)
    warnings = [record.message for record in caplog.records]
    name = damaged.relative_to(copy / "6")
    assert warnings == [f"Skipping the checkpoint of step 6, which is damaged: {name} has another checksum"]
    assert (copy / "6").is_dir()  # readers change nothing


def test_a_path_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"path of UTF-8 characters, got .*by\\udcfftes.*LC_ALL=C\.UTF-8"):
        open_store(tmp_path / "by\udcfftes").__enter__()


@pytest.mark.long
def test_a_step_is_deleted_by_its_name_first(tmp_path):
    """A reader finds all of it or nothing, never an average that has gone before the rest."""
    with open_store(tmp_path, keep=1) as store:
        for step in (2, 4):
            store.save(state_of(step))
        store._manager.wait_until_finished()
        assert {path.name for path in (tmp_path / "deleted").iterdir()} == {"2"}
        assert manifest.check(tmp_path / "deleted" / "2")
    assert [path.name for path in tmp_path.iterdir()] == ["4"]
    (tmp_path / "deleted" / "2").mkdir(parents=True)  # as a kill leaves it
    with open_store(tmp_path) as store:
        store.recover()
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_a_step_deleted_while_read_is_no_damage(copy, monkeypatch, caplog):
    check = manifest.check

    def delete_first(folder, **options):
        if folder.endswith("6"):
            shutil.rmtree(folder)
        return check(folder, **options)

    monkeypatch.setattr(manifest, "check", delete_first)
    with (
        open_store(copy) as store,
        pytest.raises(saved.CheckpointDeleted, match=r"step 6 .* was deleted while it was read"),
    ):
        store.latest()
    assert "damaged" not in caplog.text


def test_folders_that_are_not_steps_are_kept(copy):
    names = {"007", "\u0663", "6.0", "-1", "backup"}
    for name in names:
        (copy / name).mkdir()
    with open_store(copy) as store:
        assert store.steps() == [2, 4, 6]
        assert store.recover() == 6
        store.save(state_of(8), {"bleu": 9.0})
        assert (store.steps(), store.best()) == ([2, 4, 6, 8], 8)
    assert names < {path.name for path in copy.iterdir()}


def test_without_the_metric_there_is_no_best(copy):
    """Asked for none, or for another than the run had."""
    for name in (None, "loss"):
        with contextlib.closing(saved.Checkpoints(copy, best_metric=name)) as store:
            assert store.best() is None
            assert store.latest() == 6


def test_a_deeply_nested_header_is_damage(copy):
    (copy / "6" / manifest.HEADER).write_text("[" * 100_000)
    with open_store(copy) as store:
        assert store.recover() == 4


@pytest.mark.long
def test_training_makes_a_damaged_step_again(copy):
    flip(large_file(copy / "6"))
    (copy / "2" / "metrics" / "metrics").write_text("{")  # would stop Orbax's manager from opening the folder
    with open_store(copy) as store:
        assert store.recover() == 4
        assert store.steps() == [4]
        store.save(state_of(6), {"bleu": 9.0})
        assert (store.steps(), store.best()) == ([4, 6], 6)
    assert {path.name for path in copy.iterdir()} == {"4", "6", "2.damaged", "6.damaged"}
    with open_store(copy) as store:
        assert_is_of(store.restore(state_of(0)), 6)
    flip(large_file(copy / "6"))  # and once more
    with open_store(copy) as store:
        assert store.recover() == 4
    assert {path.name for path in copy.iterdir()} == {"4", "2.damaged", "6.damaged", "6.damaged1"}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize(("module", "function"), [(manifest, "_open"), (os, "scandir")])
def test_unreadable_file_or_folder_is_not_damaged(module, function, code, copy, monkeypatch):
    """The files may be intact, so nothing is renamed and no older step is taken for the newest."""
    work = getattr(module, function)

    def fail(path):
        if "6" in os.fspath(path).removeprefix(str(copy)):  # inside the newest step
            raise OSError(code, "?", path)
        return work(path)

    monkeypatch.setattr(module, function, fail)
    with open_store(copy) as store:
        for call in (store.recover, store.latest):
            with pytest.raises(OSError, match=r"\?"):
                call()
        assert store.steps() == list(STEPS)


def test_a_pipe_in_a_step_is_damage(copy):
    (copy / "6" / manifest.FILE).unlink()
    os.mkfifo(copy / "6" / manifest.FILE)
    with open_store(copy) as store:
        assert store.latest() == 4


def test_a_read_only_folder_is_found_first(copy):
    with open_folder() as folder:
        inside = shutil.copytree(copy, os.path.join(folder, "copy"))
        with unwritable(inside), open_store(inside) as store:
            with pytest.raises(UserError, match=r"Cannot write .*copy: Permission denied"):
                store.recover()
            assert store.latest() == 6


def test_a_step_saved_again_stays_until_replaced(copy):
    with open_store(copy) as store:
        assert store.recover() == 6
        store.save(state_of(6), {"bleu": 9.0}, {"sums": {"loss": (1.0, 7.0)}}, again=True)
        assert (copy / "6.replaced").is_dir()
    assert sorted(path.name for path in copy.iterdir()) == ["2", "4", "6"]
    with open_store(copy) as store:
        assert store.best() == 6
        assert store.restore_progress(6)["sums"]["loss"] == [1.0, 7.0]


def test_a_kill_while_replacing_is_repaired(copy):
    (copy / "6").rename(copy / "6.replaced")  # killed before the new one was there
    shutil.copytree(copy / "4", copy / "4.replaced")  # and behind it
    with open_store(copy) as store:
        assert store.recover() == 6
        assert store.steps() == [2, 4, 6]
        assert_is_of(store.restore(state_of(0)), 6)
    assert sorted(path.name for path in copy.iterdir()) == ["2", "4", "6"]


def test_a_damaged_best_step_is_skipped(copy):
    flip(large_file(copy / "4"))
    with open_store(copy) as store:
        assert (store.best(), store.latest()) == (6, 6)


def test_no_intact_step_is_an_error(copy):
    for step in STEPS:
        flip(large_file(copy / str(step)))
    before = files(copy)
    with open_store(copy) as store:
        for ask in (store.latest, store.recover, lambda: store.restore(state_of(0))):
            with pytest.raises(UserError, match=r"None of the checkpoints \[2, 4, 6\] in .* is intact"):
                ask()
    assert files(copy) == before


@pytest.mark.long
def test_the_newest_the_best_and_one_an_hour_stay(tmp_path, monkeypatch):
    """A checkpoint every 20 minutes, at scores that fall: against the policies written out."""
    hour, stays = dt.timedelta(hours=1), {}
    monkeypatch.setattr(checkpoint_manager.datetime, "datetime", Clock)
    with open_store(tmp_path, keep=2, keep_best=2, keep_hours=1) as store:
        for step in range(1, 9):
            Clock.hands = dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + step * hour / 3
            store.save(state_of(step), {"bleu": -float(step)})
            stays[step] = store.steps()
    assert stays[8] == sorted({7, 8} | {1, 2} | {1, 4, 7})


def test_a_score_that_is_nan_drives_out_no_best(tmp_path):
    with open_store(tmp_path, keep=1, keep_best=1) as store:
        for step, score in ((2, 1.0), (4, 5.0), (6, math.nan), (8, 2.0), (10, 3.0)):
            store.save(state_of(step), {"bleu": score})
        assert (store.steps(), store.best()) == ([4, 10], 4)


class Clock(dt.datetime):
    """A clock that the test sets, in the place of the one that Orbax reads when it saves."""

    @classmethod
    def now(cls, tz=None):
        return cls.hands


def older(folder, *steps):
    """Makes steps into what was written before there were manifests."""
    for step in steps:
        (folder / str(step) / manifest.FILE).unlink()
        shutil.rmtree(folder / str(step) / manifest.ITEM)
        header = json.loads((folder / str(step) / manifest.HEADER).read_text())
        del header["item_handlers"][manifest.ITEM]
        (folder / str(step) / manifest.HEADER).write_text(json.dumps(header))


def test_a_step_without_checksums_loads_and_warns(copy, caplog):
    older(copy, *STEPS)
    with open_store(copy) as store, caplog.at_level(logging.WARNING, "tfm"):
        assert (store.recover(), store.best()) == (6, 4)
        assert_is_of(store.restore(state_of(0)), 6)
        assert store.restore_progress(6) == {}
    assert "step 6 has no checksums and cannot be verified" in caplog.text


def test_a_lost_manifest_is_damage(copy):
    (copy / "6" / manifest.FILE).unlink()
    with open_store(copy) as store:
        assert store.latest() == 4


# Any path, and what was written is read back.


@pytest.mark.long
@pytest.mark.parametrize("name", ["t[x]", "t*", "t?", "a b", "\xfcn\xef \u4e2d", "{a}#%20", "[", "a\nb"])
def test_path_characters_are_literal(name, tmp_path):
    folder = tmp_path / name / "checkpoints"
    for path in (folder.parent, tmp_path / "tx"):
        path.mkdir()
    with open_store(tmp_path / "tx" / "checkpoints") as other, open_store(folder) as store:
        other.save(state_of(2))
        store.save(state_of(4))
        store.wait()
        assert store.recover() == 4
        assert_is_of(store.restore(state_of(0)), 4)
    assert {path.name for path in (folder / "4" / "params").iterdir()} >= {"manifest.ocdbt", "d"}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_path_like_a_bucket_is_refused(scheme):
    with pytest.raises(UserError, match=rf"would use {scheme}://x/y in place of /{scheme}/x/y"):
        saved.Checkpoints(f"/{scheme}/x/y")


def no_merge(monkeypatch):
    """Orbax finds no files of any process, and only warns."""
    monkeypatch.setattr(orbax_paths._LiteralPath, "glob", lambda *_: iter(()))


# Of reads that fail together, TensorStore may finish one when Orbax has gone on.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("before", [0, 1])
def test_what_cannot_be_read_back_is_not_kept(before, tmp_path, monkeypatch):
    """The first checkpoint of a process, and a later one."""
    store = saved.Checkpoints(tmp_path)
    for step in range(before):
        store.save(state_of(step))
    store.wait()
    no_merge(monkeypatch)
    store.save(state_of(7))
    with pytest.raises(UserError, match=r"of step 7 in .* is not read back as it was saved .*not kept"):
        store.wait()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdecimal()) == ["0"][:before]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_save_is_told_before_the_next(tmp_path, monkeypatch):
    began, end = threading.Event(), threading.Event()

    def check(self, folder):
        began.set()
        end.wait(LIMIT)
        raise readback.Unreadable("nothing")

    monkeypatch.setattr(readback.ReadBack, "check", check)
    store = saved.Checkpoints(tmp_path)
    store.check()
    store.save(state_of(7))
    assert began.wait(LIMIT)
    store.check()  # it still goes on
    end.set()
    with pytest.raises(UserError, match=r"step 7 in .* is not read back"):
        wait_until(lambda: store.check(), "the error")
    assert list(tmp_path.iterdir()) == []
    store.check()  # told once


def test_files_deleted_in_a_write_are_one_error(tmp_path, monkeypatch):
    def delete(folder, expected):
        raise ValueError(f"NOT_FOUND: what TensorStore would meet in {folder}")

    monkeypatch.setattr(readback, "_compare", lambda handler, folder, *_: delete(folder, None))
    store = saved.Checkpoints(tmp_path)
    store.save(state_of(2))
    with pytest.raises(UserError, match=r"step 2 in .* is not read back .*params: NOT_FOUND: what"):
        store.wait()
    monkeypatch.setattr(readback, "check", delete)
    store = saved.Checkpoints(tmp_path)
    store.save(state_of(4))
    with pytest.raises(UserError, match=r"step 4 in .* not be written: NOT_FOUND: what .*Check the disk"):
        store.wait()


@pytest.mark.long
def test_later_checkpoints_are_read_back_in_turns(tmp_path, monkeypatch):
    turns, check = [], readback.check

    def remember(folder, expected):
        if folder.endswith("optimizer"):
            turns.append(sorted(expected.values))
        check(folder, expected)

    monkeypatch.setattr(readback, "check", remember)
    with open_store(tmp_path) as store:
        for step in range(1, 5):
            store.save(state_of(step))
    assert turns == [[0, 1, 2, 3, 4, 5], [1], [2], [3]]


def test_reading_back_names_what_differs(whole, monkeypatch):
    folder, params = str(whole / "4" / "params"), state_of(4).params
    monkeypatch.setattr(readback, "AT_ONCE", 1)  # each array alone
    readback.check(folder, readback.expect(params))
    readback.check(folder, readback.expect(jax.tree.map(np.asarray, params)))
    for number, name in enumerate(["large", "w"]):
        changed = params | {name: params[name].at[2].add(1e-3)}
        with pytest.raises(readback.Unreadable, match=rf"^{name} is read with other values"):
            readback.check(folder, readback.expect(changed))
        readback.check(folder, readback.expect(changed, turn=1 - number))
    with pytest.raises(readback.Unreadable, match=r"^w of type float16 is read as float32"):
        readback.check(folder, readback.expect(params | {"w": params["w"].astype(jnp.float16)}))
    for other in ({"w": params["w"]}, params | {"w": params["w"][:2]}):
        with pytest.raises(readback.Unreadable, match=r"of shape .* is read with shape"):
            readback.check(folder, readback.expect(other))


def on_several_devices(x, changed=None):
    """An array whose halves are on two devices each; the values of one half may be changed."""
    half = len(x) // 2
    indices = [(slice(0, half),), (slice(half, None),)] * 2
    shards = [
        Part(index=index, data=x[index] + (number % 2 == changed)) for number, index in enumerate(indices)
    ]
    return Part(shape=x.shape, dtype=x.dtype, addressable_shards=shards)


def test_arrays_on_several_devices_are_read_back(whole):
    folder, params = str(whole / "4" / "params"), state_of(4).params
    expected = readback.expect(params | {"large": on_several_devices(params["large"])})
    assert len(expected.values[0]) == 2
    readback.check(folder, expected)
    for half in (0, 1):
        with pytest.raises(readback.Unreadable, match=r"^large is read with other values"):
            readback.check(
                folder, readback.expect(params | {"large": on_several_devices(params["large"], half)})
            )


# The folder that it is in.


@pytest.fixture
def guard(tmp_path):
    """A work directory, held."""
    (tmp_path / "run").mkdir()
    with contextlib.closing(DirectoryGuard(tmp_path / "run")) as directory:
        yield directory


def test_nothing_is_saved_without_the_folder(guard, tmp_path):
    with open_store(tmp_path / "run" / "checkpoints", guard=guard) as store:
        store.save(state_of(2))
        store.wait()
        shutil.rmtree(guard.path)
        with pytest.raises(UserError, match="was deleted or moved while this run"):
            store.save(state_of(4))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("others", [[], [LOCK_FILE]])
def test_a_deleted_folder_is_not_made_again(others, guard, tmp_path, monkeypatch):
    """TensorStore makes folders again; where another run has begun since, nothing is removed."""

    def delete(folder, expected):
        shutil.rmtree(guard.path, ignore_errors=True)
        os.makedirs(os.path.join(folder, "d"))
        for name in others:
            (tmp_path / "run" / name).touch()
        raise OSError("what Orbax would meet")

    monkeypatch.setattr(readback, "check", delete)
    store = saved.Checkpoints(tmp_path / "run" / "checkpoints", guard=guard)
    store.save(state_of(2))
    with pytest.raises(UserError, match=r"was (deleted or moved|replaced) while this run"):
        store.wait()
    assert (tmp_path / "run").exists() == bool(others)
    assert not others or (tmp_path / "run" / "checkpoints" / "2.orbax-checkpoint-tmp").exists()


# What the weights belong to.


@pytest.mark.long
def test_weights_need_their_own_assets(tmp_path):
    with open_store(tmp_path, assets={"vocabulary.model": "a" * 64}) as store:
        store.save(state_of(2), progress={"sums": {}})
    for assets in ({"vocabulary.model": "a" * 64}, {}):
        with open_store(tmp_path, assets=assets) as store:
            assert_is_of(store.restore(state_of(0)), 2)
            assert store.restore_progress(2) == {"sums": {}}
    with open_store(tmp_path, assets={"vocabulary.model": "b" * 64}) as store:
        for restore in (store.restore, lambda like: store.restore_weights(like.params)):
            with pytest.raises(UserError, match=r"another vocabulary.model \(SHA-256 a+\.\.\.\).*\(b+\."):
                restore(state_of(0))


def test_a_checkpoint_without_assets_takes_any(whole):
    with open_store(whole, assets={"vocabulary.model": "a"}) as store:
        assert_is_of(store.restore(state_of(0)), 6)


@pytest.mark.long
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_non_finite_parameters_are_named(value, tmp_path):
    state = state_of(2)
    average = state.params | {"w": state.params["w"].at[1, 1].set(value)}
    for step, bad in ((1, dc.replace(state, params=average)), (2, dc.replace(state, average=average))):
        with open_store(tmp_path / str(step)) as store:
            store.save(bad)
            for restore in (store.restore, lambda like: store.restore_weights(like.params)):
                with pytest.raises(UserError, match="not finite, the first in parameter w:"):
                    restore(bad)


def truncate(path, chance):
    os.truncate(path, chance.randrange(max(path.stat().st_size, 1)))


def scribble(path, chance):
    content = bytearray(path.read_bytes())
    if content:
        place = chance.randrange(len(content))
        content[place] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def delete(path, chance):
    path.unlink()


def delete_folder(path, chance):
    shutil.rmtree(path.parent)


def add(path, chance):
    path.with_name("stranger").write_bytes(chance.randbytes(9))


DAMAGES = (truncate, scribble, scribble, delete, delete_folder, add)


@pytest.mark.long
@pytest.mark.parametrize("damage", [truncate, scribble, delete, add])
def test_any_change_of_any_file_is_found(damage, copy):
    """Of all files but Orbax's two of no content, which it writes behind the manifest."""
    chance, folder = random.Random(2), copy / "6"
    for path in files(folder):
        if path.parent == folder and path.name in manifest.LATER:
            continue
        before = shutil.copytree(folder, copy / "before")
        damage(path, chance)
        with pytest.raises(manifest.Damaged):
            manifest.check(folder)
        shutil.rmtree(folder)
        before.rename(folder)
        assert manifest.check(folder)


@pytest.mark.long
def test_any_damage_gives_an_intact_step_or_error(whole, tmp_path):
    """Many rounds of random damage: weights are exactly those of a step, or there is a UserError."""
    chance, came = random.Random(1), dict.fromkeys((*STEPS, None), 0)
    like, expected = state_of(0), {step: state_of(step) for step in STEPS}
    for number in range(28):
        folder = shutil.copytree(whole, tmp_path / str(number))
        damaged = STEPS[len(STEPS) - number % 4 :]  # none, the newest, the newest two, all
        for damaged_step in damaged * chance.choice((1, 1, 2, 4)):
            if there := files(folder / str(damaged_step)):
                chance.choice(DAMAGES)(chance.choice(there), chance)
        step = None
        with open_store(folder) as store, contextlib.suppress(UserError):
            state, best = store.restore(like), store.best()
            step = int(state.step)
            jax.tree.map(np.testing.assert_array_equal, state, expected[step])
            assert store.latest() == store.recover() == step
            assert best in store.steps()
            store.save(state_of(8), {"bleu": 0.0})
            assert store.latest() == 8
        came[step] += 1
        shutil.rmtree(folder)
    assert all(came.values()), came


def test_a_renamed_step_is_damaged(copy):
    """Its weights would pass for those of another step."""
    shutil.rmtree(copy / "4")
    (copy / "6").rename(copy / "4")
    with open_store(copy) as store:
        assert store.latest() == 2
        with pytest.raises(UserError, match=r"step 4 in .* is damaged \(it is that of step 6, renamed"):
            store.restore_weights(state_of(0).params, 4)


def test_a_file_is_no_folder_of_checkpoints(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match=r"a folder of checkpoints at .*, got a file"):
        saved.Checkpoints(tmp_path / "checkpoints")
