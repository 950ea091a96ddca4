"""Translates lines with a trained run: tfm translate --workdir=DIR < source.txt > translation.txt

One line out for every line in, whatever it holds; empty lines stay empty. Reads and writes a chunk at a time,
so that memory does not grow with the input. --format=jsonl writes an object a line, with the --n_best best
translations, their scores and, on request, --alignments.

With --output=FILE the finished lines are in FILE.part until all are done; started again after a kill or
Ctrl-C, the command resumes after the last whole line there. A second command cannot use the same output.
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
from absl import flags

from tfm.commands import cli, terminal
from tfm.data.sources.text_files import one_line
from tfm.decoding.translate import check_n_best
from tfm.errors import UserError
from tfm.io.files import atomic_file, open_locked
from tfm.workdir import runs
from tfm.workdir.translator import Translator

log = logging.getLogger(__name__)

CHUNK_LINES = 1024  # sorted by length into batches
CHUNK_BYTES = 1 << 22
LINE_BYTES = 1 << 20
PROGRESS_SECONDS = 10


class LineReader(Protocol):
    """A binary file that is read by lines, or what stands in its place."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or `size` bytes of it; b"" at the end."""


def read_lines(source: LineReader) -> Iterator[str]:
    """The lines of a binary file as texts.

    A line ends in "\\n"; "\\r" before it is dropped. What is not UTF-8 becomes a replacement character, and
    what is beyond the first MiB of a line is left out, both with a warning.
    """
    number = 0
    while line := source.readline(LINE_BYTES):
        number += 1
        if len(line) == LINE_BYTES and not line.endswith(b"\n"):
            log.warning("Line %s has more than %s bytes; left out the rest", f"{number:,}", f"{LINE_BYTES:,}")
            while rest := source.readline(LINE_BYTES):
                if rest.endswith(b"\n"):
                    break
        text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
        if "\ufffd" in text:
            log.warning("Line %s is not UTF-8 throughout; replaced what is not", f"{number:,}")
        yield text


def chunks(
    lines: Iterable[str], most_lines: int = CHUNK_LINES, most_bytes: int = CHUNK_BYTES
) -> Iterator[list[str]]:
    """Lists of lines, each of at most so many lines and little more than so many bytes."""
    chunk, size = [], 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if len(chunk) == most_lines or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def as_text(translator: Translator, lines: Sequence[str]) -> list[str]:
    """The best translation of each line."""
    return [one_line(text) for text in translator.translate(lines)]


def as_json(
    translator: Translator, lines: Sequence[str], n_best: int = 1, alignments: bool = False
) -> list[str]:
    """A JSON object of each line: "source" and "translations", each of these "text", "score", "alignment".

    A score is that of `tfm.tasks.translation.pipeline.Hypothesis`.
    """
    found = translator.hypotheses(lines, n_best=n_best)
    rows: list[dict[str, Any]] = [
        {"source": line, "translations": [{"text": one_line(text), "score": score} for text, score in each]}
        for line, each in zip(lines, found, strict=True)
    ]
    if alignments:
        pairs = [(row["source"], one) for row in rows for one in row["translations"]]
        aligned = translator.align([source for source, _ in pairs], [one["text"] for _, one in pairs])
        for (_, one), alignment in zip(pairs, aligned, strict=True):
            one["alignment"] = alignment
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
    """Translates the lines of a binary file to another, chunk by chunk, each flushed when it is done.

    Args:
      translate: list of texts -> list of texts, such as `as_text` of a translator.
      source, target: binary files.
      done: lines of the source that the target already has.
      most_lines: of a chunk.
      on_chunk: called without arguments when a chunk is written; None for nothing.

    Raises:
      UserError: the source has fewer lines than are done.
      KeyboardInterrupt: as it came, with the number of lines that are done as its text.
    """
    lines = read_lines(source)
    for number in range(done):
        if next(lines, None) is None:
            raise UserError(f"The output has {done:,} lines and the input only {number:,}: check both.")
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
    """A new output: the file `path`.part, locked, that becomes `path` when the context ends well.

    After an error its content stays, for `translate_file` to resume. An empty file is removed.

    Raises:
      UserError: the output is there, another process is writing it, or an I/O error.
    """
    part, about = f"{path}.part", f"{path}.origin"
    _check_absent(path)
    with open_locked(part, "--output") as target:
        try:
            _check_absent(path)  # again: the process that had the lock may have completed it
            yield target
            with _explain_kept_part(part):
                os.fsync(target.fileno())  # some file systems tell of a full disk only here
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
    """`translate_lines` into an output, resuming where a process that was ended left off.

    Args:
      translate, source, options: see `translate_lines`.
      target: what `open_output` gives.
      origin: dict for JSON of all that decides the output beside the source, to be found equal when resuming.

    Raises:
      UserError: what is there of the output has another origin, more lines than the source, or is of other
        lines than those with which the source begins.
      KeyboardInterrupt: as it came, with what is done and how to resume as its text.
    """
    part = target.name
    about = f"{part.removesuffix('.part')}.origin"
    done, lines, checksum = _whole_lines(part, about, origin)
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
            # Counted in the file: the interrupt may have come between a write and the count of it.
            (done, _), how = _count_lines(part), "the same command on the same input resumes after them"
            raise KeyboardInterrupt(f"{done:,} lines are translated in {part}; {how}") from None


