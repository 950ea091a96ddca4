"""Batches of texts with labels: a class or a number of each text or pair of texts, or a tag of each word.

A batch is a dict of int32 arrays [B, L]. Labels that are numbers are float32:

    tokens      BOS, the text, EOS, and for a pair the second text and another EOS
    types       0 up to the first EOS, 1 after it
    labels      the label of a row at its BOS, the label of a word at the first token of the word
    weights     1 for a label, 0 for all other tokens
"""

import dataclasses
import functools
import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfm.config import DOTTED, field, without_fields
from tfm.data.batches.rows import bucket
from tfm.data.batches.schedule import Batch, cut_batches
from tfm.data.config import MAX_SIDE_TOKENS, PairsConfig, vocabulary_field
from tfm.data.source import Row, locate_by_number
from tfm.data.sources.columns import ListColumns, join_words
from tfm.data.tokenizers.protocol import Tokenizer, encode_inside
from tfm.errors import UserError
from tfm.systems.bert.masked_pairs import SPECIAL_TOKENS, count_special_tokens, fit_lengths, join_texts

NO_LABEL = "-"  # in place of the tag of a word without a tag
UNKNOWN = -1  # the label of texts whose labels are not published
MAX_SHOWN_LABELS = 9  # in an error message
OWN_KINDS = {"conll": "tfm.systems.bert.conll:open_conll"}
KINDS = ("table", *OWN_KINDS, "huggingface", "tfds")
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
@without_fields(
    source_language="text",
    target_language="label",
    source_column="",
    target_column="",
    references="",
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
        "Kind of the data. table: TSV, CSV, JSON Lines or Parquet files. conll: files with a word and its "
        "tags in each line. huggingface: a data set of the package datasets. tfds: a TFDS data set. "
        "package.module:function: your function (LabelledConfig, split) -> source, see `tfm.data.source`.",
        pattern=re.compile(f"{'|'.join(KINDS)}|{DOTTED.pattern}", re.ASCII),
        form=f"one of {', '.join(KINDS)}, or package.module:function",
    )
    text_column: str = vocabulary_field(
        "text",
        "Column or feature of the text. A number, counted from 1, selects a column of a TSV or CSV file "
        "without a header, and then all columns are numbers. conll: number of the column of the "
        "words; text is the first column.",
    )
    second_column: str = vocabulary_field(
        "", "Column or feature of the second text of a pair. If empty, a row has one text."
    )
    label_column: str = vocabulary_field(
        "label",
        f"Column or feature of the label: a text, a number, a boolean or a ClassLabel. For tags: a tag for "
        f"each word, separated by blanks or in a list, and {NO_LABEL!r} for a word without a tag. conll: "
        "number of the column of the tags; label is the last column.",
    )
    max_length: int = field(
        128,
        "Maximum tokens of a row, including BOS and EOS. Longer texts are cut. Longer texts with tags are an "
        "error.",
        minimum=SPECIAL_TOKENS + 2,
        maximum=MAX_SIDE_TOKENS,
        unit="tokens",
    )

    own_kinds: ClassVar[Mapping[str, str]] = OWN_KINDS

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
        """The column of the label, whose values may be numbers, booleans or classes."""
        return (self.label_column,)

    @property
    def list_columns(self) -> ListColumns:
        """The columns that may be lists of words and of their tags."""
        return {} if self.second_column else dict.fromkeys((self.text_column, self.label_column), join_words)

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


def count_labels(
    rows: Sequence[Row], has_tags: bool, locate: Callable[[int], str] = locate_by_number
) -> Counter[str]:
    """Returns {name of a label: number of the rows or words that have it}.

    Args:
      rows: one or two texts, and the label.
      has_tags: whether a label consists of the tags of the words of a text.
      locate: see `tfm.data.source.Source`.

    Raises:
      UserError: if a row has no label, or the label of a text is a number with a fraction.
    """
    _check_no_label_is_empty(rows, locate)
    names = itertools.chain.from_iterable(split_label(row[-1], has_tags) for row in rows)
    counts = Counter(names)
    if has_tags:
        del counts[NO_LABEL]
        return counts
    fractions = [name for name in counts if not (read_number(name) or 0.0).is_integer()]
    if fractions:
        row = [row[-1] for row in rows].index(fractions[0])
        raise UserError(
            f"Expected classes as labels, but {locate(row)} has the number {fractions[0]}. Set model.head to "
            "regression to predict numbers."
        )
    return counts


