"""Translates lines with a trained run: tfm translate --workdir=DIR < source.txt > translation.txt

Writes exactly one line for every line of the input. Empty lines stay empty. For a translation memory (TMX)
or a test set in the XML or SGML of WMT, the command writes a line for each source segment. It works in
chunks, so its memory does not grow with the input. --format=jsonl writes a JSON object on each line, with
the --n_best best translations, their scores and, with --alignments, word alignments.

With --output=FILE, the finished lines are in FILE.part until all lines are translated. If the command was
interrupted, the same command resumes after the last complete line there, unless the input is a pipe or
compressed. A second command cannot write the same output at the same time.
"""

import codecs
import collections
import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from tfm.commands import terminal
from tfm.commands.command import command
from tfm.commands.hosts import join_hosts
from tfm.commands.options import Translate
from tfm.commands.resumable_output import count_finished_lines, explain_kept_part, open_output
from tfm.data.sources.segments import read_source_texts
from tfm.data.sources.text_files import NULS, find_problem, is_markup, one_line, unpack
from tfm.decoding.translate import check_n_best
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.io import local_copies
from tfm.workdir import runs
from tfm.workdir.translator import Translator

log = logging.getLogger(__name__)

CHUNK_LINES = 1024  # sorted by length into batches
CHUNK_BYTES = 1 << 22
LINE_BYTES = 1 << 20
PROGRESS_SECONDS = 10


def read_lines(source: BinaryIO, language: str | None = None) -> Iterator[str]:
    """Yields the lines of a binary file as texts, without a byte-order mark.

    A line ends in "\\n", and "\\r" before it is removed. Bytes that are not UTF-8 become replacement
    characters. Only the first MiB of a line is kept. For both, a warning names the first line, and at the end
    of the input another warning counts the lines. If a language is given and the first line shows that the
    input is SGML or XML, yields the texts of its source segments instead.

    Args:
      source: the input.
      language: the source language, which selects the texts of TMX. None reads tags as text.

    Raises:
      UserError: if the first line shows that the input is compressed or UTF-16, or if a file with tags is
        damaged or has another form than TMX and WMT's.
    """
    repairs: collections.Counter[str] = collections.Counter()

    def warn(number: int, problem: str) -> None:
        repairs[problem] += 1
        if repairs[problem] == 1:
            log.warning("Line %s %s. Later lines are only counted", f"{number:,}", problem)

    number = 0
    while line := source.readline(LINE_BYTES):
        number += 1
        if number == 1 and language is not None and is_markup(line):
            yield from read_source_texts(line, source, language)
            return
        if number == 1 and (problem := find_problem(line, {b"\0": NULS})):
            raise UserError(f"The input {problem}.")
        is_cut = len(line) == LINE_BYTES and not line.endswith(b"\n")
        if is_cut:
            warn(number, f"has more than {LINE_BYTES:,} bytes: ignored the rest")
            while rest := source.readline(LINE_BYTES):
                if rest.endswith(b"\n"):
                    break
        line = line.rstrip(b"\r\n")
        # The cut may be inside a character, which is then left out.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(line, final=not is_cut)
        if text.count("\ufffd") > line.count("\ufffd".encode()):  # the input may contain the character
            warn(number, "is not valid UTF-8: replaced the invalid bytes")
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield text
    for problem, count in repairs.items():
        if count > 1:
            log.warning("%s lines of the input: each %s", f"{count:,}", problem)


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


