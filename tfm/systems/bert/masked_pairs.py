"""Batches of pairs of texts with hidden tokens, for the pretraining of BERT.

A batch is a dict of int32 arrays:

    tokens      BOS, the first text, EOS, the second text, EOS; some tokens are hidden [B, L]
    types       0 up to the first EOS, 1 after it [B, L]
    predicted   positions of the tokens that are predicted [B, K]
    targets     these tokens before they were hidden [B, K]
    weights     1 for each prediction, 0 for padding [B, K]
    follows     1 if the second text follows the first, 0 if it is from another document [B]
    rows        1 for a pair, 0 for a row of padding [B]

BOS and EOS take the places of BERT's [CLS] and [SEP].
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config import field, without_fields
from tfm.data.batches.rows import concatenate_ranges
from tfm.data.batches.schedule import Batch, cut_batches
from tfm.data.config import MAX_SIDE_TOKENS, DocumentsConfig, vocabulary_field
from tfm.data.sources.sentences import SENTENCE_ENDS
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError

SPECIAL_TOKENS = 3  # of a row with two texts, see `count_special_tokens`
FIRST_TOKEN = EOS_ID + 1  # smallest id of a token of texts
FOLLOWING_SHARE = 0.5  # of the rows whose second text follows the first
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the predicted tokens; the others stay as they are


@dataclasses.dataclass(frozen=True)
@without_fields(rows="sentences")
class SentencesConfig(DocumentsConfig):
    """The source of documents, their tokenizer, and the size of rows with two texts of sentences."""

    sentences: str = vocabulary_field(
        "punctuation",
        "End of a sentence. punctuation: after '.', '!' or '?', and before a blank line. line: each line is "
        "a sentence, as the authors' code expects it.",
        choices=tuple(SENTENCE_ENDS),
    )
    row_length: int = field(
        512,
        "Tokens of a row: two texts, BOS and two EOS.",
        minimum=SPECIAL_TOKENS + 2,
        maximum=MAX_SIDE_TOKENS,
        unit="tokens",
    )


class Chunks(NamedTuple):
    """Runs of consecutive sentences of a document that fill a row: int arrays [chunks].

    Attributes:
      first, last: a chunk has the sentences `first` to `last` - 1, at least two.
      documents: number of the document of a chunk, ascending.
    """

    first: np.ndarray
    last: np.ndarray
    documents: np.ndarray


def find_chunks(lengths: np.ndarray, room: int) -> Chunks:
    """Divides documents into runs of sentences with at least `room` tokens, or up to the document's end.

    If the last part has only one sentence, the sentence before it is repeated. Documents of one sentence
    have no chunk.

    Args:
      lengths: tokens of each sentence; 0 marks the end of a document.
      room: tokens of a row for both texts.
    """
    chunks: list[tuple[int, int, int]] = []
    begin = 0
    for document, end in enumerate(np.flatnonzero(lengths == 0).tolist()):
        first, tokens = begin, 0
        for sentence in range(begin, end):
            tokens += int(lengths[sentence])
            is_full = tokens >= room and sentence > first
            if is_full or sentence == end - 1:
                start = min(first, sentence - 1)
                if start >= begin:
                    chunks.append((start, sentence + 1, document))
                first, tokens = sentence + 1, 0
        begin = end + 1
    return Chunks(*np.array(chunks, np.int64).reshape(-1, 3).T)


class MaskedPairs:
    """An `Epochs` of the documents of a cache, as pairs of texts with hidden tokens.

    A row is a run of sentences of a document, divided into two texts between two of its sentences. In half of
    the rows, sentences of another document replace the second text. Division, replacement and hidden tokens
    of a row depend only on the seed, the epoch and the number of the row, so every epoch has others.

    Args:
      cache: the tokens of `list_sentences`.
      config: a `SentencesConfig`.
      tokenizer: a `MaskTokenizer`.
      share: share of the tokens that are predicted.
      seed: decides the order and all random choices.

    Raises:
      UserError: if fewer than two documents have two sentences.
    """

    def __init__(self, cache: TokenCache, config: Any, tokenizer: Any, share: float, seed: int):
        self._stream, ends = cache.stream()
        self._ends = np.asarray(ends)
        self._lengths = np.diff(self._ends, prepend=0) - 1  # without the EOS of each sentence
        self._room = config.row_length - SPECIAL_TOKENS
        self._mask_id, self._size = tokenizer.mask_id, len(tokenizer)
        self._share, self._seed = share, seed
        self._chunks = find_chunks(self._lengths, self._room)
        documents = self._chunks.documents
        if len(np.unique(documents)) < 2:
            raise UserError(
                "Expected at least two documents of two or more sentences, because half of the rows continue "
                f"with another document, got {len(np.unique(documents))}. Add texts, or set data.documents "
                "to the unit of the text files that is a document."
            )
        self._begin, self._end = (np.searchsorted(documents, documents, side) for side in ("left", "right"))
        self.pieces = len(documents)
        sizes = [self._lengths[first:last].sum() for first, last, _ in zip(*self._chunks, strict=True)]
        self.tokens = float(np.minimum(sizes, self._room).sum() + SPECIAL_TOKENS * self.pieces)
        self.cuts = cut_batches([(config.row_length, self.pieces)], config.batch_tokens)

    def shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Epochs`. The cuts stay in their order, because all have one shape."""
        order = np.random.default_rng((self._seed, epoch)).permutation(self.pieces)
        return order, np.arange(len(self.cuts))

    def assemble(self, epoch: int, rows: np.ndarray, shape: tuple[int, int]) -> Batch:
        """See `Epochs`."""
        batch = empty_batch(shape, self._share)
        for place, row in enumerate(rows):
            for name, values in self._make_row(epoch, int(row)).items():
                batch[name].reshape(len(batch[name]), -1)[place, : len(values)] = values
        return batch

    def describe(self, epoch: int, rows: np.ndarray) -> dict[str, Any]:
        """See `Epochs`."""
        return {"sentences": self._chunks.first[rows].tolist()}

    def in_order(self) -> Iterator[Batch]:
        """Yields batches with all rows in their order, hidden as in epoch 0."""
        for cut in self.cuts:
            yield self.assemble(0, np.arange(cut.first, cut.last), (cut.rows, cut.width))

    def _make_row(self, epoch: int, row: int) -> dict[str, Any]:
        """Returns the arrays of a row without padding."""
        rng = np.random.default_rng((self._seed, epoch, row))
        first, last, _ = (int(values[row]) for values in self._chunks)
        follows = bool(rng.random() < FOLLOWING_SHARE)
        cut = int(rng.integers(first + 1, last))
        begin, end = (cut, last) if follows else self._draw_other(rng, row)
        texts = self._read(first, cut), self._read(begin, end)
        of_first, of_second = fit_lengths(len(texts[0]), len(texts[1]), self._room)
        # The tokens next to the boundary of the texts remain.
        tokens, types = join_texts(texts[0][len(texts[0]) - of_first :], texts[1][:of_second])
        predicted = choose_tokens(rng, tokens, self._share)
        return {
            "tokens": self._hide(rng, tokens, predicted),
            "types": types,
            "predicted": predicted,
            "targets": tokens[predicted],
            "weights": np.ones(len(predicted)),
            "follows": [follows],
            "rows": [1],
        }

    def _draw_other(self, rng: np.random.Generator, row: int) -> tuple[int, int]:
        """Returns the second part of a run of sentences of another document, divided at random."""
        relatives = self._end[row] - self._begin[row]  # runs in the same document
        other = int(rng.integers(self.pieces - relatives))
        other += relatives if other >= self._begin[row] else 0
        first, last = int(self._chunks.first[other]), int(self._chunks.last[other])
        return int(rng.integers(first + 1, last)), last

    def _read(self, first: int, last: int) -> np.ndarray:
        """Returns the tokens of consecutive sentences without EOS."""
        lengths = self._lengths[first:last]
        index = concatenate_ranges(self._ends[first:last] - 1 - lengths, lengths)
        return np.asarray(self._stream[index], np.int32)

    def _hide(self, rng: np.random.Generator, tokens: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Replaces 80 % of the predicted tokens by the mask and 10 % by random tokens.

        A random token may be the mask or the token itself, as in the authors' code. That code draws from the
        whole vocabulary. Here, padding, BOS and EOS are left out, because they end or separate texts.
        """
        kind, hidden = rng.random(len(predicted)), tokens.copy()
        random = rng.integers(FIRST_TOKEN, self._size, len(predicted))
        replaced = np.where(kind < MASKED_SHARE + RANDOM_SHARE, random, tokens[predicted])
        hidden[predicted] = np.where(kind < MASKED_SHARE, self._mask_id, replaced)
        return hidden


def empty_batch(shape: tuple[int, int], share: float) -> Batch:
    """Returns a batch of padding for rows of the shape (rows, width)."""
    rows, width = shape
    widths = dict.fromkeys(("tokens", "types"), width)
    widths |= dict.fromkeys(("predicted", "targets", "weights"), math.ceil(share * width))
    batch = {name: np.zeros((rows, count), np.int32) for name, count in widths.items()}
    return batch | {name: np.zeros(rows, np.int32) for name in ("follows", "rows")}


def fit_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns the lengths of two texts after the longer text is cut until both fit into `room` tokens."""
    of_second = min(second, max(room - first, room // 2))
    return min(first, room - of_second), of_second


def count_special_tokens(texts: int) -> int:
    """Returns the number of special tokens of a row with `texts` texts: BOS, and an EOS after each text."""
    return 1 + texts


def join_texts(*texts: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of a row with BOS and an EOS after each text, and the type of each token."""
    tokens = np.concatenate([[BOS_ID], *([*text, EOS_ID] for text in texts)]).astype(np.int32)
    lengths = [len(text) + 1 for text in texts]
    lengths[0] += 1
    return tokens, np.repeat(np.arange(len(texts)), lengths)


def choose_tokens(rng: np.random.Generator, tokens: np.ndarray, share: float) -> np.ndarray:
    """Returns the ascending positions of a share of the tokens: at least one, and never BOS or EOS."""
    candidates = np.flatnonzero(tokens >= FIRST_TOKEN)
    return np.sort(rng.choice(candidates, max(round(share * len(candidates)), 1), replace=False))
