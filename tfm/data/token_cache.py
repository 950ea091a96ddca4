"""A cache of tokenised texts on disk: both sides of sentence pairs, or documents.

The name of the cache's folder is a hash of the texts, the tokenizer and the format. For each side, the folder
has two files without headers, which are memory-mapped: `.tokens` with the concatenated ids of all texts
(uint16 for vocabularies up to 65,536, otherwise int32) and `.ends` with the offset of the end of each text
(int64). The file of checksums is written last.
"""

import array
import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np

from tfm.data.batches.rows import concatenate_ranges, find_starts
from tfm.data.source import read_in_chunks
from tfm.data.tokenizers.protocol import EOS_ID, encode_sides, has_separate_source, source_tokenizer
from tfm.errors import UserError
from tfm.io.files import atomic_folder, clean_folder, writing
from tfm.io.remote import is_url

FORMAT = 3
CHUNK_PAIRS = 50_000  # tokenised at a time to limit memory; progress is logged after each chunk
CHECKED_BYTES = 1 << 24  # of a file, read at a time
CHECKSUMS = "checksums.json"
DAMAGE = (FileNotFoundError, TypeError, ValueError, RecursionError)
SIDES = ("source", "target")
TEXT = "text"  # the only side of documents
log = logging.getLogger(__name__)


