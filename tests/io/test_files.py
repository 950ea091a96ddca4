"""Tests of locked files, limits of reading, and temporary files of killed processes."""

import errno
import fcntl
import os
import tracemalloc

import pytest

from tests.support.io_conditions import open_folder, unwritable
from tests.support.sweeps import planned
from tfm.errors import UserError
from tfm.io import files
from tfm.io.files import (
    append_json_line,
    clean_folder,
    only_writer,
    open_locked,
)
from tfm.io.lock import LOCK_FILE, lock_workdir
from tfm.sweep.processes import LOG_FILE, RunProcess
from tfm.training.run_log import METRICS_FILE, MetricsWriter


def test_locked_file_has_a_single_writer(tmp_path):
    path = tmp_path / "out.part"
    with open_locked(path, "--output") as file:
        file.write(b"mine")
        with pytest.raises(UserError, match=r"Another process .*out.part.* \(--output\)"):
            open_locked(path, "--output")
    with open_locked(path, "--output") as file:
        file.write(b" too")
    assert path.read_bytes() == b"mine too"


@pytest.mark.parametrize("end", [os.unlink, lambda path: os.replace(path, f"{path}.done")])
def test_file_that_disappears_before_the_lock_is_opened_again(end, tmp_path, monkeypatch):
    """The previous writer may delete or rename the file."""
    path, locked, flock = tmp_path / "out.part", [], fcntl.flock

    def lock_late(file, operation):
        if not locked:
            end(path)
        locked.append(file)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with open_locked(path, "--output") as file:
        file.write(b"mine")
    assert [file.closed for file in locked] == [True, True]
    assert path.read_bytes() == b"mine"


def test_path_has_a_single_writer_whose_lock_file_is_removed(tmp_path):
    path = tmp_path / "new" / "out"
    path.parent.mkdir()
    (path.parent / "out.lock").write_text("of the user")  # such as poetry.lock
    (path.parent / "out.0123456789ab.tmp").mkdir()  # of a killed process
    others = {"other.0123456789ab.tmp", "out.v2.0123456789ab.tmp"}  # perhaps of another process
    for other in others:
        (path.parent / other).mkdir()
    with only_writer(path, "--output"), only_writer(tmp_path / "other", "--output"):
        assert not path.exists()
        with pytest.raises(UserError, match=f"Another process .*{path}"):
            only_writer(path, "--output").__enter__()
    with pytest.raises(ZeroDivisionError), only_writer(path, "--output"):
        raise ZeroDivisionError
    assert {each.name for each in path.parent.iterdir()} == {"out.lock", *others}


def test_error_of_an_unwritable_folder_names_path_and_flag():
    with open_folder() as folder, unwritable(folder):
        path = os.path.join(folder, "test.de.hypotheses")
        with pytest.raises(UserError, match=rf"{path}: Permission denied.*\(--output_dir\)"):
            only_writer(path, "--output_dir").__enter__()


def test_output_folder_with_files_is_an_error(tmp_path):
    (tmp_path / "out").mkdir()
    with only_writer(tmp_path / "out", "--output"):
        pass
    (tmp_path / "out" / "file").touch()
    with pytest.raises(UserError, match=r"out .*not empty.*--output"):
        only_writer(tmp_path / "out", "--output").__enter__()


def test_pipe_is_an_error(tmp_path):
    """Opening a named pipe would wait forever."""
    os.mkfifo(tmp_path / "out")
    with pytest.raises(UserError, match="out is a pipe"):
        open_locked(tmp_path / "out", "--output")


def test_read_limited_allocates_the_size_of_the_file_not_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert files.read_limited(tmp_path / "file", 1 << 30) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(UserError, match=r"at most 2 bytes in .*file, got 3\b"):
        files.read_limited(tmp_path / "file", 2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe"):
        files.read_limited(tmp_path / "pipe", 2)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="the system has no /proc/self/mem")
@pytest.mark.parametrize(
    "read", [files.hash_file, lambda path: files.read_limited(path, 100)], ids=["hash_file", "read_limited"]
)
def test_errors_of_reading_name_the_file(read):
    """Python names it only in errors of opening."""
    with pytest.raises(OSError, match="/proc/self/mem") as error:
        read("/proc/self/mem")
    assert "Cannot read or write /proc/self/mem" in files.io_error_message(error.value)


def test_remove_temporary_deletes_only_the_files_of_killed_processes(tmp_path):
    (tmp_path / "curves.png.0123456789ab.tmp").write_text("")
    (tmp_path / "folder.0123456789ab.tmp").mkdir()
    (tmp_path / "mine.tmp").write_text("")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link.0123456789ab.tmp").symlink_to(tmp_path / "kept")
    files.remove_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "mine.tmp"]


def test_temporary_folder_that_cannot_be_removed_is_not_an_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    (tmp_path / "folder.0123456789ab.tmp").mkdir()
    monkeypatch.setattr(os, "rmdir", refuse)
    files.remove_temporary(tmp_path)


@pytest.mark.parametrize(
    ("cache", "home", "expected"), [("/caches", "~", "/caches/tfm"), ("", "/home/me", "/home/me/.cache/tfm")]
)
def test_user_cache_is_an_absolute_path(cache, home, expected, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert files.user_cache() == expected


def test_user_cache_without_a_home_folder_is_an_error(monkeypatch):
    """Python then treats "~" as the name of a file."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(UserError, match=r"HOME, XDG_CACHE_HOME, or data\.cache_dir"):
        files.user_cache()


def poll_sweep(folder):
    run = planned("a")._replace(workdir=str(folder))
    RunProcess(run, [], "programs").poll()


def enter(context):
    with context:
        pass


CREATORS = {  # {name of a file in a folder: function that creates it}
    LOCK_FILE: lambda folder: enter(lock_workdir(str(folder))),
    ".out.tfm-lock": lambda folder: enter(only_writer(str(folder / "out"), "--output")),
    "out.part": lambda folder: open_locked(str(folder / "out.part"), "--output").close(),
    "tokens.lock": lambda folder: enter(clean_folder(str(folder / "tokens"))),
    "lines.jsonl": lambda folder: append_json_line(str(folder / "lines.jsonl"), {}),
    METRICS_FILE: lambda folder: MetricsWriter(str(folder)).on_start(0, None),
    LOG_FILE: poll_sweep,
}


@pytest.mark.parametrize("name", CREATORS)
@pytest.mark.parametrize("exists", [False, True])
def test_link_in_place_of_a_file_that_is_created_by_name_is_not_followed(name, exists, tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    if exists:
        elsewhere.write_bytes(b"mine")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises((UserError, OSError)) as raised:
        CREATORS[name](folder)
    assert "symbolic link" in (files.io_error_message(raised.value) or str(raised.value))
    assert elsewhere.exists() == exists
    assert not exists or elsewhere.read_bytes() == b"mine"


def test_message_has_a_largest_size():
    text = str(UserError("begin" + "x" * 10**6 + "end"))
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 30_000


def test_file_system_without_maps_is_named_in_the_message():
    error = OSError(f"{os.strerror(errno.ENODEV)} (os error 19)")  # of safetensors, without a number
    assert "cannot map files into memory" in files.io_error_message(error)
