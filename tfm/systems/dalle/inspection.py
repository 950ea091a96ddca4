"""The summary of pictures with captions for `tfm data`: lengths, repeated and missing captions, sizes."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.batches.generated import EVALUATION
from tfm.data.inspection import Summary, check_pictures, make_histogram
from tfm.data.pictures import read_picture
from tfm.data.tokenizers.files import is_own_file, load_tokenizer, load_word_pieces
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.systems.dalle.captions import FIRST_WORD_ID, CaptionedDigits, CaptionsConfig, describe_text
from tfm.systems.dalle.stored_captions import StoredCaptions, find_captions

BAR = 40  # width of the longest bar, in characters
log = logging.getLogger(__name__)


def summarize_captions(name: str, data: CaptionsConfig, text_length: int | None = None) -> Summary:
    """Returns the summary of a split, all of whose pictures are read.

    Args:
      name: name of the split.
      data: the data section.
      text_length: tokens of a caption that the model reads, or None if it reads only pictures.

    Raises:
      UserError: if the data are missing or unusable.
    """
    if data.kind == "digits":
        return _summarize_digits(name, data)
    stored = find_captions(data, name)
    sizes: list[tuple[int, int]] = []

    def read(index: int) -> Any:
        picture = read_picture(stored.paths[index], stored.paths[index], 3)
        sizes.append(picture.size)
        return picture

    hashes, unreadable = check_pictures(len(stored.paths), read, lambda line: log.info("%s", line))
    hints = [f"{len(unreadable):,} pictures cannot be read. {unreadable[0]}"] if unreadable else []
    summary = _summarize(name, f"{len(stored.paths):,} pictures with captions", stored.captions, hashes)
    lines = _list_missing(stored)
    values: dict[str, Any] = {
        "without_captions": stored.captions.count([]),
        "empty": stored.empty,
        "left_out": stored.left_out,
    }
    if sizes:
        widths, heights = zip(*sizes, strict=True)
        values["sizes"] = {"width": [min(widths), max(widths)], "height": [min(heights), max(heights)]}
        shown = f"{min(widths):,} to {max(widths):,} pixels wide, {min(heights):,} to {max(heights):,} high"
        lines.append(("sizes", shown))
    if text_length is not None:
        hints += _find_cut(stored.captions, data, text_length)
    return summary._replace(
        lines=[*lines, *summary.lines], values=values | summary.values, hints=[*hints, *summary.hints]
    )


def _summarize_digits(name: str, data: CaptionsConfig) -> Summary:
    """Returns the summary of the evaluated pictures of a generated split."""
    pictures = CaptionedDigits(name)
    examples = [pictures.make(EVALUATION, index) for index in range(data.evaluated)]
    captions = [[describe_text(FIRST_WORD_ID + np.array(example.words))] for example in examples]
    hashes, _ = check_pictures(len(examples), lambda index: examples[index].image, log.info)
    return _summarize(name, f"{len(examples):,} generated pictures with captions", captions, hashes)


def _list_missing(stored: StoredCaptions) -> list[tuple[str, str]]:
    """Returns the lines about what is left out."""
    counts = {
        "pictures have no caption": stored.captions.count([]),
        "captions are empty": stored.empty,
        "captions belong to pictures that are not listed": stored.left_out,
    }
    return [("left out", f"{count:,} {what}") for what, count in counts.items() if count]


def _summarize(name: str, title: str, captions: Sequence[Sequence[str]], hashes: np.ndarray) -> Summary:
    """Returns the summary of the captions of pictures."""
    texts = [text for group in captions for text in group]
    words = Counter(len(text.split()) for text in texts)
    different = len({word for text in texts for word in text.split()})
    histogram = make_histogram(words)
    values: dict[str, Any] = {
        "pictures": len(captions),
        "captions": len(texts),
        "repeated_captions": len(texts) - len(set(texts)),
        "words": sum(length * count for length, count in words.items()),
        "different_words": different,
        "histogram": histogram,
    }
    longest = max(texts, key=len, default="")
    lines = [
        ("captions", f"{len(texts):,}, at most {max(map(len, captions), default=0):,} of a picture"),
        ("repeated", f"{values['repeated_captions']:,} captions equal an earlier caption"),
        ("words", f"{values['words']:,}, {different:,} different"),
        ("longest", f"{len(longest):,} characters"),
        ("length", "in words"),
    ]
    most = max(histogram.values())
    for length, count in histogram.items():
        lines.append((length, f"{count:>12,} {'#' * -(-count * BAR // max(most, 1))}".rstrip()))
    return Summary(name, title, lines, values, [], hashes)


def _find_cut(captions: Sequence[Sequence[str]], data: CaptionsConfig, text_length: int) -> list[str]:
    """Returns a hint if captions are longer than the model reads. Without a tokenizer, words are counted."""
    tokenizer = _find_tokenizer(data)
    texts = [text for group in captions for text in group]
    if tokenizer is None:
        count = sum(len(text.split()) > text_length for text in texts)
        unit = "words, and so even more tokens,"
    else:
        count = sum(len(ids) > text_length for ids in tokenizer.encode(texts))
        unit = "tokens"
    if not count:
        return []
    return [f"{count:,} captions have more {unit} than model.text_length ({text_length}) and will be cut"]


def _find_tokenizer(data: CaptionsConfig) -> Tokenizer | None:
    """Returns the tokenizer of the config, or None if a run will learn it."""
    if data.tokenizer == "bytes":
        return load_tokenizer("", "bytes")
    return load_word_pieces(data.tokenizer) if is_own_file(data.tokenizer) else None
