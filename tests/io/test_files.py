"""Files with one writer at a time."""

import os
import re
import tracemalloc

import pytest

from tests.support.io_conditions import open_folder, unwritable
from tfm.errors import UserError
from tfm.io import files
from tfm.io.files import check_entries, only_writer, open_locked


def test_a_locked_file_is_refused(tmp_path):
    path = tmp_path / "out.part"
    with open_locked(path, "--output") as file:
        file.write(b"mine")
        with pytest.raises(UserError, match=r"Another process is writing .*out.part: wait .* \(--output\)"):
            open_locked(path, "--output")
    with open_locked(path, "--output") as file:
        file.write(b" too")
    assert path.read_bytes() == b"mine too"


@pytest.mark.parametrize("renamed", [True, False])
def test_a_file_deleted_while_locked_is_reopened(tmp_path, monkeypatch, renamed):
    """Its writer ends between the opening here and the lock."""
    path, taken = tmp_path / "out.part", []
    lock = files._lock

    def lock_late(file):
        if not taken:
            os.replace(path, tmp_path / "out") if renamed else os.unlink(path)
        taken.append(file)
        return lock(file)

    monkeypatch.setattr(files, "_lock", lock_late)
    with open_locked(path, "--output") as file:
        file.write(b"mine")
    assert len(taken) == 2
    assert taken[0].closed
    assert path.read_bytes() == b"mine"


def test_the_only_writer_of_a_path_leaves_no_lock(tmp_path):
    path = tmp_path / "new" / "out"
    with only_writer(path, "--output"):
        assert not path.exists()
        with pytest.raises(UserError, match=f"Another process is writing {path}: wait"):
            only_writer(path, "--output").__enter__()
        with only_writer(tmp_path / "other", "--output"):
            pass
    with pytest.raises(ZeroDivisionError), only_writer(path, "--output"):
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []


def test_a_failed_write_names_the_option():
    with open_folder() as folder, unwritable(folder):
        path = os.path.join(folder, "test.de.hypotheses")
        expected = f"Cannot write {path}: Permission denied; check the permissions, or choose another folder "
        with pytest.raises(UserError, match=re.escape(f"{expected}(--output_dir).")):
            only_writer(path, "--output_dir").__enter__()


def test_no_cache_folder_without_a_home(monkeypatch):
    """Python then takes "~" for a name, and a folder of this name would appear wherever tfm is started."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(UserError, match=r"set HOME, XDG_CACHE_HOME, or data\.cache_dir"):
        files.user_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert files.user_cache() == "/caches/tfm"
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert files.user_cache() == "/home/me/.cache/tfm"


def test_a_folder_with_files_is_no_output(tmp_path):
    (tmp_path / "out").mkdir()
    with only_writer(tmp_path / "out", "--output"):
        pass
    (tmp_path / "out" / "file").touch()
    with pytest.raises(UserError, match="is a folder that is not empty"):
        only_writer(tmp_path / "out", "--output").__enter__()


def test_a_folder_has_only_files_and_folders(tmp_path):
    """To open a named pipe would wait for ever."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nothing")
    check_entries(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe, a socket or a device, not a file"):
        check_entries(tmp_path)


def test_a_pipe_is_not_written_to(tmp_path):
    os.mkfifo(tmp_path / "out")
    with pytest.raises(UserError, match="out is a pipe"):
        open_locked(str(tmp_path / "out"), "--output")


def test_reading_takes_the_memory_of_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert files.read_limited(tmp_path / "file", 1 << 30) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_temporary_files_of_killed_processes_go(tmp_path):
    (tmp_path / "curves.png.0123456789ab.tmp").write_text("")
    (tmp_path / "folder.0123456789ab.tmp").mkdir()
    (tmp_path / "mine.tmp").write_text("")
    files.remove_temporary(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tmp"]
