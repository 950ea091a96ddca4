"""Tests of manifests: detected changes, invalid contents and errors of the file system."""

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.store_contract import cut_file, delete_file, flip_bit
from tfm.checkpoints import manifest
from tfm.io.files import io_error_message

FILES = {"a": b"one", "b": b"", "inner/c": bytes(1000)}


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with three files and a manifest."""
    for name, content in FILES.items():
        (tmp_path / "whole" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "whole" / name).write_bytes(content)
    manifest.write(tmp_path / "whole", {"step": 3})
    return tmp_path / "whole"


def add_file(path, rng):
    path.with_name("stranger").write_bytes(rng.randbytes(9))


def write_raw(folder, content):
    """Writes a manifest of any content with a correct checksum."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / manifest.FILE).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_check_returns_the_content_of_an_intact_folder(folder):
    for name in manifest.WRITTEN_LATER:
        (folder / name).write_text("anything")
    content = manifest.check(folder)
    assert (content["step"], content["files"].keys()) == (3, FILES.keys())


@pytest.mark.parametrize("damage", [flip_bit, cut_file, delete_file, add_file])
@pytest.mark.parametrize("name", ["a", "inner/c", manifest.FILE])
def test_any_change_of_any_file_is_detected(name, damage, folder):
    for seed in range(5):
        copy = shutil.copytree(folder, folder.with_name(str(seed)))
        damage(copy / name, random.Random(seed))
        with pytest.raises(manifest.Damaged):
            manifest.check(copy)


def test_additional_files_of_an_export_are_not_damage(folder):
    manifest.write(folder, {}, ["a"])
    with pytest.raises(manifest.Damaged, match="b does not belong to it"):
        manifest.check(folder)
    assert manifest.check(folder, exact=False)["files"].keys() == {"a"}


@pytest.mark.parametrize("replace", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_entries_that_are_not_files_are_damage(replace, folder):
    """Opening a pipe would wait forever."""
    for name in ("a", manifest.FILE):
        (folder / name).unlink()
        replace(folder / name)
        with pytest.raises(manifest.Damaged, match=name):
            manifest.check(folder)


HOSTILE = {
    "too large a number": b'{"files": {"a": [1e999, "x"]}}',
    "a NUL character": {"files": {"a\0": [1, "x"]}},
    "half a character": b'{"files": {"\\ud800": [1, "x"]}}',
    "another folder": {"files": {"../a": [1, "x"]}},
    "an absolute path": {"files": {"/etc/hostname": [1, "x"]}},
    "a long name": {"files": {"x" * 5000: [1, "x"]}},
    "no files": {"step": 3},
    "a list": [1, 2],
    "deep": b"[" * 100_000,
    "not JSON": b"{",
    "not text": b"\xff",
    "too large": b"{}" + b" " * manifest.MAX_BYTES,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_manifest_is_damage(name, folder):
    write_raw(folder, HOSTILE[name])
    with pytest.raises(manifest.Damaged):
        manifest.check(folder, exact=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.long
@given(content=JSON | st.builds(lambda files: {"files": files}, st.dictionaries(st.text(), JSON)))
def test_any_json_is_either_damage_or_valid_content(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("manifest")
    write_raw(folder, content)
    with contextlib.suppress(manifest.Damaged):
        assert isinstance(manifest.check(folder, exact=False), dict)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("function", ["os.scandir", "hashlib.file_digest", "tfm.checkpoints.manifest.open"])
def test_error_of_the_file_system_is_not_damage(function, code, folder, monkeypatch):
    """The files may be intact. The error names the file or the folder, even if the system does not."""

    def fail(path, *_, **__):
        named = () if function == "hashlib.file_digest" else (path,)
        raise OSError(code, os.strerror(code), *named)

    monkeypatch.setattr(function, fail, raising=False)
    with pytest.raises(OSError, match=os.strerror(code)) as error:
        manifest.check(folder)
    assert os.fsdecode(error.value.filename).startswith(str(folder))
    assert str(folder) in io_error_message(error.value)
