"""The common form of all texts: rows that are read in order, as often as needed."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tfm.data.data_errors import collect

Row = tuple[str, ...]
CHUNK_ROWS = 10_000  # rows that are read at a time


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
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Row]],
        fingerprint: Callable[[], str],
        count: Callable[[], int] | None = None,
        find_problems: Callable[[], list[str]] | None = None,
    ):
        self._read, self._compute_fingerprint, self._count = read, fingerprint, count
        self._find_problems = find_problems

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

    def find_problems(self) -> list[str]:
        """Returns a message for each problem of the content."""
        if self._find_problems:
            return self._find_problems()
        problems: list[str] = []
        with collect(problems):
            for _ in self:
                pass
        return problems

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifies the content, wherever its files are."""
        return self._compute_fingerprint()

    @functools.cached_property
    def _length(self) -> int:
        return self._count() if self._count else sum(1 for _ in self)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index):
        """Reads from the beginning up to the row or the slice. Many single rows are slow."""
        if not isinstance(index, slice):
            if index < 0:
                raise IndexError(index)
            for row in itertools.islice(self, index, None):
                return row
            raise IndexError(index)
        bounds = (index.start or 0, index.stop or 0, index.step or 1)
        if min(bounds) < 0:
            return list(self)[index]
        return list(itertools.islice(self, index.start, index.stop, index.step))


def join(sources: Sequence[Source]) -> Source:
    """Returns one source with the rows of one or more sources in turn."""
    if len(sources) == 1:
        return sources[0]
    return Source(
        lambda: itertools.chain.from_iterable(sources),
        lambda: f"joined-{hash_text(' '.join(source.fingerprint for source in sources))}",
        lambda: sum(map(len, sources)),
        lambda: [problem for source in sources for problem in source.find_problems()],
    )


def add_tag(source: Source, tag: str) -> Source:
    """Begins the first text of each row with a tag, as Johnson et al. (2017, section 3) name a language.

    An empty text stays empty, so that training leaves it out.
    """
    return Source(
        lambda: ((f"{tag} {text}" if text else "", *others) for text, *others in source),
        lambda: f"tagged-{hash_text(f'{tag} {source.fingerprint}')}",
        lambda: len(source),
        source.find_problems,
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
