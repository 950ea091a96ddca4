"""Sentences of documents."""

import re
from collections.abc import Iterator

from tfm.data.source import Row, Source

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a document, each with single blanks as white space.

    A sentence ends after ".", "!" or "?" before white space, and before a blank line.
    """
    parts = (" ".join(part.split()) for part in SENTENCE_END.split(text))
    return [part for part in parts if part]


def list_sentences(documents: Source) -> Source:
    """Returns a source with a row for each sentence, and an empty row after the sentences of a document."""

    def read() -> Iterator[Row]:
        for (text,) in documents:
            yield from ((sentence,) for sentence in split_sentences(text))
            yield ("",)

    return Source(read, lambda: f"sentences-{documents.fingerprint}")
