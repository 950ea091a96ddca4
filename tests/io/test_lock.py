"""Tests of the lock of a work directory and of the compilation cache after damage."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT, finish, start_training, wait_until
from tests.support.tiny import write_config_file
from tests.support.tiny_regression import create, make_config
from tfm.config import save
from tfm.errors import UserError
from tfm.io.lock import LOCK_FILE, find_holder, lock_workdir
from tfm.workdir.runs import config_path
from tfm.workdir.train import train


def test_second_lock_of_a_directory_is_an_error(tmp_path):
    with lock_workdir(tmp_path):
        holder = rf"in use by process {os.getpid()} on \S+ since \d{{4}}-"
        with pytest.raises(UserError, match=holder), lock_workdir(tmp_path):
            pass
    with lock_workdir(tmp_path):
        pass


def test_finding_the_holder_does_not_prevent_the_lock(tmp_path):
    ends = threading.Event()

    def look():
        while not ends.is_set():
            find_holder(tmp_path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(300):
            with lock_workdir(tmp_path):
                pass
    finally:
        ends.set()
        watcher.join()


def test_lock_is_released_after_an_error(tmp_path, caplog):
    with pytest.raises(ValueError, match="mine"), lock_workdir(tmp_path):
        raise ValueError("mine")
    with caplog.at_level("INFO"), lock_workdir(tmp_path):
        pass
    assert "Taking over" not in caplog.text


def test_lock_of_a_killed_process_is_taken_over(tmp_path, caplog):
    code = (
        "import os, signal\nfrom tfm.io.lock import lock_workdir\n"
        f"with lock_workdir({str(tmp_path)!r}):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    assert killed.wait(LIMIT) == -signal.SIGKILL
    with caplog.at_level("INFO"), lock_workdir(tmp_path):
        pass
    assert f"Taking over the lock of process {killed.pid} on " in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 3}', "[" * 4000, "x" * 10**6])
def test_lock_with_a_damaged_file_is_still_held(tmp_path, content):
    with lock_workdir(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(UserError, match="in use by another process"), lock_workdir(tmp_path):
            pass


def test_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog):
    def unknown(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with lock_workdir(tmp_path):
        pass
    assert "Cannot lock" in caplog.text


def delete(folder):
    shutil.rmtree(folder)


def move(folder):
    folder.rename(folder.with_name("moved"))


def replace(folder):
    """Replaces the directory. The new directory may reuse its inode number if no descriptor is open."""
    delete(folder)
    folder.mkdir()
    (folder / LOCK_FILE).touch()


def move_and_replace(folder):
    move(folder)
    folder.mkdir()


def replace_lock(folder):
    (folder / LOCK_FILE).rename(folder / "old")
    (folder / LOCK_FILE).touch()


CHANGES = {
    delete: "run was deleted or moved",
    move: "run was deleted or moved",
    replace: "run was replaced",
    move_and_replace: "run was replaced",
    replace_lock: "run/lock was replaced",
}


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("change", CHANGES)
def test_guard_detects_a_deleted_moved_or_replaced_directory(change, workdir):
    with lock_workdir(workdir) as guard:
        guard.check()
        change(workdir)
        with pytest.raises(UserError, match=f"{CHANGES[change]} while this run used"):
            guard.check()


def test_guard_follows_links_and_changes_of_the_working_directory(workdir, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(workdir)
    monkeypatch.chdir(tmp_path)
    with lock_workdir("link") as guard:
        monkeypatch.chdir(workdir)
        guard.check()
        (tmp_path / "link").unlink()
        with pytest.raises(UserError, match="link was deleted"):
            guard.check()


def test_moved_directory_is_still_locked(workdir):
    with lock_workdir(workdir):
        move(workdir)
        with pytest.raises(UserError, match="in use"), lock_workdir(workdir.with_name("moved")):
            pass


def test_directory_that_is_replaced_before_the_lock_is_an_error(workdir, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: replace(workdir))
    with pytest.raises(UserError, match="was replaced"), lock_workdir(workdir):
        pass
    assert [(path.name, path.stat().st_size) for path in workdir.iterdir()] == [("lock", 0)]


@pytest.mark.long
@pytest.mark.parametrize("change", [delete, move_and_replace])
def test_run_ends_if_its_directory_disappears(change, workdir):
    config = make_config(steps=4, log_every=4, eval_every=2, checkpoint_every=4)
    save(config, config_path(str(workdir)))
    task = create(config, str(workdir))
    evaluate = task.evaluate

    def change_and_evaluate(params, data):
        # tests/checkpoints/test_store.py has changes during a save.
        wait_until((workdir / "checkpoints" / "2" / "commit_success.txt").exists, "the save")
        change(workdir)
        return evaluate(params, data)

    task.evaluate = change_and_evaluate
    with pytest.raises(UserError, match=CHANGES[change]):
        train(task, config.training, str(workdir))
    assert not workdir.exists() or list(workdir.iterdir()) == []


@pytest.mark.long
def test_training_in_a_directory_in_use_is_an_error(tmp_path):
    (tmp_path / "run").mkdir()
    config = write_config_file(tmp_path, make_config())
    with lock_workdir(tmp_path / "run"):
        second = start_training(config, tmp_path / "run")
        _, errors = finish(second)
    assert second.returncode == 2
    assert f"in use by process {os.getpid()} on" in errors.splitlines()[-1]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["lock"]


PROGRAMS = """
import os, pathlib, sys, warnings
import jax, jax.numpy as jnp
from tfm.workdir import compiled_programs
folder = pathlib.Path(sys.argv[1])
jax.config.update("jax_compilation_cache_dir", None)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
compiled_programs.enable_compilation_cache(str(folder))
def entries():
    return {path for path in (folder / "compiled").glob("*-cache")}
def damaged():
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3)))
    return sum("Error reading persistent compilation cache" in str(each.message) for each in found)
print("at first", damaged())
made = entries()
for path, share in zip(sorted(made), (0.5, 0, 0.9)):
    os.truncate(path, int(share * path.stat().st_size))
print("cut short", damaged() == min(len(made), 3), damaged() == min(len(made), 3))
other = folder / "compiled" / "other-cache"
other.write_bytes(bytes.fromhex("28b52ffd") + b"of zstandard")
compiled_programs.remove_damaged_programs(str(folder))
print("dropped", len(made - entries()) == min(len(made), 3), other.exists())
print("made again", damaged(), made < entries(), damaged())
"""
ANSWERS = ["at first 0", "cut short True True", "dropped True True", "made again 0 True 0"]


@pytest.mark.long
def test_damaged_programs_are_deleted_and_compiled_again(tmp_path):
    command = [sys.executable, "-c", PROGRAMS, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert result.stdout.splitlines() == ANSWERS, result.stderr
