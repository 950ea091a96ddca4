"""The source texts of an input with tags: TMX, and test sets in XML or SGML."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from tfm.data.sources.test_sets import order_of_number, read_documents, read_segments
from tfm.data.sources.tmx import choose_texts, read_units
from tfm.data.sources.xml_reader import BLOCK_BYTES, read_blocks
from tfm.errors import UserError

ROOT = re.compile(rb"<(?:\w+:)?(tmx|dataset|mteval|srcset|refset|tstset)\b", re.IGNORECASE)
MAX_SGML_BYTES = 1 << 28  # a test set in SGML is read at once


def read_source_texts(beginning: bytes, rest: Any, language: str) -> Iterator[str]:
    """Yields the text of each segment in the source language, in the order of the input.

    A translation unit without text in the language has an empty text. Test suites are included.

    Args:
      beginning: the bytes that were already read.
      rest: a binary file with all other bytes.
      language: the source language.

    Raises:
      UserError: if the form is unknown or the input is damaged.
    """
    beginning += rest.read(BLOCK_BYTES)
    root = ROOT.search(beginning.replace(b"\0", b""))  # XML may be UTF-16
    if root is None:
        raise UserError(
            "The input is SGML or XML, but neither TMX nor a test set of WMT. Write its texts into a "
            "file, one on each line."
        )
    form = root[1].lower()
    if form == b"tmx":
        for unit in read_units(itertools.chain([beginning], read_blocks(rest)), "the input"):
            yield choose_texts(unit, [language])[0]
    elif form == b"dataset":
        for document in read_documents(itertools.chain([beginning], read_blocks(rest)), "the input"):
            yield from (document.source[number] for number in sorted(document.source, key=order_of_number))
    else:
        content = beginning + rest.read(MAX_SGML_BYTES)
        text = content.decode("utf-8-sig", errors="replace")
        yield from (segment.text for segment in read_segments(text, "the input"))
