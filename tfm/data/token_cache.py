"""Texts tokenised once and memory-mapped: both sides of sentence pairs, or documents of one side.

A cache is a folder named after the content it came from: texts, tokenizer and format. On each side it has
the ids of all texts in a row (uint16 where the vocabulary fits, else int32) and the offset of each end.
"""

import array
import contextlib
import hashlib
import itertools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.format import write_array_header_1_0

from tfm.data.batches.rows import concatenate_ranges, find_starts
from tfm.data.source import read_in_chunks
from tfm.data.tokenizer import EOS_ID
from tfm.errors import UserError
from tfm.io.files import atomic_folder, clean_folder, writing

FORMAT = 1
CHUNK_PAIRS = 50_000  # tokenised at a time: bounds memory, and each is a line of progress
CHECKED_AT_ONCE = 1 << 18  # ends of sentences
SIDES = ("source", "target")
TEXT = ("text",)  # the sides of documents
DAMAGE = (FileNotFoundError, ValueError)
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>][iu][248])', "
    rb"'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)
log = logging.getLogger(__name__)


class TokenCache:
    """Random access to tokenised pairs; every sentence ends in EOS, an empty one is EOS alone.

    Args:
      folder: of the cache.
      sides: names of the sides, `SIDES`, or `TEXT` of documents.

    Attributes:
      lengths: int array [pairs, sides], tokens of source and target.

    Raises:
      FileNotFoundError, ValueError: a file is missing, cut short or overwritten in part, or they do not fit
        together.
    """

    def __init__(self, folder: str, sides: Sequence[str] = SIDES):
        self._tokens, self._ends = (
            [_integers(os.path.join(folder, f"{side}{name}.npy")) for side in sides] for name in ("", "_ends")
        )
        for tokens, ends in zip(self._tokens, self._ends, strict=True):
            _require_sentences(tokens, ends, folder)
        lengths = [np.diff(ends, prepend=0).astype(np.int32) for ends in self._ends]
        self.lengths = np.stack(lengths, axis=1)

    def __len__(self):
        return len(self.lengths)

    def tokens(self, side: int, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids, lengths): the source (side 0) or target (1) sentences of some pairs, one after the other."""
        lengths = self.lengths[pairs, side]
        return self._tokens[side][concatenate_ranges(find_starts(self._ends[side], pairs), lengths)], lengths

    def stream(self, side: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(ids, ends): all texts of a side, one after the other, and where each ends; memory-mapped."""
        return self._tokens[side], self._ends[side]

    @classmethod
    def open(cls, pairs: Any, tokenizer: Any, cache_dir: str, sides: Sequence[str] = SIDES) -> "TokenCache":
        """The cache of `pairs` (see `tfm.data.source`) below `cache_dir`; made where there is no whole one.

        Args:
          pairs: give a tuple of as many texts as there are sides for each index.
          tokenizer: encodes them.
          cache_dir: folder of all caches.
          sides: see the class.

        Raises:
          UserError: an I/O error of its files.
        """
        identity = f"{FORMAT} {pairs.fingerprint} {tokenizer.fingerprint}"
        folder = os.path.join(cache_dir, "tokens", hashlib.sha256(identity.encode()).hexdigest()[:32])
        if not os.path.isdir(folder):
            _build(folder, pairs, tokenizer, sides)
        try:
            return cls(folder, sides)
        except DAMAGE as error:  # as a machine that lost its power leaves files
            log.warning("Tokenising again: the cache %s is damaged (%s)", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        _build(folder, pairs, tokenizer, sides)
        return cls(folder, sides)


def check_folder(cache_dir: str) -> None:
    """Checks that caches can be made below `cache_dir`, before the long work that precedes them.

    If it cannot be written but has caches, this only warns: the required ones may exist.

    Raises:
      UserError: no file can be made, and there are no caches.
    """
    folder = os.path.join(cache_dir, "tokens")
    try:
        with writing(folder), clean_folder(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except UserError as error:
        if not (os.path.isdir(folder) and os.access(folder, os.R_OK) and os.listdir(folder)):
            raise
        log.warning("New tokens cannot be kept: %s", error)


def _require_sentences(tokens, ends, folder):
    """Raises a ValueError where there are no sentences between the ends, or one does not end in EOS.

    Damage of a whole page holds the end of some sentence. Reads all tokens once, some ends at a time.
    """
    rise = ends.dtype == np.int64 and len(ends) and ends[0] > 0 and (ends[1:] > ends[:-1]).all()
    if not rise or ends[-1] != len(tokens):
        raise ValueError(f"the parts of {folder} do not fit together")
    for first in range(0, len(ends), CHECKED_AT_ONCE):
        if (tokens[ends[first : first + CHECKED_AT_ONCE] - 1] != EOS_ID).any():
            raise ValueError(f"a sentence of {folder} does not end in EOS")


def _build(folder, pairs, tokenizer, sides):
    """Builds a temporary folder and renames it, so that no process opens a partial cache."""
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
    try:
        with (
            writing(folder),
            clean_folder(os.path.dirname(folder)),
            atomic_folder(folder) as temporary,
            contextlib.ExitStack() as stack,
        ):
            writers = [
                stack.enter_context(_SideWriter(os.path.join(temporary, side), dtype)) for side in sides
            ]
            _tokenise(pairs, tokenizer, writers)
    except UserError:
        if not os.path.isdir(folder):  # else another process was first, and its cache is as good
            raise


def _tokenise(pairs, tokenizer, writers):
    """All pairs, some at a time, into the writers of the two sides."""
    began = time.monotonic()
    count = 0
    for rows in read_in_chunks(pairs, CHUNK_PAIRS):
        for writer, texts in zip(writers, zip(*rows, strict=True), strict=True):
            writer.add(tokenizer.encode(texts))
        count += len(rows)
        if len(pairs) > CHUNK_PAIRS:
            rate = count / (time.monotonic() - began)
            done, total = f"{count:,}", f"{len(pairs):,}"
            log.info("Tokenised %s of %s pairs (%s a second)", done, total, f"{rate:,.0f}")


class _SideWriter:
    """Appends the ids of sentences to a raw file; leaving its context makes .npy files of it, streaming."""

    def __init__(self, stem, dtype):
        self._stem, self._dtype = stem, np.dtype(dtype)
        self._raw = open(f"{stem}.raw", "wb")  # noqa: SIM115
        self._lengths = array.array("q")

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self._raw.close()
        if failure is None:
            self._finish()

    def add(self, sentences):
        for ids in sentences:
            ids.append(EOS_ID)
        self._lengths.extend(map(len, sentences))
        flat = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._raw.write(flat.data)

    def _finish(self):
        ends = np.cumsum(np.frombuffer(self._lengths, np.int64))
        with _npy_file(f"{self._stem}_ends.npy", ends.dtype, len(ends)) as file:
            file.write(ends.data)
        with (
            _npy_file(f"{self._stem}.npy", self._dtype, int(ends[-1])) as file,
            open(f"{self._stem}.raw", "rb") as raw,
        ):
            shutil.copyfileobj(raw, file, 1 << 24)
        os.unlink(f"{self._stem}.raw")


def _integers(path):
    """The memory-mapped array of a file, which is one row of integers with just the header that is written.

    NumPy's own reader takes much more, and meets some damage with errors of Python's tokenizer.
    """
    with open(path, "rb") as file:
        header = HEADER.match(file.read(256))
    if header is None:
        raise ValueError(f"{path} holds no row of integers")
    return np.memmap(path, header[1].decode(), mode="r", offset=header.end(), shape=(int(header[2]),))


def _npy_file(path, dtype, count):
    """A file to write, behind the header of an array. NumPy's own writers do not say why a write fails."""
    file = open(path, "wb")  # noqa: SIM115
    write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (count,)})
    return file
