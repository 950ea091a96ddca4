"""XML that is read in blocks, with bounded memory, for translation memories and test sets.

Python's own expat parser reads the XML. It never fetches an external file, and a declaration of an entity is
an error here, so that no entity can expand into more text than the file has.
"""

import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from reprlib import repr as shorten
from typing import Any, Protocol
from xml.parsers import expat

from tfm.errors import UserError

BLOCK_BYTES = 1 << 18
MAX_TEXT_CHARACTERS = 1 << 20  # of a segment; a longer text is no sentence
SPACE = re.compile("[ \t\r\n]+")  # what XML calls white space, without no-break spaces


class XmlHandler(Protocol):
    """A receiver of the parts of an XML file, in their order.

    Attributes:
      finished: what the parts so far have become. `read_xml` yields these items and empties the list.
    """

    finished: list[Any]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Receives the start of an element. Names have no namespace prefix, except for xml:lang."""

    def end(self, name: str) -> None:
        """Receives the end of an element."""

    def text(self, text: str) -> None:
        """Receives a part of a text."""


class SegmentText:
    """The text of the current element `seg`, while its parts arrive."""

    def __init__(self) -> None:
        self._parts: list[str] | None = None
        self._characters = 0

    @property
    def is_open(self) -> bool:
        """Whether a segment has started and not ended."""
        return self._parts is not None

    def open(self) -> None:
        """Begins a new segment."""
        self._parts, self._characters = [], 0

    def add(self, text: str) -> None:
        """Adds a part, if a segment is open. Raises a ValueError if the segment becomes too long."""
        if self._parts is None:
            return
        self._parts.append(text)
        self._characters += len(text)
        if self._characters > MAX_TEXT_CHARACTERS:
            raise ValueError(f"has a segment of more than {MAX_TEXT_CHARACTERS:,} characters")

    def close(self) -> str:
        """Ends the segment and returns its text with single blanks as white space."""
        text = SPACE.sub(" ", "".join(self._parts or ())).strip()
        self._parts = None
        return text


def read_xml(blocks: Iterable[bytes], handler: XmlHandler, shown_as: str) -> Iterator[Any]:
    """Yields what the handler finishes.

    Args:
      blocks: the content of the file, in parts.
      handler: receives elements and texts. Its ValueErrors are problems of the file.
      shown_as: what error messages call the file.

    Raises:
      UserError: with the number of the line if the XML is damaged or declares an entity.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    # A declaration can give each of many small elements a default attribute as large as the file.
    parser.specified_attributes = True
    parser.StartElementHandler = lambda name, attributes: handler.start(_local(name), attributes)
    parser.EndElementHandler = lambda name: handler.end(_local(name))
    parser.CharacterDataHandler = handler.text
    parser.EntityDeclHandler = _reject_entity
    # An entity that a DTD declares, which is not read: names such as &nbsp; are HTML's.
    parser.SkippedEntityHandler = lambda name, is_parameter: (
        None if is_parameter else handler.text(html5.get(f"{name};", f"&{name};"))
    )
    try:
        for block in blocks:
            parser.Parse(block, False)
            yield from handler.finished
            handler.finished.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, "unknown error")
        raise UserError(
            f"Line {error.lineno:,} of {shown_as} is no well-formed XML ({reason}). If the file was cut "
            "short, fetch it again. Otherwise correct the line."
        ) from None
    except UserError:  # of the file that the blocks come from
        raise
    except (ValueError, LookupError) as error:  # LookupError: Python has no such encoding
        line = parser.CurrentLineNumber
        raise UserError(f"Line {line:,} of {shown_as} cannot be read: it {error}.") from None
    yield from handler.finished
    handler.finished.clear()


def read_blocks(file: Any) -> Iterator[bytes]:
    """Yields the content of a binary file in blocks."""
    while block := file.read(BLOCK_BYTES):
        yield block


def fits_language(language: str, wanted: str) -> bool:
    """Returns whether a language code is the wanted one, or the same language with or without a region.

    For example, en-US and EN_us fit en, and en fits en-US. en-GB does not fit en-US.
    """
    first, second = (split_language(code) for code in (language, wanted))
    shared = min(len(first), len(second))
    return shared > 0 and first[:shared] == second[:shared]


def split_language(code: str) -> list[str]:
    """Returns the parts of a language code in small letters: ["en", "us"] for en-US and en_US."""
    return [part for part in re.split("[-_]", code.strip().lower()) if part]


def _local(name: str) -> str:
    """Returns the name of an element without the prefix of its namespace."""
    return name.rpartition(":")[2]


def _reject_entity(name: str, *_: Any) -> None:
    raise ValueError(
        f"declares the entity {shorten(name)}. Replace the entity by its text and remove the declaration, "
        "because entities can expand without limit"
    )
