"""The tokenizer file of a new run: a copy of the user's file, or learned from the training texts."""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.sources.opening import open_documents, open_pairs, split_tags
from tfm.data.tokenizers.characters import learn_characters
from tfm.data.tokenizers.files import copy_tokenizer, is_own_file
from tfm.data.tokenizers.learning import RepeatableTexts, learn_word_pieces

log = logging.getLogger(__name__)


def make_tokenizer(data: PairsConfig | DocumentsConfig, path: str) -> None:
    """Copies the user's tokenizer to `path`, or learns a tokenizer from the training split.

    Raises:
      UserError: if the training split or the user's file cannot be used.
    """
    log.info("Making a tokenizer (data.tokenizer=%s)", data.tokenizer)
    if is_own_file(data.tokenizer):
        copy_tokenizer(data.tokenizer, path)
    elif isinstance(data, PairsConfig):
        pairs = open_pairs(data, "train")
        sides = len(data.text_columns)
        texts = RepeatableTexts(lambda: sample_evenly(pairs, data.vocabulary_pairs, sides))
        symbols = sorted(set(split_tags(data.tags)) - {""})
        learn_word_pieces(texts, data.vocabulary_size, path, symbols=symbols)
    elif data.tokenizer == "characters":
        learn_characters((text for (text,) in open_documents(data, "train")), path)
    else:
        documents = open_documents(data, "train")
        parts = RepeatableTexts(lambda: (part for (text,) in documents for part in text.split("\n\n")))
        learn_word_pieces(parts, data.vocabulary_size, path, lossless=True)


def sample_evenly(pairs: Any, most: int, sides: int = 2) -> Iterator[str]:
    """Yields the first `sides` texts of at most `most` rows, spread evenly over the source."""
    stride = -(-len(pairs) // most)
    rows = itertools.islice(pairs, 0, None, stride)
    return itertools.chain.from_iterable(row[:sides] for row in rows)
