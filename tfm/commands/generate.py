"""Continues texts with a language model: tfm generate --workdir=runs/lm_pydoc --prefix="The for statement"

Without --prefix, each line of standard input is a prefix. An empty line begins a new text. Fields of the
run's config choose the number of samples for each prefix and the sampling: --config.decoding.samples=3
--config.decoding.temperature=0.8 --config.decoding.top_k=40 --config.decoding.top_p=0.9. With samples=0 the
command uses beam search with --config.decoding.beam_size; a beam of 1 is greedy search. The same prefix at
the same position in the input gets the same samples, unless --config.decoding.seed or another field changes.

--format=text writes each continuation after its prefix, followed by a line of dashes. --format=jsonl writes a
JSON object for each prefix, with the continuations and their scores.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tfm.commands import terminal
from tfm.commands.command import command
from tfm.commands.hosts import join_hosts
from tfm.commands.options import Generate
from tfm.commands.terminal import to_json
from tfm.commands.translate import chunks, read_lines
from tfm.errors import UserError
from tfm.workdir.generator import Generator

CHUNK_LINES = 256  # sorted by length into batches
RULE = "-" * 20


@command
def main(options: Generate) -> None:
    """Prints the continuations of the prefixes, or of the lines of standard input.

    Raises:
      UserError: if a standard stream is closed, several hosts would read standard input, or the run cannot be
        loaded or does not continue texts.
    """
    terminal.check_open("stdout", "a file to write to")
    if options.prefixes is None:
        terminal.check_open("stdin", "--prefix=TEXT")
        if options.distributed or options.coordinator:
            raise UserError("Several hosts cannot read standard input. Give --prefix=TEXT.")
    index = join_hosts(options)
    generator = Generator(options.load())
    show = as_text if options.format == "text" else as_json
    for number, prefixes in numbered_chunks(options.prefixes):
        generated = generator.continuations(prefixes, start_index=number)
        for prefix, continuations in zip(prefixes, generated, strict=True):
            if index == 0:
                print(terminal.escape_for_terminal(show(prefix, continuations)), flush=True)


def numbered_chunks(prefixes: Sequence[str] | None) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (index of the chunk's first prefix, prefixes of the chunk).

    Args:
      prefixes: the prefixes, as a single chunk. None reads the lines of standard input, in chunks of
        `CHUNK_LINES`, or of a single line from a terminal.
    """
    if prefixes is not None:
        yield 0, prefixes
        return
    number, at_once = 0, 1 if sys.stdin.isatty() else CHUNK_LINES
    for chunk in chunks(read_lines(sys.stdin.buffer), at_once):
        yield number, chunk
        number += len(chunk)


def as_text(prefix: str, continuations: Sequence[Any]) -> str:
    """Returns the prefix with each continuation appended, each followed by a line of dashes."""
    return "\n".join(f"{prefix}{each.text}\n{RULE}" for each in continuations)


def as_json(prefix: str, continuations: Sequence[Any]) -> str:
    """Returns {"prefix": text, "continuations": [{"text": text, "score": log-probability}, ...]} as JSON."""
    return to_json({"prefix": prefix, "continuations": [each._asdict() for each in continuations]})
