"""Sentence pairs of files: two text files, a translation memory (TMX), or a test set in XML or SGML.

Line i of one text file translates line i of the other file.
"""

import os
import re
from collections.abc import Sequence

from tfm.data.data_errors import DataError, MissingFile, collect, raise_all
from tfm.data.source import Source, join
from tfm.data.sources.test_sets import find_sgml, open_sgml, open_xml, strip_sgml_name
from tfm.data.sources.text_files import (
    ADVICE,
    ENDINGS,
    TextFile,
    compression,
    exists,
    expand_names,
    find_file,
    find_markup,
)
from tfm.data.sources.tmx import open_tmx
from tfm.errors import UserError

MARKED_UP = re.compile(r"\.(tmx|xml|sgml?)$", re.IGNORECASE)


def open_parallel_text(directory: str, name: str, languages: Sequence[str], reference: str = "") -> Source:
    """Returns the stripped pairs of the files of a split.

    Args:
      directory: folder of the files; "" is the current folder.
      name: the names of the files without the languages; see `expand_names`. The names of a translation
        memory (.tmx) and of a test set in one file (.xml) have their ending.
      languages: the source and the target language, the endings of text files.
      reference: a further reference in place of the targets: the ending of text files, the translator in XML
        or the `sysid` in SGML.

    Raises:
      UserError: if a file is missing; a `MissingFile` if both files are missing.
    """
    endings = [f".{language}{ending}" for language in languages for ending in ENDINGS]
    if not any(is_marked_up(part) for part in name.split(",")):
        stems = expand_names(directory, name, endings)
        return join([_open(stem, languages, endings, reference) for stem in stems])
    sources = []
    for part in map(str.strip, name.split(",")):
        if is_marked_up(part):
            paths = expand_names(directory, part)
            sources += [_open_marked_up(path, languages, reference) for path in paths]
        else:
            stems = expand_names(directory, part, endings)
            sources += [_open(stem, languages, endings, reference) for stem in stems]
    return join(sources)


def is_marked_up(name: str) -> bool:
    """Returns whether a name ends like a file of TMX, XML or SGML, compressed or not."""
    return bool(MARKED_UP.search(name[: len(name) - len(compression(name))]))


def _open_marked_up(path: str, languages: Sequence[str], reference: str) -> Source:
    """Returns the pairs of a file with tags. One of two files of SGML stands for both."""
    if compression(path) and not exists(path, [""]):
        raise MissingFile(f"Expected the file {path}, but there is none: {ADVICE}.")
    packed = compression(path)
    plain = path.removesuffix(packed)
    form = plain.rpartition(".")[2].lower()
    stem = strip_sgml_name(plain, languages)
    if form in ("sgm", "sgml") or (stem != plain and form == "xml"):
        paths = find_sgml(stem, languages)
        if stem == plain or not paths:
            raise MissingFile(
                f"Expected the name of a test set in SGML such as {stem}-src.{languages[0]}.sgm with "
                f"{stem}-ref.{languages[1]}.sgm, or only {stem}, got {path}: {ADVICE}."
            )
        return open_sgml(paths[0], paths[1], reference)
    if form == "xml":
        return open_xml(find_file(plain), languages, reference)
    if reference:
        raise UserError(
            f"{path} is a translation memory, which has no further references. Leave data.references empty."
        )
    return open_tmx(find_file(plain), languages)


def _open(stem: str, languages: Sequence[str], endings: Sequence[str], reference: str) -> Source:
    """Returns the pairs of two text files, or of a test set in SGML if there are no text files."""
    if not exists(stem, endings) and (paths := find_sgml(stem, languages)):
        return open_sgml(paths[0], paths[1], reference)
    return _open_lines(stem, [languages[0], reference or languages[1]], endings)


def _open_lines(stem: str, languages: Sequence[str], endings: Sequence[str]) -> Source:
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