def _check_no_label_is_empty(rows: Sequence[Row], locate: Callable[[int], str]) -> None:
    """Raises a UserError if a row has no label."""
    unlabelled = [number for number, row in enumerate(rows) if not row[-1]]
    if unlabelled:
        raise UserError(
            f"Expected a label in each row, but {len(unlabelled):,} rows have none, for example "
            f"{locate(unlabelled[0])}, {rows[unlabelled[0]][0]!r}. Add the labels, or remove the rows."
        )


def read_numbers(rows: Sequence[Row], locate: Callable[[int], str] = locate_by_number) -> list[float]:
    """Returns the labels of rows as numbers.

    Args:
      rows, locate: see `count_labels`.

    Raises:
      UserError: if a label is missing or no finite number, or if all labels are -1, as in test splits whose
        labels are secret.
    """
    _check_no_label_is_empty(rows, locate)
    numbers: list[float] = []
    for row, (*_, label) in enumerate(rows):
        number = read_number(label)
        if number is None:
            raise UserError(
                f"Expected a number as the label of {locate(row)}, got {label!r}. Correct it, or set "
                "model.head to classes."
            )
        numbers.append(number)
    if set(numbers) == {UNKNOWN}:
        raise UserError(
            f"All labels are {UNKNOWN}, which stands for an unknown label in test splits without labels. Set "
            "data.test to another split, or leave data.test empty."
        )
    return numbers


