"""An index of pictures: the sizes, modes and hashes of their contents, after each was decoded once.

Decoding finds damaged pictures before training. The result is kept in the cache folder, so that the next
start only lists the files.
"""

import functools
import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.data_errors import DataError
from tfm.data.inspection import hash_bytes
from tfm.data.pictures import MAX_PICTURE_BYTES, read_picture
from tfm.data.threads import read_in_threads
from tfm.io.files import atomic_file, clean_folder, read_limited, writing

FORMAT = 1
MAX_INDEX_BYTES = 1 << 32
MAX_PROBLEMS = 5  # that a message shows
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
log = logging.getLogger(__name__)


class PictureIndex(NamedTuple):
    """The index of N pictures.

    Attributes:
      sizes: height and width, int32 [N, 2].
      hashes: 64-bit BLAKE2b of the contents, uint64 [N].
      modes: Pillow's mode of each file, such as "L", "RGB" or "P", text [N].
    """

    sizes: np.ndarray
    hashes: np.ndarray
    modes: np.ndarray


def index_files(paths: Sequence[str], root: str, cache_dir: str) -> PictureIndex:
    """Returns the index of pictures in files.

    Args:
      paths: the files.
      root: folder of all files. Names are relative to it, so that the data may move.
      cache_dir: folder of all caches. A file with another size or time is decoded again, with all others.

    Raises:
      DataError: if pictures are damaged. The message names the first of them.
    """
    states = [os.stat(path) for path in paths]
    names = [os.path.relpath(path, root) for path in paths]
    key = [(name, state.st_size, state.st_mtime_ns) for name, state in zip(names, states, strict=True)]
    return index_pictures(paths, paths.__getitem__, key, cache_dir)


def index_pictures(
    names: Sequence[str], read: Callable[[int], bytes | str], key: object, cache_dir: str
) -> PictureIndex:
    """Returns the index of pictures. Decodes them and writes the cache if it has no index for the key.

    Args:
      names: what error messages call the pictures.
      read: returns the content of a picture, or the path of its file.
      key: identifies the pictures, as an object that JSON can write.
      cache_dir: folder of all caches.

    Raises:
      DataError: if pictures are damaged.
      UserError: if the cache cannot be written.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, key]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    path = os.path.join(cache_dir, "pictures", f"{digest}.npz")
    index = _load(path, len(names))
    if index is None:
        index = _compute(names, read)
        with writing(path), clean_folder(os.path.dirname(path)), atomic_file(path) as file:
            np.savez(file, **index._asdict())
    return index


def _load(path: str, count: int) -> PictureIndex | None:
    """Returns an index of the cache, or None if it is missing or damaged."""
    try:
        with np.load(io.BytesIO(read_limited(path, MAX_INDEX_BYTES)), allow_pickle=False) as file:
            index = PictureIndex(*(file[name] for name in PictureIndex._fields))
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        log.warning("The cache %s is damaged (%s). Reading all pictures again", path, error)
        return None
    return index if all(len(part) == count for part in index) else None


def _compute(names: Sequence[str], read: Callable[[int], bytes | str]) -> PictureIndex:
    """Decodes all pictures in threads, and logs the progress."""
    found, problems = read_in_threads(
        len(names), lambda number: _decode(read(number), names[number]), functools.partial(log.info, "%s")
    )
    if problems:
        more = [f"{len(problems) - MAX_PROBLEMS:,} more pictures cannot be used."]
        raise DataError(*problems[:MAX_PROBLEMS], *more[: len(problems) > MAX_PROBLEMS])
    decoded = [each for each in found if each is not None]
    return PictureIndex(
        np.array([(each.height, each.width) for each in decoded], np.int32).reshape(-1, 2),
        np.array([each.hash for each in decoded], np.uint64),
        np.array([each.mode for each in decoded], str),
    )


class _Decoded(NamedTuple):
    """The entry of one picture in a `PictureIndex`."""

    height: int
    width: int
    hash: int
    mode: str


def _decode(content: bytes | str, name: str) -> _Decoded:
    """Decodes a picture from its content or from the path of its file."""
    from PIL import Image

    if isinstance(content, str):
        content = read_limited(content, MAX_PICTURE_BYTES)

    width, height = read_picture(content, name, 3).size
    with Image.open(io.BytesIO(content)) as image:
        mode = image.mode
    return _Decoded(height, width, hash_bytes(content), mode)
