"""Random access to rows of texts: what the readers of tables share, and several sources as one."""

import bisect
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

READ_AT_ONCE = 10_000  # rows


class TextSource:
    """Rows of texts by index: `source[i]` is a tuple of texts, `source[a:b:c]` a list of such tuples.

    A subclass has `__len__`, `read` and `fingerprint`.

    Attributes:
      fingerprint: identifies the content.
    """

    if TYPE_CHECKING:  # a subclass has an attribute or a property of this name

        @property
        def fingerprint(self) -> str: ...

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The rows of indices that rise."""
        raise NotImplementedError

    def check(self) -> None:
        """Checks what opening the source has not seen; nothing, where a subclass does not say."""

    def __getitem__(self, index):
        if not isinstance(index, slice):
            if not 0 <= index < len(self):
                raise IndexError(index)
            return self.read(range(index, index + 1))[0]
        indices = range(*index.indices(len(self)))
        return self.read(indices) if indices.step > 0 else self.read(indices[::-1])[::-1]


class JoinedSource(TextSource):
    """Several sources, one behind the other."""

    def __init__(self, parts: Sequence[Any]):
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self):
        return self._ends[-1]

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The rows of indices that rise."""
        rows = []
        for part, chosen in split_indices(indices, self._ends):
            rows += self._parts[part][chosen.start : chosen.stop : chosen.step]
        return rows

    @property
    def fingerprint(self) -> str:
        """Identity of the content and of where the parts end."""
        parts = " ".join(part.fingerprint for part in self._parts)
        return f"joined-{hashlib.sha256(parts.encode()).hexdigest()}"


def join(parts: Sequence[Any]) -> Any:
    """One source of at least one; that itself where there is no other."""
    return parts[0] if len(parts) == 1 else JoinedSource(parts)


def split_indices(indices: range, ends: Sequence[int]) -> Iterator[tuple[int, range]]:
    """(part, indices within it) of each part that has some of these indices, which rise.

    Args:
      indices: over all parts, one behind the other.
      ends: where each part ends.
    """
    for part, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        chosen = indices[bisect.bisect_left(indices, begin) : bisect.bisect_left(indices, end)]
        if chosen:
            yield part, range(chosen[0] - begin, chosen[-1] - begin + 1, chosen.step)


def iterate(source: Any) -> Iterator[tuple[str, ...]]:
    """All rows of a source, many read at a time."""
    for first in range(0, len(source), READ_AT_ONCE):
        yield from source[first : first + READ_AT_ONCE]