def read_number(label: str) -> float | None:
    """Returns a label as a finite number, or None if it is none."""
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def sort_labels(names: Iterable[str]) -> list[str]:
    """Returns names of labels in their order, and integers in the order of their values."""
    names = set(names)
    if all(re.fullmatch("-?[0-9]{1,18}", name, re.ASCII) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def encode_rows(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    names: Sequence[str],
    max_length: int,
    has_tags: bool,
    locate: Callable[[int], str] = locate_by_number,
) -> list[LabelledText]:
    """Returns the arrays of rows of texts and classes.

    Texts with a class are cut to `max_length` tokens, and a warning counts them.

    Args:
      rows: one or two texts, and the label.
      tokenizer: a `Tokenizer`.
      names: names of the classes.
      max_length: maximum number of tokens of a row.
      has_tags: whether a label consists of the tags of the words of a single text.
      locate: see `tfm.data.source.Source`.

    Raises:
      UserError: if a label is missing or not among the names, the numbers of words and tags of a text differ,
        or a text with tags is too long.
    """
    if unknown := sort_labels(count_labels(rows, has_tags, locate).keys() - set(names)):
        raise UserError(
            f"Expected labels of the run ({', '.join(names[:MAX_SHOWN_LABELS])}), got "
            f"{', '.join(map(repr, unknown[:MAX_SHOWN_LABELS]))}. Correct the labels, or start a new run, "
            "whose classes are the labels of all splits."
        )
    classes = {name: number for number, name in enumerate(names)}
    if has_tags:
        return [
            _encode_words(functools.partial(locate, number), text, label, tokenizer, classes, max_length)
            for number, (text, label) in enumerate(rows)
        ]
    return [
        _label(*texts, np.array([0]), [classes[row[-1]]], [1])
        for row, texts in zip(rows, _encode_texts(rows, tokenizer, max_length), strict=True)
    ]


def encode_numbers(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    max_length: int,
    locate: Callable[[int], str] = locate_by_number,
) -> list[LabelledText]:
    """Returns the arrays of rows of texts and numbers.

    Texts are cut to `max_length` tokens, and a warning counts them.

    Args:
      rows, tokenizer, max_length, locate: see `encode_rows`.

    Raises:
      UserError: see `read_numbers`.
    """
    texts = _encode_texts(rows, tokenizer, max_length)
    return [
        _label(*row, np.array([0]), [number], [1], dtype=np.float32)
        for row, number in zip(texts, read_numbers(rows, locate), strict=True)
    ]


def _encode_texts(
    rows: Sequence[Row], tokenizer: Tokenizer, max_length: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the tokens and the types of rows with one or two texts, which are cut to `max_length`."""
    encoded = [tokenizer.encode(texts) for texts in zip(*(row[:-1] for row in rows), strict=True)]
    cut = [cut_texts(ids, max_length) for ids in zip(*encoded, strict=True)]
    _warn_of_cuts(list(zip(*encoded, strict=True)), cut, max_length)
    return [join_texts(*texts) for texts in cut]


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
            "Cut %s of %s texts, of up to %s tokens, to rows of data.max_length=%s tokens. "
            "data.max_length=%s keeps their ends",
            f"{len(shortened):,}",
            f"{len(lengths):,}",
            f"{max(shortened):,}",
            f"{max_length:,}",
            max(shortened) + count_special_tokens(len(encoded[0])),
        )


def cut_texts(texts: Sequence[list[int]], max_length: int) -> list[list[int]]:
    """Returns the beginnings of one or two texts that fit into a row."""
    if len(texts) == 1:
        return [texts[0][: max_length - count_special_tokens(1)]]
    lengths = fit_lengths(len(texts[0]), len(texts[1]), max_length - count_special_tokens(2))
    return [ids[:length] for ids, length in zip(texts, lengths, strict=True)]


def _label(
    tokens: np.ndarray,
    types: np.ndarray,
    places: np.ndarray,
    place_labels: Sequence[float],
    place_weights: Sequence[int],
    dtype: type = np.int32,
) -> LabelledText:
    """Returns the arrays of a row with labels at some places."""
    labels: np.ndarray = np.zeros(tokens.shape, dtype)
    weights = np.zeros_like(tokens)
    labels[places], weights[places] = place_labels, place_weights
    return LabelledText(tokens, types, labels, weights)


def _encode_words(
    locate: Callable[[], str],
    text: str,
    label: str,
    tokenizer: Tokenizer,
    classes: dict[str, int],
    max_length: int,
) -> LabelledText:
    """Returns the arrays of a text whose words have tags. `locate` returns the place of the row."""
    tags, words = label.split(), text.split()
    if len(words) != len(tags):
        raise UserError(
            f"Expected a tag for each of the {len(words)} words of {locate()}, {text!r}, got {len(tags)} "
            f"tags: {label!r}. Words are separated by blanks."
        )
    ids = [*tokenizer.encode(words[:1]), *encode_inside(tokenizer, [f" {word}" for word in words[1:]])]
    if not all(ids):
        raise UserError(
            f"The tokenizer has no token for {words[ids.index([])]!r} in {locate()}, so its tag "
            f"{tags[ids.index([])]!r} has no place. Remove the word, or use another tokenizer."
        )
    tokens, types = join_texts(list(itertools.chain.from_iterable(ids)))
    if len(tokens) > max_length:
        raise UserError(
            f"Expected texts with tags to have at most data.max_length ({max_length:,}) tokens, but "
            f"{locate()} has {len(tokens):,}. Set data.max_length={len(tokens)}, or shorten the text."
        )
    starts = np.cumsum([1, *map(len, ids[:-1])])
    has_label = [tag != NO_LABEL for tag in tags]
    return _label(tokens, types, starts, [classes.get(tag, 0) for tag in tags], has_label)


def _batch_dtype(array: np.ndarray) -> type:
    """Returns the dtype in a batch: int32, or float32 for labels that are numbers."""
    return np.float32 if array.dtype == np.float32 else np.int32


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
        arrays = LabelledText(*(np.zeros(shape, _batch_dtype(array)) for array in self._texts[0]))
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
