"""Translates lines with a trained run: tfm translate --workdir=DIR < source.txt > translation.txt

Writes exactly one line for every line of the input. Empty lines stay empty. The command reads and writes in
chunks, so its memory does not grow with the input. --format=jsonl writes a JSON object on each line, with
the --n_best best translations, their scores and, with --alignments, word alignments.

With --output=FILE, the finished lines are in FILE.part until all lines are translated. If the command was
interrupted, the same command resumes after the last complete line there. A second command cannot write the
same output at the same time.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from tfm.commands import terminal
from tfm.commands.command import command
from tfm.commands.hosts import join_hosts
from tfm.commands.options import Translate
from tfm.data.sources.text_files import one_line
from tfm.decoding.translate import check_n_best
from tfm.errors import UserError
from tfm.io.files import atomic_file, open_locked
from tfm.sharding import fetch
from tfm.workdir import runs
from tfm.workdir.translator import Translator

log = logging.getLogger(__name__)

CHUNK_LINES = 1024  # sorted by length into batches
CHUNK_BYTES = 1 << 22
LINE_BYTES = 1 << 20
PROGRESS_SECONDS = 10


class LineReader(Protocol):
    """A binary file, or another object that can be read line by line."""

    def readline(self, size: int, /) -> bytes:
        """Returns the next line, or its first `size` bytes. Returns b"" at the end."""


def read_lines(source: LineReader) -> Iterator[str]:
    """Yields the lines of a binary file as texts.

    A line ends in "\\n", and "\\r" before it is removed. Bytes that are not UTF-8 become replacement
    characters. Only the first MiB of a line is kept. Both log a warning.
    """
    number = 0
    while line := source.readline(LINE_BYTES):
        number += 1
        if len(line) == LINE_BYTES and not line.endswith(b"\n"):
            log.warning("Line %s has more than %s bytes: ignored the rest", f"{number:,}", f"{LINE_BYTES:,}")
            while rest := source.readline(LINE_BYTES):
                if rest.endswith(b"\n"):
                    break
        text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
        if "\ufffd" in text:
            log.warning("Line %s is not valid UTF-8: replaced the invalid bytes", f"{number:,}")
        yield text


def chunks(
    lines: Iterable[str], most_lines: int = CHUNK_LINES, most_bytes: int = CHUNK_BYTES
) -> Iterator[list[str]]:
    """Splits lines into lists of at most `most_lines` lines.

    A list ends with the line that reaches `most_bytes` bytes of UTF-8.
    """
    chunk, size = [], 0
    for line in lines:
        chunk.append(line)
        size += len(line.encode())
        if len(chunk) == most_lines or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def as_text(translator: Translator, lines: Sequence[str]) -> list[str]:
    """Returns the best translation of each line."""
    return [one_line(text) for text in translator.translate(lines)]


def as_json(
    translator: Translator, lines: Sequence[str], n_best: int = 1, alignments: bool = False
) -> list[str]:
    """Returns a JSON object for each line, with the fields "source" and "translations".

    Each translation has the fields "text", "score" (see `tfm.tasks.translation.pipeline.Hypothesis`) and, if
    `alignments`, "alignment".
    """
    found = translator.hypotheses(lines, n_best=n_best)
    rows: list[dict[str, Any]] = [
        {"source": line, "translations": [{"text": one_line(text), "score": score} for text, score in each]}
        for line, each in zip(lines, found, strict=True)
    ]
    if alignments:
        pairs = [(row["source"], target) for row in rows for target in row["translations"]]
        aligned = translator.align([source for source, _ in pairs], [target["text"] for _, target in pairs])
        for (_, target), alignment in zip(pairs, aligned, strict=True):
            target["alignment"] = alignment
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def translate_lines(
    translate: Callable[[list[str]], list[str]],
    source: LineReader,
    target: BinaryIO,
    *,
    done: int = 0,
    most_lines: int = CHUNK_LINES,
    on_chunk: Callable[[], object] | None = None,
) -> None:
    """Translates the lines of a binary file into another file, chunk by chunk. Flushes each chunk.

    Args:
      translate: function from a list of texts to a list of texts, such as `as_text` with a translator.
      source, target: binary files.
      done: number of lines of the source that the target already contains.
      most_lines: maximum number of lines in a chunk.
      on_chunk: function without arguments that is called after each chunk is written, or None.

    Raises:
      UserError: if the source has fewer than `done` lines.
      KeyboardInterrupt: if the user interrupts. Its text says how many lines are translated.
    """
    lines = read_lines(source)
    for number in range(done):
        if next(lines, None) is None:
            raise UserError(
                f"The output has {done:,} lines, but the input only {number:,}. Check both files."
            )
    began = shown = time.monotonic()
    number = 0
    try:
        for chunk in chunks(lines, most_lines):
            target.write("".join(f"{text}\n" for text in translate(chunk)).encode("utf-8"))
            target.flush()
            number += len(chunk)
            if on_chunk is not None:
                on_chunk()
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                log.info("%s lines, %.1f lines/s", f"{done + number:,}", number / (shown - began))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{done + number:,} lines are translated") from None


@contextlib.contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """Opens the file `path`.part, locked, for a new output. Renames it to `path` after a success.

    After an error, `path`.part keeps its content, so that `translate_file` can resume. If it is empty, it is
    removed.

    Raises:
      UserError: if `path` exists, another process writes it, or an I/O error occurs.
    """
    part, about = f"{path}.part", f"{path}.origin"
    _check_absent(path)
    with open_locked(part, "--output") as target:
        try:
            _check_absent(path)  # again: the process that had the lock may have completed it
            yield target
            with _explain_kept_part(part):
                os.fsync(target.fileno())  # some file systems report a full disk only here
                os.replace(part, path)
                os.unlink(about)
        finally:
            with contextlib.suppress(OSError):
                if not os.path.getsize(part):
                    os.unlink(part)
                    os.unlink(about)


def translate_file(
    translate: Callable[[list[str]], list[str]],
    source: BinaryIO,
    target: BinaryIO,
    origin: dict[str, Any],
    **options: Any,
) -> None:
    """Calls `translate_lines` with an output of `open_output`, and resumes an interrupted output.

    Args:
      translate, source, options: see `translate_lines`.
      target: the file from `open_output`.
      origin: dict for JSON with everything that decides the output, except the source. A resumed output must
        have an equal origin.

    Raises:
      UserError: if the existing part of the output has another origin, has more lines than the source, or
        was made from other lines than the first lines of the source.
      KeyboardInterrupt: if the user interrupts. Its text says how many lines are complete and how to resume.
    """
    part = target.name
    about = f"{part.removesuffix('.part')}.origin"
    done, lines, checksum = _whole_lines(part, about, origin)
    done = _share_done(done)
    if done:
        log.info("Resuming after line %s of %s", f"{done:,}", part)
    checked = _CheckedLines(source, part, lines, checksum)
    note = functools.partial(_write_origin, about, origin, checked)
    with _explain_kept_part(part):
        try:
            translate_lines(translate, checked, target, done=done, on_chunk=note, **options)
        except KeyboardInterrupt:
            target.flush()
            if not os.path.getsize(part):
                raise
            # The lines of the file count, because the interrupt may have come between a write and its count.
            (done, _), how = _count_lines(part), "the same command on the same input resumes after them"
            raise KeyboardInterrupt(f"{done:,} lines are translated in {part}; {how}") from None


class _CheckedLines:
    """A binary file whose first lines must be equal to the lines that an earlier process read.

    Args:
      file: the binary file to read.
      part: path of the unfinished output, for the error message.
      lines, checksum: number of lines that the earlier process read, and their SHA-256.

    Attributes:
      lines: number of complete lines read so far.
    """

    def __init__(self, file, part, lines, checksum):
        self._file, self._part, self._expected = file, part, (lines, checksum)
        self._digest = hashlib.sha256()
        self.lines = 0

    @property
    def checksum(self) -> str:
        """The SHA-256 of the bytes read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def readline(self, size: int) -> bytes:
        """Reads a line like a binary file.

        Raises:
          UserError: if the lines differ from the lines of the earlier process.
        """
        piece = self._file.readline(size)
        self._digest.update(piece)
        ends = piece.endswith(b"\n")
        self.lines += ends
        if ends and self.lines == self._expected[0] and self.checksum != self._expected[1]:
            raise UserError(_other_origin_message(self._part))
        return piece


