"""Continues texts with a language model: tfm generate --workdir=runs/lm_pydoc --prefix="The for statement"

Without --prefix each line of standard input is one, also an empty one, which begins a text. How many samples
of each, and how they are drawn, are fields of the run's config: --config.decoding.samples=3
--config.decoding.temperature=0.8 --config.decoding.top_k=40 --config.decoding.top_p=0.9; with samples=0, beam
search of --config.decoding.beam_size, 1 of which is greedy. The n-th prefix has the same samples for the same
--config.decoding.seed.

--format=text writes each text with its prefix, and a line of dashes between two; --format=jsonl an object a
prefix, with the continuations and their scores.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from tfm.commands import cli, terminal
from tfm.commands.translate import chunks, read_lines
from tfm.workdir.generator import Generator

CHUNK_LINES = 256  # sorted by length into batches
RULE = "-" * 20


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_finished_run(values, argv)
    text = "Text to continue; each line of standard input when not given."
    flags.DEFINE_multi_string("prefix", None, text, values)
    text = "Texts, or a JSON object a prefix."
    flags.DEFINE_enum("format", "text", ("text", "jsonl"), text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Continues texts; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    terminal.check_open("stdout", "a file to write to")
    if arguments.prefix is None:
        terminal.check_open("stdin", "--prefix=TEXT")
    generator = Generator(cli.load_run(arguments))
    show = as_text if arguments.format == "text" else as_json
    for number, prefixes in numbered_chunks(arguments.prefix):
        found = generator.continuations(prefixes, start_index=number)
        for prefix, continuations in zip(prefixes, found, strict=True):
            print(show(prefix, continuations), flush=True)


def numbered_chunks(prefixes: list[str] | None) -> Iterator[tuple[int, list[str]]]:
    """(number of the first, prefixes): those that are given, else lines of standard input, some at a time."""
    if prefixes is not None:
        yield 0, prefixes
        return
    number, at_once = 0, 1 if sys.stdin.isatty() else CHUNK_LINES
    for chunk in chunks(read_lines(sys.stdin.buffer), at_once):
        yield number, chunk
        number += len(chunk)


def as_text(prefix: str, continuations: Sequence[Any]) -> str:
    """Each continuation behind the prefix, with a line of dashes below."""
    return "\n".join(f"{prefix}{each.text}\n{RULE}" for each in continuations)


def as_json(prefix: str, continuations: Sequence[Any]) -> str:
    """{"prefix": text, "continuations": [{"text": text, "score": log-probability}, ...]}."""
    content = {"prefix": prefix, "continuations": [each._asdict() for each in continuations]}
    return json.dumps(content, ensure_ascii=False)
