"""Sentences that are decoded side by side."""

from collections.abc import Iterator, Sequence

import numpy as np

from tfm.data.batches.rows import bucket_width
from tfm.data.tokenizer import PAD_ID


def decode_rows(lengths: Sequence[int], batch_size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Which sentences are decoded side by side: those of like length, the longest first.

    Args:
      lengths: of the sentences.
      batch_size: rows at most.

    Yields:
      (indices, rows): the sentences of a batch, and the one in each of its rows. Rows are `batch_size` or a
      power of two, so that there are few shapes; those beyond the indices repeat the last sentence: they end
      with it, where rows of padding might decode on and on.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        count = min(batch_size, 1 << (len(indices) - 1).bit_length())
        yield indices, [*indices, *indices[-1:] * (count - len(indices))]


def pad_sentences(sentences: Sequence[Sequence[int]], fill: int = PAD_ID) -> np.ndarray:
    """Lists of ids -> int32 [B, M] with `fill` behind each; M is a bucket's width, so that there are few."""
    array = np.full((len(sentences), bucket_width(max(map(len, sentences)))), fill, np.int32)
    for row, ids in enumerate(sentences):
        array[row, : len(ids)] = ids
    return array