class TokenCache:
    """Random access to tokenised pairs or documents. Every text ends in EOS, also an empty text.

    Args:
      folder: folder of the cache.

    Attributes:
      lengths: number of tokens of each text, including EOS, int [pairs, sides].

    Raises:
      FileNotFoundError, TypeError, ValueError, RecursionError: if a file is missing or damaged.
    """

    def __init__(self, folder: str):
        with open(os.path.join(folder, CHECKSUMS), "rb") as file:
            checksums = json.loads(file.read(1 << 12))
        sides = [side for side in (*SIDES, TEXT) if f"{side}.ends" in checksums]
        if checksums != _compute_checksums(folder, sides):
            raise ValueError("a file differs from its checksum")
        stems = [os.path.join(folder, side) for side in sides]
        self._ends = [np.memmap(f"{stem}.ends", np.int64, mode="r") for stem in stems]
        self._tokens = [
            _map_tokens(stem, int(ends[-1])) for stem, ends in zip(stems, self._ends, strict=True)
        ]
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

    def stream(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (concatenated ids, offset of the end of each text) of all documents, both memory-mapped."""
        return self._tokens[0], self._ends[0]

    @classmethod
    def open(cls, pairs: Any, tokenizer: Any, cache_dir: str) -> "TokenCache":
        """Opens the cache of some texts. Tokenises the texts first if there is no cache or it is damaged.

        The log reports a damaged cache, and the progress with many texts.

        Args:
          pairs: a source (see `tfm.data.source`) whose rows have a text for each side.
          tokenizer: encodes the texts.
          cache_dir: the folder of all caches.

        Raises:
          UserError: if the files cannot be written, or a damaged cache cannot be replaced.
        """
        identity = f"{FORMAT} {pairs.fingerprint} {tokenizer.fingerprint}"
        if has_separate_source(tokenizer):
            identity += f" {source_tokenizer(tokenizer).fingerprint}"
        folder = os.path.join(cache_dir, "tokens", hashlib.sha256(identity.encode()).hexdigest()[:32])
        if not os.path.isdir(folder):
            _build(folder, pairs, tokenizer)
        try:
            return cls(folder)
        except DAMAGE as error:  # for example after a power failure
            log.warning("The cache %s is damaged (%s). Tokenising again", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        _build(folder, pairs, tokenizer)
        try:
            return cls(folder)
        except DAMAGE as error:
            raise UserError(
                f"The cache {folder} is damaged ({error}) and cannot be replaced. Delete it, or set "
                "data.cache_dir to a folder of your own."
            ) from None


def check_folder(cache_dir: str) -> None:
    """Checks that caches can be written below `cache_dir`, before the long work that precedes them.

    Creates the folder of the caches.

    If the folder cannot be written but contains caches, this only warns because the required caches may
    exist.

    Raises:
      UserError: if no file can be created and the folder contains no caches, or the folder is a URL.
    """
    if is_url(cache_dir):
        raise UserError(
            f"Expected data.cache_dir to be a local folder, because tokens are read from memory maps, got "
            f"{cache_dir!r}. Leave it empty, or give a path."
        )
    folder = os.path.join(cache_dir, "tokens")
    try:
        with writing(folder), clean_folder(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except UserError as error:
        if not (os.path.isdir(folder) and os.access(folder, os.R_OK) and os.listdir(folder)):
            raise
        log.warning("New tokens cannot be kept: %s", error)


def _build(folder: str, pairs: Any, tokenizer: Any) -> None:
    """Builds a temporary folder and renames it, so that no process opens a partial cache."""
    try:
        with (
            writing(folder),
            clean_folder(os.path.dirname(folder)),
            atomic_folder(folder) as temporary,
        ):
            sides = SIDES if len(pairs[0]) == len(SIDES) else (TEXT,)
            _tokenise(temporary, pairs, tokenizer, sides)
            with open(os.path.join(temporary, CHECKSUMS), "w", encoding="utf-8") as file:
                json.dump(_compute_checksums(temporary, sides), file)
    except UserError:
        if not os.path.isdir(folder):  # if it exists, another process has built an equal cache
            raise


def _tokenise(folder: str, pairs: Any, tokenizer: Any, sides: Sequence[str]) -> None:
    """Writes the files of all sides. Logs the progress if there is more than one chunk of rows."""
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
    lengths = [array.array("q") for _ in sides]
    stems = [os.path.join(folder, side) for side in sides]
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(f"{stem}.tokens", "wb")) for stem in stems]
        for rows in read_in_chunks(pairs, CHUNK_PAIRS):
            encoded = encode_sides(tokenizer, *zip(*rows, strict=True))
            for file, side_lengths, ids in zip(files, lengths, encoded, strict=True):
                side_lengths.extend(_write_ids(file, ids, dtype))
            if len(pairs) > CHUNK_PAIRS:
                count = len(lengths[0])
                rate = f"{count / (time.monotonic() - began):,.0f}"
                log.info("Tokenised %s of %s rows (%s a second)", f"{count:,}", f"{len(pairs):,}", rate)
    for stem, side_lengths in zip(stems, lengths, strict=True):
        with open(f"{stem}.ends", "wb") as file:
            file.write(np.cumsum(np.frombuffer(side_lengths, np.int64)).data)


def _write_ids(file: BinaryIO, encoded: list[list[int]], dtype: Any) -> Iterable[int]:
    """Appends EOS to each list of ids, in place, writes the ids and returns the lengths of the lists."""
    for ids in encoded:
        ids.append(EOS_ID)
    file.write(np.fromiter(itertools.chain.from_iterable(encoded), dtype).data)
    return map(len, encoded)


def _map_tokens(stem: str, count: int) -> np.ndarray:
    """Returns the memory-mapped ids of a side. The size of the file decides how many bytes an id has."""
    path = f"{stem}.tokens"
    return np.memmap(path, np.uint16 if os.path.getsize(path) == 2 * count else np.int32, mode="r")


def _compute_checksums(folder: str, sides: Sequence[str]) -> dict[str, int]:
    """Returns {file name: CRC-32} of the files of a cache. Reads in chunks to limit memory."""
    checksums = {}
    for name in (f"{side}{ending}" for side in sides for ending in (".tokens", ".ends")):
        checksum = 0
        with open(os.path.join(folder, name), "rb") as file:
            while chunk := file.read(CHECKED_BYTES):
                checksum = zlib.crc32(chunk, checksum)
        checksums[name] = checksum
    return checksums
