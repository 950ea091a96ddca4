"""Contexts in which real file operations fail, such as a full disk or an unwritable folder."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

from tests.support.processes import LIMIT

NOBODY = 65534
# The mounts end with the process, and need no root.
NAMESPACE = (
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
)


@contextlib.contextmanager
def smallest_files(size):
    """Limits files to `size` bytes. Larger writes fail with EFBIG, even for root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def permissions(folder, mode):
    """Sets the permissions of a folder. A root process becomes another user, so that they apply."""
    os.chmod(folder, mode)
    if root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


def unwritable(folder):
    """Returns a context in which nothing can be created in a folder."""
    return permissions(folder, 0o555)


def unreadable(folder):
    """Returns a context in which a folder cannot be listed and its files cannot be opened."""
    return permissions(folder, 0o000)


@contextlib.contextmanager
def open_folder():
    """Yields a temporary folder that every user can reach, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield folder


def can_mount():
    """Returns whether a process can have its own mounts on this machine."""
    command = (*NAMESPACE, 'mount -t tmpfs none "$0"', tempfile.gettempdir())
    if not shutil.which("unshare"):
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=LIMIT).returncode == 0


def with_mounts(script, *arguments, **options):
    """Runs a shell script with the arguments $0, $1, ... in its own mount namespace."""
    command = (*NAMESPACE, script, *map(str, arguments))
    options |= {"capture_output": True, "text": True, "timeout": LIMIT}
    return subprocess.run(command, check=False, **options)


def files_of(folder):
    """Returns {path: content} of all files below a folder."""
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}
