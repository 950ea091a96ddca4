"""Sentence pairs from two text files. Line i of one file translates line i of the other file."""

import os
from collections.abc import Sequence

from tfm.data.data_errors import DataError, MissingFile, collect, raise_all
from tfm.data.source import Source, join
from tfm.data.sources.text_files import ENDINGS, TextFile, exists, expand_names, find_file, find_markup
from tfm.errors import UserError


def open_parallel_text(directory: str, name: str, languages: Sequence[str]) -> Source:
    """Returns the stripped pairs of the two files of a split, or of several such pairs of files.

    Args:
      directory: folder of the files; "" is the current folder.
      name: the name of the files without the languages; see `expand_names`.
      languages: the endings of both files.

    Raises:
      UserError: if a file is missing; a `MissingFile` if both files are missing.
    """
    endings = [f".{language}{ending}" for language in languages for ending in ENDINGS]
    stems = expand_names(directory, name, endings)
    return join([_open(stem, languages, endings) for stem in stems])


def _open(stem: str, languages: Sequence[str], endings: Sequence[str]) -> Source:
    problems: list[str] = []
    paths = []
    for language in languages:
        with collect(problems):
            paths.append(find_file(f"{stem}.{language}"))
    raise_all(problems, DataError if exists(stem, endings) else MissingFile)
    source, target = map(TextFile, paths)

    def read():
        try:
            yield from zip(map(str.strip, source), map(str.strip, target), strict=True)
        except UserError:
            raise
        except ValueError:  # one file is longer
            raise UserError(_describe_counts(source, target)) from None

    def find_problems():
        problems: list[str] = []
        counts = []
        for side in (source, target):
            with collect(problems):
                counts.append(side.check())
                if problem := find_markup(next(iter(side))):
                    raise UserError(f"{side.path} {problem}.")
        if os.path.samefile(*paths):
            problems.append(
                f"{source.path} and {target.path} are the same file: a translation of itself; check the "
                "languages and links. To train on copies, give a copy of the file."
            )
        if not problems and counts[0] != counts[1]:
            problems.append(_describe_counts(source, target))
        return problems

    return Source(
        read,
        lambda: f"text-{source.content.sha256}-{target.content.sha256}",
        lambda: source.content.lines,
        find_problems,
    )


def _describe_counts(source, target):
    return (
        f"{source.path} has {source.content.lines:,} lines and {target.path} has {target.content.lines:,}: "
        "each line must translate the line with the same number."
    )
