"""Batches of texts with labels: a label of each text, of each pair of texts, or of each word.

A batch is a dict of int32 arrays [B, L]:

    tokens      BOS, the text, EOS, and for a pair the second text and another EOS
    types       0 up to the first EOS, 1 after it
    labels      the label of a row at its BOS, the label of a word at the first token of the word
    weights     1 for a label, 0 for all other tokens
"""

import dataclasses
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config import DOTTED, field, without_fields
from tfm.data.batches.rows import bucket
from tfm.data.batches.schedule import Batch, cut_batches
from tfm.data.config import MAX_SIDE_TOKENS, PairsConfig, vocabulary_field
from tfm.data.source import Row
from tfm.data.tokenizers.protocol import Tokenizer, encode_inside
from tfm.errors import UserError
from tfm.systems.bert.masked_pairs import SPECIAL_TOKENS, fit_lengths, join_texts

NO_LABEL = "-"  # in place of the tag of a word without a tag
MAX_SHOWN_LABELS = 9  # in an error message
KINDS = ("table", "huggingface", "tfds")
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
@without_fields(
    source_language="text",
    target_language="label",
    source_column="",
    target_column="",
    mixing="",
    tags="",
    joined_share=0.0,
    subword_dropout=0.0,
    subword_samples=1,
    batching="buckets",
    row_length=0,
    source_prefix="",
    target_prefix="",
)
class LabelledConfig(PairsConfig):
    """The source of labelled texts, their vocabulary, and how they become batches."""

    kind: str = vocabulary_field(
        "table",
        "Kind of the data. table: TSV, CSV, JSON Lines or Parquet files. huggingface: a data set of the "
        "package datasets. tfds: a TFDS data set. package.module:function: your function (LabelledConfig, "
        "split) -> source, see `tfm.data.source`.",
        pattern=re.compile(f"{'|'.join(KINDS)}|{DOTTED.pattern}", re.ASCII),
        form=f"one of {', '.join(KINDS)}, or package.module:function",
    )
    text_column: str = vocabulary_field("text", "Column or feature of the text.")
    second_column: str = vocabulary_field(
        "", "Column or feature of the second text of a pair. If empty, a row has one text."
    )
    label_column: str = vocabulary_field(
        "label",
        f"Column or feature of the label: a text, an integer, a boolean or a ClassLabel. For tags: a tag for "
        f"each word, separated by blanks, and {NO_LABEL!r} for a word without a tag.",
    )
    max_length: int = field(
        128,
        "Maximum tokens of a row, including BOS and EOS. Longer texts are cut. Longer texts with tags are an "
        "error.",
        minimum=SPECIAL_TOKENS + 2,
        maximum=MAX_SIDE_TOKENS,
        unit="tokens",
    )

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of the text and, for pairs, of the second text."""
        return (self.text_column, self.second_column) if self.second_column else (self.text_column,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the texts and of the label."""
        return (*self.text_columns, self.label_column)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The column of the label, whose values may be integers, booleans or classes."""
        return (self.label_column,)

    @property
    def languages(self) -> tuple[str, ...]:
        """The names of the columns for `tfm data`."""
        return self.columns


class LabelledText(NamedTuple):
    """The arrays of a row without padding, int [L]."""

    tokens: np.ndarray
    types: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def split_label(label: str, has_tags: bool) -> list[str]:
    """Returns the tags of the words of a text, or its only label."""
    return label.split() if has_tags else [label]


def find_labels(rows: Sequence[Row], has_tags: bool) -> set[str]:
    """Returns the names of all labels of some rows.

    Raises:
      UserError: if a row has no label.
    """
    unlabelled = [number for number, row in enumerate(rows, 1) if not row[-1]]
    if unlabelled:
        raise UserError(
            f"Expected a label in each row, but {len(unlabelled):,} rows have none, for example row "
            f"{unlabelled[0]:,}, {rows[unlabelled[0] - 1][0]!r}. Add the labels, or remove the rows."
        )
    names = itertools.chain.from_iterable(split_label(row[-1], has_tags) for row in rows)
    return set(names) - ({NO_LABEL} if has_tags else set())


def sort_labels(names: Iterable[str]) -> list[str]:
    """Returns names of labels in their order, and integers in the order of their values."""
    names = set(names)
    if all(re.fullmatch("-?[0-9]{1,18}", name, re.ASCII) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def encode_rows(
    rows: Sequence[Row], tokenizer: Tokenizer, names: Sequence[str], max_length: int, has_tags: bool
) -> list[LabelledText]:
    """Returns the arrays of rows of texts and labels.

    Args:
      rows: one or two texts, and the label.
      tokenizer: a `Tokenizer`.
      names: names of the classes.
      max_length: maximum number of tokens of a row.
      has_tags: whether a label consists of the tags of the words of a single text.

    Raises:
      UserError: if a label is missing or not among the names, the numbers of words and tags of a text differ,
        or a text with tags is too long.
    """
    if unknown := sort_labels(find_labels(rows, has_tags) - set(names)):
        raise UserError(
            f"Expected labels of the run ({', '.join(names[:MAX_SHOWN_LABELS])}), got "
            f"{', '.join(map(repr, unknown[:MAX_SHOWN_LABELS]))}. Correct the labels, or start a new run, "
            "whose classes are the labels of all splits."
        )
    classes = {name: number for number, name in enumerate(names)}
    if has_tags:
        return [
            _encode_words(number, text, label, tokenizer, classes, max_length)
            for number, (text, label) in enumerate(rows, 1)
        ]
    encoded = [tokenizer.encode(texts) for texts in zip(*(row[:-1] for row in rows), strict=True)]
    cut = [cut_texts(ids, max_length) for ids in zip(*encoded, strict=True)]
    _warn_of_cuts(list(zip(*encoded, strict=True)), cut, max_length)
    return [
        _label(*join_texts(*texts), np.array([0]), [classes[row[-1]]], [1])
        for row, texts in zip(rows, cut, strict=True)
    ]


def _warn_of_cuts(
    encoded: Sequence[Sequence[list[int]]], cut: Sequence[Sequence[list[int]]], max_length: int
) -> None:
    """Warns of texts that were longer than a row, whose ends the model does not read."""
    lengths = [sum(map(len, texts)) for texts in encoded]
    shortened = [
        length for length, texts in zip(lengths, cut, strict=True) if length > sum(len(ids) for ids in texts)
    ]
    if shortened:
        log.warning(
            "Cut %s of %s texts, of up to %s tokens, to rows of data.max_length=%s tokens. A larger value "
            "keeps their ends",
            f"{len(shortened):,}",
            f"{len(lengths):,}",
            f"{max(shortened):,}",
            f"{max_length:,}",
        )


def cut_texts(texts: Sequence[list[int]], max_length: int) -> list[list[int]]:
    """Returns the beginnings of one or two texts that fit into a row."""
    if len(texts) == 1:
        return [texts[0][: max_length - SPECIAL_TOKENS + 1]]
    lengths = fit_lengths(len(texts[0]), len(texts[1]), max_length - SPECIAL_TOKENS)
    return [ids[:length] for ids, length in zip(texts, lengths, strict=True)]


def _label(
    tokens: np.ndarray,
    types: np.ndarray,
    places: np.ndarray,
    place_labels: Sequence[int],
    place_weights: Sequence[int],
) -> LabelledText:
    """Returns the arrays of a row with labels at some places."""
    labels, weights = np.zeros_like(tokens), np.zeros_like(tokens)
    labels[places], weights[places] = place_labels, place_weights
    return LabelledText(tokens, types, labels, weights)


def _encode_words(
    number: int, text: str, label: str, tokenizer: Tokenizer, classes: dict[str, int], max_length: int
) -> LabelledText:
    """Returns the arrays of a text whose words have tags. `number` is the number of its row, from 1."""
    tags, words = label.split(), text.split()
    if len(words) != len(tags):
        raise UserError(
            f"Expected a tag for each of the {len(words)} words of row {number:,}, {text!r}, got {len(tags)} "
            f"tags: {label!r}. Words are separated by blanks."
        )
    ids = [*tokenizer.encode(words[:1]), *encode_inside(tokenizer, [f" {word}" for word in words[1:]])]
    if not all(ids):
        raise UserError(
            f"Row {number:,}: the tokenizer has no token for {words[ids.index([])]!r}, so its tag "
            f"{tags[ids.index([])]!r} has no place. Remove the word, or use another tokenizer."
        )
    tokens, types = join_texts(list(itertools.chain.from_iterable(ids)))
    if len(tokens) > max_length:
        raise UserError(
            f"Expected texts with tags to have at most data.max_length ({max_length:,}) tokens, but row "
            f"{number:,} has {len(tokens):,}. Increase data.max_length, or shorten the text."
        )
    starts = np.cumsum([1, *map(len, ids[:-1])])
    has_label = [tag != NO_LABEL for tag in tags]
    return _label(tokens, types, starts, [classes.get(tag, 0) for tag in tags], has_label)


class LabelledTexts:
    """An `Epochs` of labelled texts, in rows of similar length.

    Args:
      texts: the rows.
      config: a `LabelledConfig`.
      seed: decides the order.
    """

    def __init__(self, texts: Sequence[LabelledText], config: Any, seed: int):
        self._texts, self._seed, self.pieces = texts, seed, len(texts)
        lengths = np.array([len(text.tokens) for text in texts])
        self._rows = bucket(np.arange(len(texts)), lengths[:, None], config.max_length)
        self._ends = np.cumsum([count for _, count in self._rows.widths])[:-1]
        self.cuts = cut_batches(self._rows.widths, config.batch_tokens)
        self.tokens = float(lengths.sum())

    def shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Epochs`. Rows change places only with rows of their width."""
        rng = np.random.default_rng((self._seed, epoch))
        order = np.arange(self.pieces)
        for rows in np.split(order, self._ends):
            rng.shuffle(rows)
        return order, rng.permutation(len(self.cuts))

    def assemble(self, epoch: int, rows: np.ndarray, shape: tuple[int, int]) -> Batch:
        """See `Epochs`."""
        arrays = LabelledText(*(np.zeros(shape, np.int32) for _ in LabelledText._fields))
        for place, number in enumerate(self._rows.pieces[rows]):
            for array, values in zip(arrays, self._texts[number], strict=True):
                array[place, : len(values)] = values
        return arrays._asdict()

    def describe(self, epoch: int, rows: np.ndarray) -> dict[str, Any]:
        """See `Epochs`."""
        return {"texts": self._rows.pieces[rows].tolist()}

    def in_order(self) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yields (numbers of the texts, batch) for all texts."""
        for cut in self.cuts:
            rows = np.arange(cut.first, cut.last)
            yield self._rows.pieces[rows], self.assemble(0, rows, (cut.rows, cut.width))
