"""The files of a text: found by their names, and unpacked where they are compressed."""

import glob
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Sequence

from tfm.errors import UserError
from tfm.io.files import atomic_file, clean_folder

OPENERS: dict[str, Callable] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
CHUNK = 1 << 24
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe, which can be read only once",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def find_file(path: str, advice: str = "check data.directory, the split's stem and the languages") -> str:
    """The path of the file of this name, or the compressed one.

    Args:
      path: without the ending of a compressed file.
      advice: what to do, the end of the error message.

    Raises:
      UserError: there is none, or something that is no file.
      OSError: as the system gives it.
    """
    other = f"Expected the file {path} (or {path}.gz, {path}.xz), but there is none"
    for ending in OPENERS:
        try:
            kind = stat.S_IFMT(os.stat(path + ending).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path + ending):
                other = f"{path + ending} is a link to {os.readlink(path + ending)}, which does not exist"
            continue
        if kind == stat.S_IFREG:
            return path + ending
        other = f"Expected a text file at {path + ending}, but it is {KINDS.get(kind, 'not a file')}"
    raise UserError(f"{other}: {advice}.")


def expand_names(directory: str, name: str, endings: Sequence[str]) -> list[str]:
    """The paths that a split's name stands for, without their endings.

    Args:
      directory: folder of the files; "" is the current one.
      name: names between commas, each of which may be a pattern with *, ? or [...]; ** is any folders. The
        files of a pattern are in the order of their names. A file with the whole name is that one.
      endings: those that a file may have, such as ".en.gz".

    Raises:
      UserError: a pattern fits no file, or a file is there twice.
    """
    if _exists(os.path.join(directory, name), endings):
        return [os.path.join(directory, name)]
    paths = []
    for each in name.split(","):
        path = os.path.join(directory, each.strip())
        if _exists(path, endings) or not glob.has_magic(each):
            paths.append(path)
            continue
        pattern = os.path.join(glob.escape(directory), each.strip())
        matches = (match for ending in endings for match in glob.glob(pattern + ending, recursive=True))
        found = {match.removesuffix(max(filter(match.endswith, endings), key=len)) for match in matches}
        if not found:
            expected = " or ".join(f"{path}{ending}" for ending in endings)
            raise UserError(f"No file has a name such as {expected}: check data.directory and the pattern.")
        paths += sorted(found)
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise UserError(f"{twice[0]} is named more than once by {name!r}: name each file once.")
    return paths


def _exists(path, endings):
    return any(os.path.lexists(path + ending) for ending in endings)


def decompress(path: str, cache_dir: str) -> str:
    """`path` itself, or an unpacked copy of it, made once for each size and time of change."""
    ending = os.path.splitext(path)[1]
    if ending not in (".gz", ".xz"):
        return path
    status = os.stat(path)
    identity = f"{os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}"
    unpacked = os.path.join(cache_dir, "unpacked", hashlib.sha256(identity.encode()).hexdigest()[:32])
    if os.path.exists(unpacked):
        return unpacked
    with clean_folder(os.path.dirname(unpacked)), atomic_file(unpacked) as plain:
        try:
            with OPENERS[ending](path, "rb") as packed:
                shutil.copyfileobj(packed, plain, CHUNK)
        except DAMAGE as error:
            raise UserError(
                f"{path} does not unpack ({error}): it may be cut short; fetch it again."
            ) from None
    return unpacked


def check_unchanged(path: str, state: os.stat_result, shown_as: str) -> None:
    """Checks a file that is read while others may write to it.

    Args:
      path: of the file.
      state: of the file when it was opened.
      shown_as: what error messages call it.

    Raises:
      UserError: it was written to after that. One that was deleted or replaced is still read as it was.
    """
    try:
        now = os.stat(path)
    except OSError:
        return
    if os.path.samestat(now, state) and _version(now) != _version(state):
        raise UserError(
            f"{shown_as} changed while it was read: start again, and replace data files instead of writing "
            "to them while they are in use."
        )


def _version(state):
    return state.st_size, state.st_mtime_ns
