"""Sentences of documents."""

import re
from collections.abc import Iterator

from tfm.data.source import Row, Source

SENTENCE_ENDS = {"punctuation": re.compile(r"(?<=[.!?])\s+|\n\s*\n"), "line": re.compile(r"\n")}


def split_sentences(text: str, unit: str = "punctuation") -> list[str]:
    """Returns the sentences of a document, each with single blanks as white space.

    Args:
      text: the document.
      unit: "punctuation": a sentence ends after ".", "!" or "?" before white space, and before a blank line.
        "line": each line is a sentence.
    """
    parts = (" ".join(part.split()) for part in SENTENCE_ENDS[unit].split(text))
    return [part for part in parts if part]


def list_sentences(documents: Source, unit: str = "punctuation") -> Source:
    """Returns a source with a row for each sentence, and an empty row after the sentences of a document.

    Args:
      documents: rows of one document.
      unit: see `split_sentences`.
    """

    def read() -> Iterator[Row]:
        for (text,) in documents:
            yield from ((sentence,) for sentence in split_sentences(text, unit))
            yield ("",)

    name = "sentences" if unit == "punctuation" else f"{unit}-sentences"
    return Source(read, lambda: f"{name}-{documents.fingerprint}")
