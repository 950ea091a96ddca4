"""Conditions of the machine, made for real: a disk that is full, a folder that cannot be written."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

from tests.support.processes import LIMIT

NOBODY = 65534
# The mounts go with the process; root is not needed for them.
NAMESPACE = (
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
)


@contextlib.contextmanager
def smallest_files(size):
    """No file may grow beyond `size` bytes; the kernel refuses with EFBIG, whoever the user is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def permissions(folder, mode):
    """Gives a folder these permissions. They bind root too, which is another user meanwhile."""
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
    """A context in which nothing can be created in a folder."""
    return permissions(folder, 0o555)


def unreadable(folder):
    """A context in which nothing in a folder can be found."""
    return permissions(folder, 0o000)


@contextlib.contextmanager
def open_folder():
    """A temporary folder that every user can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield folder


def can_mount():
    """Whether this machine gives processes mounts of their own."""
    command = (*NAMESPACE, 'mount -t tmpfs none "$0"', tempfile.gettempdir())
    if not shutil.which("unshare"):
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=LIMIT).returncode == 0


def with_mounts(script, *arguments, **options):
    """Runs a shell script, its arguments $0, $1, ..., in a mount namespace of its own."""
    command = (*NAMESPACE, script, *map(str, arguments))
    options |= {"capture_output": True, "text": True, "timeout": LIMIT}
    return subprocess.run(command, check=False, **options)


def files_of(folder):
    """{path: content} of all files below a folder."""
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}
