"""Tests of manifests: detected changes and errors of the file system."""

import errno
import hashlib
import json
import os
import random
import shutil
from typing import Any

import pytest

from tests.checkpoints.store_contract import cut_file, delete_file, flip_bit
from tfm.checkpoints import manifest
from tfm.errors import UserError
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


def test_folder_in_place_of_a_file_is_damage(folder):
    for name in ("a", manifest.FILE):
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(manifest.Damaged, match=name):
            manifest.check(folder)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize(
    "function", ["os.scandir", "hashlib.file_digest", "tfm.checkpoints.manifest.open", "tfm.io.files.open"]
)
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


FORGED: list[Any] = [
    [1],
    {"step": 3},
    *({"files": files} for files in (["a"], {"a": 5}, {"a": [3]}, {"a": ["3", ""]})),
    *({"files": {name: [0, ""]}} for name in ("../../../../dev/zero", "/dev/zero", "a\0b", "\ud800")),
]
BODIES = [*(json.dumps(content).encode() for content in FORGED), b"{", b"\xff{}", b"[" * 200_000, b"9" * 5000]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: ascii(body[:40]))
def test_forged_manifest_is_damage(body, folder):
    """Its checksum is right, because somebody made it."""
    (folder / manifest.FILE).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(manifest.Damaged, match=manifest.FILE):
        manifest.check(folder, exact=False)


@pytest.mark.parametrize("name", ["a", manifest.FILE])
def test_pipe_or_device_in_place_of_a_file_is_not_read(name, folder):
    (folder / "a").write_bytes(b"")
    manifest.write(folder, {}, ["a"])
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match="is a pipe, a socket or a device"):
        manifest.check(folder, exact=False)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is a pipe, a socket or a device"):
        manifest.check(folder, exact=False)