class _CheckedLines:
    """A binary file, read by lines, of which the first ones must be those that an earlier process read.

    Args:
      file: to read.
      part: the output that was begun, for the error message.
      lines, checksum: how many those are, and their SHA-256.

    Attributes:
      lines: read so far, those that have an end.
    """

    def __init__(self, file, part, lines, checksum):
        self._file, self._part, self._expected = file, part, (lines, checksum)
        self._digest = hashlib.sha256()
        self.lines = 0

    @property
    def checksum(self):
        """SHA-256 of what was read so far."""
        return self._digest.hexdigest()

    def readline(self, size):
        """As of the file.

        Raises:
          UserError: the lines so far are others.
        """
        piece = self._file.readline(size)
        self._digest.update(piece)
        ends = piece.endswith(b"\n")
        self.lines += ends
        if ends and self.lines == self._expected[0] and self.checksum != self._expected[1]:
            raise UserError(_other_origin_message(self._part))
        return piece


@contextlib.contextmanager
def _explain_kept_part(part):
    """Says in the error message for what goes wrong inside that the part stays."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        path = part.removesuffix(".part")
        raise UserError(f"Cannot write {path}: {reason}; the finished lines are in {part}.") from None


def _check_absent(path):
    if os.path.lexists(path):
        raise UserError(f"{path} is there already: choose another --output, or delete it.")


def _other_origin_message(part):
    return f"{part} was begun with another input or other options: delete it to start again."


def _write_origin(about, origin, source):
    """Writes beside a part what it is made from; the part itself is never behind this."""
    with atomic_file(about, "w") as file:
        json.dump({"origin": origin, "lines": source.lines, "checksum": source.checksum}, file)


def _count_lines(path):
    """The whole lines of a file, and the bytes that they have."""
    lines = end = 0
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
    return lines, end


def _whole_lines(part, about, origin):
    """The whole lines that `part` has, which is cut to them, and the source lines noted: number, checksum.

    For an empty part the origin is noted.
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


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_finished_run(values, argv)
    text = "Text file, a sentence a line; standard input when not given."
    flags.DEFINE_string("input", "", text, values)
    text = "File to write, which must not exist; standard output when not given."
    flags.DEFINE_string("output", "", text, values)
    text = "Lines of text, or a JSON object a line."
    flags.DEFINE_enum("format", "text", ("text", "jsonl"), text, values)
    text = "Translations of each line, with --format=jsonl."
    flags.DEFINE_integer("n_best", 1, text, 1, flag_values=values)
    text = "Word alignments in Pharaoh format, with --format=jsonl."
    flags.DEFINE_bool("alignments", False, text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Translates; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    if arguments.format == "text" and (arguments.n_best > 1 or arguments.alignments):
        raise UserError("--n_best and --alignments need --format=jsonl.")
    chosen = cli.read_config(arguments)
    runs.require_translation(chosen, "tfm translate")
    check_n_best(arguments.n_best, chosen.decoding)
    with open_source(arguments) as source:
        if not arguments.output:
            terminal.check_open("stdout", "--output=FILE")
            at_once = 1 if source.isatty() else CHUNK_LINES
            translate_lines(_load(arguments)[1], source, sys.stdout.buffer, most_lines=at_once)
            return
        with open_output(arguments.output) as target:
            run, translate = _load(arguments)
            translate_file(translate, source, target, describe_origin(run, arguments))


def open_source(arguments: Any) -> BinaryIO:
    """Opens the input as a binary file.

    Raises:
      UserError: if there is no such file, or standard input is closed.
    """
    if not arguments.input:
        terminal.check_open("stdin", "--input=FILE")
        return sys.stdin.buffer
    if os.path.isdir(arguments.input):
        raise UserError(f"Expected a text file at {arguments.input}, but it is a folder: check --input.")
    if not os.path.exists(arguments.input):  # a pipe is read as a file is
        raise UserError(f"Expected a text file at {arguments.input}, but there is none: check --input.")
    return open(arguments.input, "rb")


def _load(arguments):
    """The run, and how it translates a list of lines."""
    translator = Translator(cli.load_run(arguments))
    if arguments.format == "text":
        return translator.run, functools.partial(as_text, translator)
    options = {"n_best": arguments.n_best, "alignments": arguments.alignments}
    return translator.run, functools.partial(as_json, translator, **options)


def _checksum(params):
    """SHA-256 of the parameters: an export that replaced another may be of the same steps."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def describe_origin(run: runs.Run, arguments: Any) -> dict[str, Any]:
    """Returns what must be equal so that another process can continue an output: options, weights, config."""
    names = ("workdir", "checkpoint", "average", "ensemble", "input", "format", "n_best", "alignments")
    return {
        "options": {name: arguments[name].value for name in names},
        "checkpoints": run.steps,
        "weights": _checksum(run.params),
        "decoding": vars(run.task.config.decoding),
    }
