"""A cache of tokenised texts on disk: both sides of sentence pairs, or documents.

The name of the cache's folder is a hash of the texts, the tokenizer and the format. For each side, the folder
has an array with the concatenated ids of all texts (uint16 for vocabularies up to 65,536, otherwise int32)
and an array with the offset of the end of each text. Both are memory-mapped.
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
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import write_array_header_1_0

from tfm.data.batches.rows import concatenate_ranges, find_starts
from tfm.data.source import read_in_chunks
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.errors import UserError
from tfm.io.files import atomic_folder, clean_folder, writing

FORMAT = 1
CHUNK_PAIRS = 50_000  # tokenised at a time to limit memory; progress is logged after each chunk
CHECKED_AT_ONCE = 1 << 18  # sentence ends that are checked at a time
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
    """Random access to tokenised pairs or documents. Every text ends in EOS, also an empty text.

    Args:
      folder: folder of the cache.
      sides: names of the sides: `SIDES` for pairs, `TEXT` for documents.

    Attributes:
      lengths: number of tokens of each text, including EOS, int [pairs, sides].

    Raises:
      FileNotFoundError, ValueError: if a file is missing or damaged, or the files do not belong together.
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
        """Returns (concatenated ids, lengths) of texts.

        Args:
          side: 0 for the source or the documents, 1 for the target.
          pairs: indices of the pairs or documents, int [n].
        """
        lengths = self.lengths[pairs, side]
        return self._tokens[side][concatenate_ranges(find_starts(self._ends[side], pairs), lengths)], lengths

    def stream(self, side: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns (concatenated ids, offset of the end of each text) of a side, both memory-mapped."""
        return self._tokens[side], self._ends[side]

    @classmethod
    def open(cls, pairs: Any, tokenizer: Any, cache_dir: str, sides: Sequence[str] = SIDES) -> "TokenCache":
        """Opens the cache of some texts. Tokenises the texts first if there is no cache or it is damaged.

        Args:
          pairs: a source (see `tfm.data.source`) whose rows have a text for each side.
          tokenizer: encodes the texts.
          cache_dir: the folder of all caches.
          sides: see the class.

        Raises:
          UserError: if the files cannot be written.
        """
        identity = f"{FORMAT} {pairs.fingerprint} {tokenizer.fingerprint}"
        folder = os.path.join(cache_dir, "tokens", hashlib.sha256(identity.encode()).hexdigest()[:32])
        if not os.path.isdir(folder):
            _build(folder, pairs, tokenizer, sides)
        try:
            return cls(folder, sides)
        except DAMAGE as error:  # for example after a power failure
            log.warning("The cache %s is damaged (%s). Tokenising again", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        _build(folder, pairs, tokenizer, sides)
        return cls(folder, sides)


def check_folder(cache_dir: str) -> None:
    """Checks that caches can be written below `cache_dir`, before the long work that precedes them.

    If the folder cannot be written but contains caches, this only warns because the required caches may
    exist.

    Raises:
      UserError: if no file can be created and the folder contains no caches.
    """
    folder = os.path.join(cache_dir, "tokens")
    try:
        with writing(folder), clean_folder(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except UserError as error:
        if not (os.path.isdir(folder) and os.access(folder, os.R_OK) and os.listdir(folder)):
            raise
        log.warning("New tokens cannot be kept: %s", error)


def _require_sentences(tokens: np.ndarray, ends: np.ndarray, folder: str) -> None:
    """Checks that the ends increase up to the number of tokens and that every sentence ends in EOS.

    The check detects a damaged page of a file, because a page almost always contains the end of a sentence.
    It reads the last token of each sentence, in chunks.

    Raises:
      ValueError: if the ends or the tokens are damaged.
    """
    rise = ends.dtype == np.int64 and len(ends) and ends[0] > 0 and (ends[1:] > ends[:-1]).all()
    if not rise or ends[-1] != len(tokens):
        raise ValueError(f"the files of {folder} do not belong together")
    for start in range(0, len(ends), CHECKED_AT_ONCE):
        if (tokens[ends[start : start + CHECKED_AT_ONCE] - 1] != EOS_ID).any():
            raise ValueError(f"a sentence of {folder} does not end in EOS")


def _build(folder: str, pairs: Any, tokenizer: Any, sides: Sequence[str]) -> None:
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
        if not os.path.isdir(folder):  # if it exists, another process has built an equal cache
            raise


def _tokenise(pairs: Any, tokenizer: Any, writers: "Sequence[_SideWriter]") -> None:
    """Tokenises all pairs in chunks with a writer for each side. Logs the progress of more than one chunk."""
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
    """A context manager that writes the ids of a side to a raw file and on exit converts it to .npy files."""

    def __init__(self, stem: str, dtype: Any):
        self._stem, self._dtype = stem, np.dtype(dtype)
        self._raw = open(f"{stem}.raw", "wb")  # noqa: SIM115
        self._lengths = array.array("q")

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self._raw.close()
        if failure is None:
            self._finish()

    def add(self, sentences: list[list[int]]) -> None:
        """Appends EOS to each list of ids, in place, and writes the ids."""
        for ids in sentences:
            ids.append(EOS_ID)
        self._lengths.extend(map(len, sentences))
        flat = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._raw.write(flat.data)

    def _finish(self) -> None:
        """Writes the .npy files and deletes the raw file. Copies in chunks to limit memory."""
        ends = np.cumsum(np.frombuffer(self._lengths, np.int64))
        with _npy_file(f"{self._stem}_ends.npy", ends.dtype, len(ends)) as file:
            file.write(ends.data)
        with (
            _npy_file(f"{self._stem}.npy", self._dtype, int(ends[-1])) as file,
            open(f"{self._stem}.raw", "rb") as raw,
        ):
            shutil.copyfileobj(raw, file, 1 << 24)
        os.unlink(f"{self._stem}.raw")


def _integers(path: str) -> np.ndarray:
    """Returns the memory-mapped array of an .npy file with a vector of integers.

    Only headers of the form that `_npy_file` writes are accepted. NumPy's reader accepts many other headers,
    and for some damaged headers it raises errors of Python's tokenizer.

    Raises:
      ValueError: if the header has another form, or the file is cut short.
    """
    with open(path, "rb") as file:
        header = HEADER.match(file.read(256))
    if header is None:
        raise ValueError(f"{path} is not an .npy file with a vector of integers")
    return np.memmap(path, header[1].decode(), mode="r", offset=header.end(), shape=(int(header[2]),))


def _npy_file(path: str, dtype: np.dtype, count: int) -> BinaryIO:
    """Opens an .npy file, writes the header of a vector and returns the file.

    The data are not written by NumPy because its error messages do not contain the reason of a failed write.
    """
    file = open(path, "wb")  # noqa: SIM115
    write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (count,)})
    return file