@contextlib.contextmanager
def _explain_kept_part(part: str) -> Iterator[None]:
    """Converts an I/O error inside into a UserError that says where the finished lines are."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        path = part.removesuffix(".part")
        raise UserError(f"Cannot write {path}: {reason}; the finished lines are in {part}.") from None


def _check_absent(path: str) -> None:
    """Raises a UserError if the path exists."""
    if os.path.lexists(path):
        raise UserError(f"{path} already exists. Choose another --output, or delete it.")


def _other_origin_message(part: str) -> str:
    """Returns the error message for an unfinished output with another origin."""
    return f"{part} was begun with another input or other options. Delete it to start again."


def _write_origin(about: str, origin: dict[str, Any], source: "_CheckedLines") -> None:
    """Writes the origin of an unfinished output and the source lines that were read to the file `about`.

    It is called after each chunk of output, so the output contains at least the lines of the last call.
    """
    with atomic_file(about, "w") as file:
        json.dump({"origin": origin, "lines": source.lines, "checksum": source.checksum}, file)


def _count_lines(path: str) -> tuple[int, int]:
    """Returns the number of complete lines of a file, and the number of their bytes."""
    lines = end = 0
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
    return lines, end


def _whole_lines(part: str, about: str, origin: dict[str, Any]) -> tuple[int, int, str]:
    """Truncates an unfinished output to its complete lines. If it is empty, writes its origin to `about`.

    Returns:
      The number of complete lines of `part`, and the number and the checksum of the source lines that
      `about` records.
    """
    if not os.path.getsize(part):
        source = _CheckedLines(None, part, 0, "")
        _write_origin(about, origin, source)
        return 0, source.lines, source.checksum
    try:
        with open(about, encoding="utf-8") as file:
            before = json.load(file)
        noted: tuple = int(before["lines"]), str(before["checksum"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        before, noted = {}, ()
    if before.get("origin") != json.loads(json.dumps(origin)):
        raise UserError(_other_origin_message(part))
    lines, end = _count_lines(part)
    os.truncate(part, end)
    return lines, *noted


@command
def main(options: Translate) -> None:
    """Translates."""
    if options.format == "text" and (options.n_best > 1 or options.alignments):
        raise UserError("--n_best and --alignments need --format=jsonl.")
    runs.require_translation(options.config, "tfm translate")
    check_n_best(options.n_best, options.config.decoding)
    if (options.distributed or options.coordinator) and not options.input:
        raise UserError(
            "Several hosts cannot read standard input. Give --input=FILE, which all hosts can read."
        )
    index = join_hosts(options)
    with open_source(options) as source:
        if index > 0:
            compute_share(source, options)
            return
        if not options.output:
            terminal.check_open("stdout", "--output=FILE")
            at_once = 1 if source.isatty() else CHUNK_LINES
            translate_lines(_load(options)[1], source, sys.stdout.buffer, most_lines=at_once)
            return
        with open_output(options.output) as target:
            run, translate = _load(options)
            translate_file(translate, source, target, describe_origin(run, options))


def compute_share(source: BinaryIO, options: Translate) -> None:
    """Does the work of a host other than the first. The first host writes the translations."""
    run, translate = _load(options)
    done = 0
    if options.output:  # the same exchanges as in `translate_file` of the first host
        describe_origin(run, options)
        done = _share_done(done)
    with open(os.devnull, "wb") as nothing:
        translate_lines(translate, source, nothing, done=done)


def _share_done(done: int) -> int:
    """Returns the `done` of the first host. All hosts must call this."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(done)))


