"""Files of tests: as bytes, compressed, and damaged."""

import bz2
import functools
import gzip
import lzma
import pathlib
from collections.abc import Callable

from hypothesis import strategies as st

CACHE = "cache"  # the folder in which the code under test may write


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": functools.partial(gzip.compress, compresslevel=0, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def list_files(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns {path: content} of all files in a folder, except those in the cache."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(f"{CACHE}/")}


def compress(folder: pathlib.Path, ending: str = ".gz") -> None:
    """Compresses all files in a folder. Files of equal size stay equal in size with the ending .gz."""
    for name, content in list_files(folder).items():
        (folder / f"{name}{ending}").write_bytes(PACKERS[ending](content))
        (folder / name).unlink()


def damaged_files(sound: dict[str, bytes]) -> st.SearchStrategy[dict[str, bytes]]:
    """Returns a strategy for files. One file has any bytes, or other bytes in place of a piece."""

    def damage(name: str) -> st.SearchStrategy[dict[str, bytes]]:
        content = sound[name]
        pieces = st.tuples(st.integers(0, len(content)), st.integers(0, 30), st.binary(max_size=8))
        replaced = pieces.map(lambda piece: content[: piece[0]] + piece[2] + content[piece[0] + piece[1] :])
        return (st.binary(max_size=60) | replaced).map(lambda other: sound | {name: other})

    return st.sampled_from(sorted(sound)).flatmap(damage)
