"""The common form of all texts: rows that are read in order, as often as needed."""

import functools
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tfm.data.config import begin_with
from tfm.data.data_errors import collect

Row = tuple[str, ...]
CHUNK_ROWS = 10_000  # rows that are read at a time
MAX_JOINED = 4  # rows that become one text
LINE_ENDS = re.compile(r"[\r\n]+")


class Source:
    """Rows of texts: (source, target) of a sentence pair, or (document,).

    Iterating reads the rows from the beginning, some at a time. Rows are not kept. A list of rows with a
    `fingerprint` serves as a source as well, for example a list that a user's own function returns.

    Args:
      read: starts reading and returns an iterable of the rows.
      fingerprint: computes a text that identifies the content.
      count: returns the number of rows. By default, counting reads all rows.
      find_problems: returns a message for each problem of the content. By default, reading all rows finds
        the first problem.
      locate: returns where a row is, for messages, such as "line 7 of train.tsv". Its argument is the number
        of the row, counted from 0. By default, a row is only known by its number.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Row]],
        fingerprint: Callable[[], str],
        count: Callable[[], int] | None = None,
        find_problems: Callable[[], list[str]] | None = None,
        locate: Callable[[int], str] | None = None,
    ):
        self._read, self._fingerprint = read, functools.cache(fingerprint)
        self._count = functools.cache(count or (lambda: sum(1 for _ in self)))
        self.find_problems = find_problems or self._read_all
        self.locate = locate or locate_by_number

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, index):
        """Reads from the beginning up to the row or the slice. Many single rows are slow."""
        if not isinstance(index, slice):
            for row in self[index : index + 1 or None]:
                return row
            raise IndexError(index)
        if min(index.start or 0, index.stop or 0, index.step or 1) < 0:
            return list(self)[index]
        return list(itertools.islice(self, index.start, index.stop, index.step))

    @property
    def fingerprint(self) -> str:
        """Identifies the content, wherever its files are."""
        return self._fingerprint()

    def _read_all(self) -> list[str]:
        """Returns the first problem that reading finds."""
        problems: list[str] = []
        with collect(problems):
            for _ in self:
                pass
        return problems


def locate_by_number(row: int) -> str:
    """Returns where a row is in a source that knows nothing else. `row` is counted from 0."""
    return f"row {row + 1:,}"


def join(sources: Sequence[Source]) -> Source:
    """Returns one source with the rows of one or more sources in turn. A single source is returned itself.

    The fingerprint depends on the order of the sources. The problems are those of all sources.
    """
    if len(sources) == 1:
        return sources[0]

    def locate(row: int) -> str:
        for source in sources[:-1]:
            if row < len(source):
                return source.locate(row)
            row -= len(source)
        return sources[-1].locate(row)

    return Source(
        lambda: itertools.chain.from_iterable(sources),
        lambda: f"joined-{hash_text(' '.join(source.fingerprint for source in sources))}",
        lambda: sum(map(len, sources)),
        lambda: [problem for source in sources for problem in source.find_problems()],
        locate,
    )


def clean_line(text: str) -> str:
    """Returns the text as one stripped line, because a side of a pair is a line of a text file."""
    text = text.strip()
    return LINE_ENDS.sub(" ", text) if "\n" in text or "\r" in text else text


def clean_rows(source: Source, clean: Callable[[str], str]) -> Source:
    """Returns a source with the rows of another source, whose texts are cleaned by `clean`.

    The fingerprint stays the fingerprint of `source`. The kind of the data must therefore decide `clean`.
    """
    return Source(
        lambda: (tuple(map(clean, row)) for row in source),
        lambda: source.fingerprint,
        lambda: len(source),
        source.find_problems,
        source.locate,
    )


def add_prefix(prefix: str, text: str) -> str:
    """Returns a text with a prefix and a blank before it. If one of both is empty, returns the other one."""
    return f"{prefix} {text}" if prefix and text else prefix or text


def tag_sources(source: Source, tag: str) -> Source:
    """Begins the source of all rows with a tag, as Johnson et al. (2017, section 3) name a language.

    An empty text stays empty, so that training leaves it out. A text that begins with the tag stays as it is.
    """
    return Source(
        lambda: ((begin_with(tag, text), *others) for text, *others in source),
        lambda: f"tagged-{hash_text(f'{tag} {source.fingerprint}')}",
        lambda: len(source),
        source.find_problems,
        source.locate,
    )


def prefix_targets(source: Source, prefix: str) -> Source:
    """Begins the target of all rows with a prefix, also if the target begins with the same words.

    An empty text stays empty, so that training leaves it out.
    """
    return Source(
        lambda: (
            (first, target and add_prefix(prefix, target), *others) for first, target, *others in source
        ),
        lambda: f"prefixed-{hash_text(f'{prefix} {source.fingerprint}')}",
        lambda: len(source),
        source.find_problems,
        source.locate,
    )


def join_neighbours(source: Source, share: float) -> Source:
    """Joins some rows with the rows that follow, so that a model also reads texts of several sentences.

    Each text joins 1 to `MAX_JOINED` rows, side by side, with a space between them. The texts that join 2 to
    `MAX_JOINED` rows are equally likely. Which rows are joined depends only on their places. Rows stay alone
    where a side of any of them is empty, because the joined sides would not match.

    Args:
      source: rows of texts.
      share: share of the rows that become part of a longer text, from 0 to 1. 0 returns the source itself.
    """
    if not share:
        return source
    # If a fraction p of the texts join several rows, with `mean` rows each, these texts contain the share
    # p mean / (p mean + 1 - p) of all rows. Solved for p:
    mean = (2 + MAX_JOINED) / 2
    probability = share / (mean - share * (mean - 1))

    def join_rows() -> Iterator[Row]:
        rng, rows = random.Random(0), iter(source)
        while True:
            count = 2 + int(rng.random() * (MAX_JOINED - 1)) if rng.random() < probability else 1
            if not (group := list(itertools.islice(rows, count))):
                return
            if all(map(all, group)):
                yield tuple(map(" ".join, zip(*group, strict=True)))
            else:
                yield from group

    return Source(
        join_rows,
        lambda: f"neighbours-{hash_text(f'{share} {source.fingerprint}')}",
        find_problems=source.find_problems,
    )


def hold(rows: Sequence[Row], fingerprint: str) -> Source:
    """Returns a source of rows that are in memory."""
    return Source(lambda: rows, lambda: fingerprint, lambda: len(rows))


def read_in_chunks(source: Iterable[Row], size: int = CHUNK_ROWS) -> Iterator[list[Row]]:
    """Yields the rows in lists of at most `size` rows."""
    rows = iter(source)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def hash_text(text: str) -> str:
    """Returns the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_rows(rows: Iterable[Row]) -> str:
    """Returns the SHA-256 of the texts of rows and of their lengths in hexadecimal."""
    digest = hashlib.sha256()
    for row in rows:
        for text in row:
            content = text.encode("utf-8")
            digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
