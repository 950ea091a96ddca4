"""Tests of full disks, unwritable folders and clocks that run backwards."""

import errno
import itertools
import os
import pathlib
import re
import shutil
import sys
import time

import pytest

from tests.support import tiny_regression
from tests.support.io_conditions import (
    can_mount,
    files_of,
    open_folder,
    smallest_files,
    unwritable,
    with_mounts,
)
from tests.support.pairs import TEXTS, Letters, random_pairs
from tests.support.paths import ROOT
from tests.support.tiny import make_config, train_run, write_config_file
from tfm import config
from tfm.checkpoints import manifest
from tfm.checkpoints.store import CheckpointStore
from tfm.commands import console
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.io.files import atomic_file, atomic_folder, io_error_message, require_space
from tfm.io.lock import lock_workdir
from tfm.training.run_log import MetricsWriter
from tfm.training.samples import SamplesWriter
from tfm.training.task import Samples
from tfm.visualize import figures, plots
from tfm.workdir import runs
from tfm.workdir.starts import record_start

LIMIT = 64  # bytes, which is less than any of the files below


def write_file(folder):
    with atomic_file(os.path.join(folder, "old"), "w") as file:
        file.write("x" * 1000)


WRITERS = {
    "file": write_file,
    "config": lambda folder: config.save(make_config(pathlib.Path("/data")), os.path.join(folder, "old")),
    "vocabulary": lambda folder: learn_word_pieces(TEXTS, 310, os.path.join(folder, "old")),
    "cache": lambda folder: TokenCache.open(random_pairs(50), Letters(), folder),
    "picture": lambda folder: figures.save(plots.plot_curves({}, ["bleu"]), os.path.join(folder, "old.png")),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRITERS)
def test_failed_write_changes_no_file(name):
    with open_folder() as folder:
        pathlib.Path(folder, "old").write_text("before")
        before = files_of(folder)
        with smallest_files(LIMIT), pytest.raises(UserError, match=r"Cannot write .*File too large; raise"):
            WRITERS[name](folder)
        pathlib.Path(folder, "tokens.lock").unlink(missing_ok=True)  # an empty file that stays
        assert files_of(folder) == before
        for made in ("tokens", "pipes"):
            shutil.rmtree(os.path.join(folder, made), ignore_errors=True)
        with unwritable(folder), Answer() as answer:
            WRITERS[name](folder)
        assert "Permission denied; check the permissions" in answer[0]
        assert files_of(folder) == before
        WRITERS[name](folder)


def lock_folder(folder):
    with lock_workdir(folder):
        pass


APPENDERS = {
    "starts.jsonl": lambda folder: record_start(folder, make_config(pathlib.Path("/data")), {}, 0),
    "metrics.jsonl": lambda folder: MetricsWriter(folder).on_log(3, {"x" * 100: 1.0}),
    "samples.jsonl": lambda folder: SamplesWriter(folder).on_samples(3, Samples([{"text": "x" * 100}], {})),
    "lock": lock_folder,
    "manifest": lambda folder: manifest.write(folder, {"text": "x" * 100}),
}


@pytest.mark.parametrize("name", APPENDERS)
def test_error_of_a_full_disk_names_the_file(name, tmp_path):
    """The errors of the system have no file name after the file is open."""
    with smallest_files(LIMIT), pytest.raises(UserError, match=rf"Cannot write {tmp_path}/{name}: File too"):
        APPENDERS[name](str(tmp_path))


