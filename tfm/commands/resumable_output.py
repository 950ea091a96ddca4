"""Output files whose finished lines survive an interruption, and that the same command resumes.

While a file is unfinished, its lines are in FILE.part. FILE.part.origin describes the input and the options.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from tfm.data.sources.text_files import compression
from tfm.errors import UserError
from tfm.io.files import atomic_file, open_locked, read_limited

MAX_ORIGIN_BYTES = 1 << 20


@contextlib.contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """Opens the file `path`.part to append, and locks it. Renames it to `path` after a success.

    After an error, `path`.part keeps its content, so that `count_finished_lines` can find it. If it is empty,
    it is removed. The file `path`.part.origin is removed when `path`.part is renamed or removed.

    Raises:
      UserError: if `path` has the ending of a compressed file, `path` or a foreign `path`.part.origin exists,
        another process writes the output, or an I/O error occurs.
      KeyboardInterrupt: if the user interrupts. Its text says how many lines are complete.
    """
    part = f"{path}.part"
    if ending := compression(path):
        raise UserError(
            f"Expected --output to be a plain text file, because lines are appended to it, got {path}. "
            f"Choose {path[: -len(ending)]}, and compress it when it is complete."
        )
    _check_absent(path)
    if os.path.lexists(_origin_path(part)) and _read_origin(part) is None:
        raise UserError(f"{_origin_path(part)} is in the way. Choose another --output, or move it away.")
    with open_locked(part, "--output") as target:
        try:
            _check_absent(path)  # again, because the process that had the lock may have completed the file
            yield target
            with explain_kept_part(part):
                os.fsync(target.fileno())  # some file systems report a full disk only here
                os.replace(part, path)
        except KeyboardInterrupt:
            target.flush()
            if not os.path.getsize(part):
                raise
            how = "; the same command resumes after them" if os.path.exists(_origin_path(part)) else ""
            raise KeyboardInterrupt(f"{_whole_lines(part)[0]:,} lines are complete in {part}{how}") from None
        finally:
            if not os.path.exists(part):
                _remove(_origin_path(part))
            elif not os.path.getsize(part):
                _remove(part, _origin_path(part))


def count_finished_lines(target: BinaryIO, source: BinaryIO, origin: dict[str, Any]) -> int:
    """Returns the number of lines that the earlier, interrupted call wrote, or 0 for a new output.

    Removes an incomplete last line from the target. Writes the file .part.origin with the origin and the
    checksum of the input next to the target. A pipe and a compressed file have no checksum, because they
    cannot be read twice. An output of such an input has no .part.origin and cannot be resumed.

    Args:
      target: the file of `open_output`.
      source: the input. Its position does not change. An output resumes only if the rest of the input has the
        same content.
      origin: dict for JSON with everything else that decides the output. A resumed output must have an equal
        origin.

    Raises:
      UserError: if the target is not empty, and was begun with a different input or origin, or the earlier or
        the present input is a pipe or compressed. An empty target accepts any input.
    """
    part = target.name
    checksum = _checksum(source)
    described = json.loads(json.dumps({"origin": origin, "checksum": checksum}))
    if os.path.getsize(part) and _read_origin(part) != described:
        raise UserError(
            f"{part} was begun with another input or other options, or its input is a pipe. Delete it to "
            "start again."
        )
    if checksum:
        with atomic_file(_origin_path(part), "w") as file:
            json.dump(described, file)
    lines, end = _whole_lines(part)
    os.truncate(part, end)
    return lines


@contextlib.contextmanager
def explain_kept_part(part: str) -> Iterator[None]:
    """Converts an I/O error inside into a UserError that says where the finished lines are."""
    try:
        yield
    except OSError as error:
        path, reason = part.removesuffix(".part"), error.strerror or error
        raise UserError(f"Cannot write {path}: {reason}; the finished lines are in {part}.") from None


def _checksum(source: BinaryIO) -> str:
    """Returns the SHA-256 of the rest of a file without consuming it. Returns "" for a pipe."""
    if not source.seekable():
        return ""
    start = source.tell()
    digest = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
    source.seek(start)
    return digest


def _read_origin(part: str) -> Any:
    """Returns the description of the origin of an unfinished output, or None if the file is not one."""
    try:
        described = json.loads(read_limited(_origin_path(part), MAX_ORIGIN_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return described if isinstance(described, dict) and described.keys() == {"origin", "checksum"} else None


def _origin_path(part: str) -> str:
    """Returns the path of the description of an unfinished output's origin."""
    return f"{part}.origin"


def _whole_lines(path: str) -> tuple[int, int]:
    """Returns the number of complete lines of a file, and the number of their bytes."""
    lines = end = 0
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
    return lines, end


def _check_absent(path: str) -> None:
    """Raises a UserError if the path exists."""
    if os.path.lexists(path):
        raise UserError(f"{path} already exists. Choose another --output, or delete it.")


def _remove(*paths: str) -> None:
    """Removes the files that exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