def open_source(options: Translate) -> BinaryIO:
    """Opens the input as a binary file.

    Raises:
      UserError: if there is no such file, or standard input is closed.
    """
    if not options.input:
        terminal.check_open("stdin", "--input=FILE")
        return sys.stdin.buffer
    if os.path.isdir(options.input):
        raise UserError(f"Expected a text file at {options.input}, but it is a folder: check --input.")
    if not os.path.exists(options.input):  # exists, not isfile, because a pipe can be read like a file
        raise UserError(f"Expected a text file at {options.input}, but there is none: check --input.")
    return open(options.input, "rb")


def _load(options: Translate) -> tuple[runs.Run, Callable[[list[str]], list[str]]]:
    """Loads the run. Returns it with a function that converts a list of lines into a list of outputs."""
    translator = Translator(options.load())
    if options.format == "text":
        return translator.run, functools.partial(as_text, translator)
    write = functools.partial(as_json, translator, n_best=options.n_best, alignments=options.alignments)
    return translator.run, write


def _checksum(params: Any) -> str:
    """Returns the SHA-256 of the parameters. Another export may have the same steps."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(fetch(leaf)).tobytes())
    return digest.hexdigest()


def describe_origin(run: runs.Run, options: Translate) -> dict[str, Any]:
    """Returns the options, checkpoints, parameters and decoding fields that a resumed output must have."""
    names = ("workdir", "checkpoint", "average", "ensemble", "input", "format", "n_best", "alignments")
    return {
        "options": {name: getattr(options, name) for name in names},
        "checkpoints": run.steps,
        "weights": _checksum(run.params),
        "decoding": vars(run.task.config.decoding),
    }