class Answer(list):
    """Collects the message that a command would print for a UserError or an OSError."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.append(str(error) if kind is UserError else io_error_message(error))
        return True


@pytest.mark.long
def test_export_without_space_leaves_no_files(tiny_run, tmp_path):
    run = runs.load(str(tiny_run))
    with smallest_files(20_000), pytest.raises(UserError, match=r"Cannot write .*out: File too large"):
        write_bundle(run, str(tmp_path / "out"), workdir=str(tiny_run))
    assert list(tmp_path.iterdir()) == []


def test_missing_space_is_an_error_before_the_write(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    require_space(tmp_path, free // 2)
    with pytest.raises(UserError, match=r"Cannot write .* are left; free some space"):
        require_space(tmp_path, 2 * free)


@pytest.mark.long
def test_io_errors_exit_with_a_message_and_bugs_with_a_traceback(capsys):
    full = os.strerror(errno.ENOSPC)
    stored = ValueError(
        f"""RESOURCE_EXHAUSTED: Error writing local file "/run/x": {full} [os_error_code='28']"""
    )
    recorded = RuntimeError(f"Failed to finalize: write() failed: {full}; writing /run/a-0; at byte 4")
    for error, sentence in (
        (OSError(errno.EROFS, "?", "/run/y"), "/run/y: Read-only file system; make it writable"),
        (
            FileNotFoundError(errno.ENOENT, "?", b"/run/z"),
            "/run/z: No such file or directory; check the path",
        ),
        (OSError(errno.ENOSPC, "?"), "a file or the output: No space left on device; free some space"),
        (stored, "/run/x: No space left on device; free some space"),
        (recorded, "/run/a-0: No space left on device; free some space"),
    ):
        with pytest.raises(SystemExit) as end, console.exit_on_error():
            raise error
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err
    for bug in (ValueError("shapes differ"), ConnectionResetError(errno.ECONNRESET, "?"), OSError("?")):
        with pytest.raises(type(bug)), console.exit_on_error():
            raise bug
    with pytest.raises(SystemExit) as end, console.exit_on_error():
        raise BrokenPipeError
    assert end.value.code == 141
    assert capsys.readouterr().err == ""


def test_files_have_the_permissions_of_the_umask(tmp_path):
    """Temporary files of Python are private, but the members of a group may share a cache."""
    before = os.umask(0o027)
    try:
        write_file(tmp_path)
        with atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "folder")] == [0o640, 0o750]


def test_files_are_synced_before_the_rename(tmp_path, monkeypatch):
    """Without the sync, a loss of power may keep the rename but lose the content of the file."""
    synced, sync, rename = set(), os.fsync, os.rename

    def remember(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def look(source, target):
        paths = [source, *pathlib.Path(source).rglob("*")]
        assert {os.stat(path).st_ino for path in paths} <= synced
        rename(source, target)

    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr(os, "rename", look)
    with atomic_folder(tmp_path / "whole") as folder:
        (pathlib.Path(folder) / "inner").mkdir()
        for path in ("one", "inner/two"):
            (pathlib.Path(folder) / path).write_text("text")
    assert (tmp_path / "whole" / "inner" / "two").read_text() == "text"


# Complete runs.


@pytest.mark.long
def test_clock_that_runs_backwards_does_not_disturb_a_run(tmp_path, monkeypatch):
    settings = tiny_regression.make_config(steps=4, log_every=1, eval_every=4, checkpoint_every=1, keep=2)
    hours = itertools.count(int(time.time() // 3600), -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    rows = train_run(settings, tmp_path / "run")
    assert rows[-1]["time"] < rows[0]["time"]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
    assert all(row["train/points_per_second"] > 0 for row in rows if "train/loss" in row)
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [3, 4]


def command(*arguments):
    return " ".join([sys.executable, *map(str, arguments)])


MOUNTS = pytest.mark.skipif(not can_mount(), reason="needs unshare and unprivileged user namespaces")
ENVIRONMENT = {"cwd": ROOT, "env": os.environ | {"JAX_PLATFORMS": "cpu"}}


@MOUNTS
@pytest.mark.long
def test_run_resumes_after_a_full_disk(corpus, tmp_path):
    (tmp_path / "disk").mkdir()
    settings = write_config_file(tmp_path, make_config(corpus))
    train = command("train.py", f"--config={settings}", '--workdir="$0"')
    result = with_mounts(
        f'mount -t tmpfs -o size=2600k none "$0"; {train}; echo $? >&2; '
        f'mount -o remount,size=90m "$0"; {train}; echo $? >&2; ls "$0/checkpoints" >&2',
        tmp_path / "disk",
        **ENVIRONMENT,
    )
    first, _, second = result.stderr.partition("\n2\n")
    error = next(line for line in first.splitlines() if line.startswith("error: "))  # Orbax may warn after it
    assert re.match("error: Cannot .*; free some space there and start again.", error), result.stderr
    assert re.search(r"Resuming from step [23] ", second)
    assert second.splitlines()[-5:] == ["0", "2", "3", "4", "6"]


@MOUNTS
@pytest.mark.long
def test_read_only_run_can_translate_but_not_store_an_evaluation(tiny_run, tmp_path):
    (tmp_path / "in").write_text("red dog\n")
    translate = command("-m", "tfm", "translate", '--workdir="$0"', f"--input={tmp_path / 'in'}")
    evaluate = command("eval.py", '--workdir="$0"')
    result = with_mounts(
        'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; '
        f"{translate}; echo $? >&2; {evaluate}; echo $? >&2",
        tiny_run,
        **ENVIRONMENT,
    )
    *before, zero, error, two = result.stderr.splitlines()
    assert (zero, two) == ("0", "2"), result.stderr
    assert not any("Traceback" in line or "Warning" in line for line in before)
    assert error.startswith("error: Cannot write")
    assert "test.de.hypotheses: Read-only file system; make it writable" in error
    assert "--output_dir" in error
