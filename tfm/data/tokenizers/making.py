"""The tokenizer file of a new run: a copy of the user's file, or learned from the training texts."""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.sources.opening import open_documents, open_pairs, split_tags
from tfm.data.tokenizers.characters import learn_characters
from tfm.data.tokenizers.files import copy_tokenizer, is_own_file, load_word_pieces
from tfm.data.tokenizers.learning import RepeatableTexts, learn_word_pieces
from tfm.data.tokenizers.round_trip import check_round_trip

log = logging.getLogger(__name__)


def make_tokenizer(data: PairsConfig | DocumentsConfig, path: str) -> None:
    """Copies the user's tokenizer to `path`, or learns a tokenizer from the training split.

    Raises:
      UserError: if the training split or the user's file cannot be used.
    """
    log.info("Making a tokenizer (data.tokenizer=%s)", data.tokenizer)
    texts = RepeatableTexts(lambda: read_training_texts(data))
    if is_own_file(data.tokenizer):
        check_round_trip(load_word_pieces(data.tokenizer), texts)
        copy_tokenizer(data.tokenizer, path)
    elif data.tokenizer == "characters":
        learn_characters(texts, path)
    elif isinstance(data, PairsConfig):
        symbols = sorted(set(split_tags(data.tags)) - {""})
        normalization = data.normalization
        learn_word_pieces(texts, data.vocabulary_size, path, normalization=normalization, symbols=symbols)
    else:
        learn_word_pieces(texts, data.vocabulary_size, path, has_lines=True)


def read_training_texts(data: PairsConfig | DocumentsConfig) -> Iterator[str]:
    """Yields the texts of the training split: documents, or both sides of `vocabulary_pairs` pairs."""
    if isinstance(data, PairsConfig):
        return sample_evenly(open_pairs(data, "train"), data.vocabulary_pairs, len(data.text_columns))
    return (text for (text,) in open_documents(data, "train"))


def sample_evenly(pairs: Any, most: int, sides: int = 2) -> Iterator[str]:
    """Yields the first `sides` texts of at most `most` rows, spread evenly over the source."""
    stride = -(-len(pairs) // most)
    rows = itertools.islice(pairs, 0, None, stride)
    return itertools.chain.from_iterable(row[:sides] for row in rows)