def split_phrases(lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Returns the sources of lines, and the phrases that follow each source after tabs."""
    fields = [[field.strip() for field in line.split("\t")] for line in lines]
    return [source for source, *_ in fields], [list(filter(None, phrases)) for _, *phrases in fields]


def as_text(
    translator: Translator, lines: Sequence[str], start_index: int = 0, *, phrases: bool = False
) -> list[str]:
    """Returns the best translation of each line. The first line has the index `start_index` in the input.

    If `phrases`, a line has phrases that its translation must contain, after tabs.
    """
    sources, wanted = split_phrases(lines) if phrases else (lines, None)
    hypotheses = translator.hypotheses(sources, phrases=wanted, start_index=start_index)
    return [one_line(text) for (text, _), *_ in hypotheses]


def as_json(
    translator: Translator,
    lines: Sequence[str],
    start_index: int = 0,
    *,
    n_best: int = 1,
    alignments: bool = False,
    phrases: bool = False,
) -> list[str]:
    """Returns a JSON object for each line, with the fields "source" and "translations".

    "source" has no phrases. Each translation has the fields "text", "score" (see
    `tfm.tasks.translation.pipeline.Hypothesis`) and, if `alignments`, "alignment", a text such as "0-0 1-2"
    (see `Translator.align`). The first line has the index `start_index` in the input.
    """
    sources, wanted = split_phrases(lines) if phrases else (lines, None)
    hypotheses = translator.hypotheses(sources, n_best=n_best, phrases=wanted, start_index=start_index)
    rows: list[dict[str, Any]] = [
        {"source": line, "translations": [{"text": one_line(text), "score": score} for text, score in each]}
        for line, each in zip(sources, hypotheses, strict=True)
    ]
    if alignments:
        pairs = [(row["source"], target) for row in rows for target in row["translations"]]
        aligned = translator.align([source for source, _ in pairs], [target["text"] for _, target in pairs])
        for (_, target), alignment in zip(pairs, aligned, strict=True):
            target["alignment"] = alignment
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def translate_lines(
    translate: Callable[[list[str], int], list[str]],
    source: BinaryIO,
    target: BinaryIO,
    *,
    done: int = 0,
    most_lines: int = CHUNK_LINES,
    language: str | None = None,
) -> None:
    """Translates the lines of a binary file into another file, chunk by chunk. Flushes each chunk.

    The log shows the progress every `PROGRESS_SECONDS`.

    Args:
      translate: function that translates a chunk, such as `as_text` with a translator. Its arguments are the
        lines and the index of the first of these lines in the source.
      source, target: binary files.
      done: number of lines of the source that the target already contains.
      most_lines: maximum number of lines in a chunk.
      language: the source language, see `read_lines`. None reads tags as text.

    Raises:
      UserError: if the source has fewer than `done` lines, or `read_lines` or `translate` raises it.
      KeyboardInterrupt: if the user interrupts. Its text says how many lines are translated.
    """
    lines = read_lines(source, language)
    for number in range(done):
        if next(lines, None) is None:
            raise UserError(
                f"The output has {done:,} lines, but the input only {number:,}. Check both files."
            )
    began = shown = time.monotonic()
    number = done
    try:
        for chunk in chunks(lines, most_lines):
            target.write("".join(f"{text}\n" for text in translate(chunk, number)).encode("utf-8"))
            target.flush()
            number += len(chunk)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                log.info("%s lines, %.1f lines/s", f"{number:,}", (number - done) / (shown - began))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{number:,} lines are translated") from None


def translate_file(
    translate: Callable[[list[str], int], list[str]],
    source: BinaryIO,
    target: BinaryIO,
    origin: dict[str, Any],
    **options: Any,
) -> None:
    """Calls `translate_lines` with the file of `open_output`, and resumes an interrupted output.

    If the source is a pipe or compressed, the output must be new. `options` are the further arguments of
    `translate_lines`.

    Raises:
      UserError: if the existing part of the output was made from another input or with another origin (see
        `count_finished_lines`), or has more lines than the source, or if an I/O error occurs.
      KeyboardInterrupt: if the user interrupts.
    """
    done = _share_done(count_finished_lines(target, source, origin))
    if done:
        log.info("Resuming after line %s of %s", f"{done:,}", target.name)
    with explain_kept_part(target.name):
        translate_lines(translate, source, target, done=done, **options)


@command
def main(options: Translate) -> None:
    """Translates the input, and writes or prints the translations.

    Raises:
      UserError: if flags contradict each other, the input cannot be read, the run cannot be loaded or does
        not translate, or the output cannot be written.
      KeyboardInterrupt: if the user interrupts. Its text says how many lines are complete.
    """
    check_flags(options)
    is_first = join_hosts(options) == 0  # the first host writes what all hosts translate
    with open_source(options) as source:
        write = write_output if options.output else print_output
        write(options, source, is_first=is_first)


def check_flags(options: Translate) -> None:
    """Raises a UserError if flags contradict each other, or the run does not translate."""
    if options.format == "text" and (options.n_best > 1 or options.alignments):
        raise UserError("--n_best and --alignments need --format=jsonl.")
    runs.require_translation(options.config, "tfm translate")
    check_n_best(options.n_best, options.config.decoding)
    if (options.distributed or options.coordinator) and not options.input:
        raise UserError(
            "Several hosts cannot read standard input. Give --input=FILE, which all hosts can read."
        )


def print_output(options: Translate, source: BinaryIO, *, is_first: bool) -> None:
    """Translates to standard output. Hosts other than the first print nothing.

    A terminal as input is translated line by line, and any other input in chunks.

    Raises:
      UserError: if standard output is closed, the run cannot be loaded, or `translate_lines` raises it.
    """
    if is_first:
        terminal.check_open("stdout", "--output=FILE")
    at_once = 1 if source.isatty() else CHUNK_LINES
    language = options.config.data.source_language
    _, translate = load_translation(options)

    def translate_for_terminal(lines: list[str], start_index: int) -> list[str]:
        return [terminal.escape_for_terminal(text) for text in translate(lines, start_index)]

    with open(os.devnull, "wb") as nothing:
        target = sys.stdout.buffer if is_first else nothing
        translate_lines(translate_for_terminal, source, target, most_lines=at_once, language=language)


def write_output(options: Translate, source: BinaryIO, *, is_first: bool) -> None:
    """Translates into the file of --output, or resumes it. Hosts other than the first write nothing.

    Raises:
      UserError: if `open_output` or `translate_file` raises it, or the run cannot be loaded.
    """
    language = options.config.data.source_language
    if is_first:
        with open_output(options.output) as part:
            run, translate = load_translation(options)
            translate_file(translate, source, part, describe_origin(run, options), language=language)
        return
    run, translate = load_translation(options)
    describe_origin(run, options)  # fetches parameters, like the first host
    with open(os.devnull, "wb") as nothing:
        translate_lines(translate, source, nothing, done=_share_done(0), language=language)


def _share_done(done: int) -> int:
    """Returns the `done` of the first host. All hosts must call this."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(done)))


@contextlib.contextmanager
def open_source(options: Translate) -> Iterator[BinaryIO]:
    """Yields the unpacked input, --input or standard input, as a binary file. The input may be a pipe.

    Raises:
      UserError: if the input is missing, a folder or damaged, or standard input is closed.
    """
    if not options.input:
        terminal.check_open("stdin", "--input=FILE")
        yield sys.stdin.buffer
        return
    if os.path.isdir(options.input):
        raise UserError(f"Expected a text file at {options.input}, but it is a folder: check --input.")
    if not os.path.exists(options.input):  # exists, not isfile, because a pipe can be read like a file
        raise UserError(f"Expected a text file at {options.input}, but there is none: check --input.")
    with open(options.input, "rb") as file:
        packed = os.fstat(file.fileno()).st_size
        with unpack(file, options.input, packed) as source:
            yield source


def load_translation(options: Translate) -> tuple[runs.Run, Callable[[list[str], int], list[str]]]:
    """Loads the run. Returns it with a function for `translate_lines`."""
    translator = Translator(options.load())
    if options.format == "text":
        return translator.run, functools.partial(as_text, translator, phrases=options.phrases)
    settings = {name: getattr(options, name) for name in ("n_best", "alignments", "phrases")}
    return translator.run, functools.partial(as_json, translator, **settings)


def _checksum(params: Any) -> str:
    """Returns the SHA-256 of the parameters. Another export may have the same steps."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(fetch(leaf)).tobytes())
    return digest.hexdigest()


def describe_origin(run: runs.Run, options: Translate) -> dict[str, Any]:
    """Returns the options, checkpoints, parameters and decoding fields that a resumed output must have."""
    names = ["checkpoint", "average", "ensemble", "input", "format", "n_best", "alignments", "phrases"]
    data = run.task.config.data
    return {
        # A copy of a URL has another path each time.
        "options": {
            name: local_copies.show(value) if isinstance(value, str) else value
            for name, value in ((name, getattr(options, name)) for name in ["workdir", *names])
        },
        "checkpoints": run.steps,
        "weights": _checksum(run.params),
        "decoding": vars(run.task.config.decoding),
        "prefixes": [data.source_prefix, data.target_prefix],
    }
