"""Sentence pairs of translation memories: TMX files, of any size.

A translation unit (`tu`) has a variant (`tuv`) for each language, with the text in its segment (`seg`).
Inline elements that contain the codes of another format, such as `bpt` and `ph`, are removed with their
content.
"""

import collections
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from reprlib import repr as shorten

from tfm.data.data_errors import collect
from tfm.data.source import Row, Source, hash_text
from tfm.data.sources.text_files import TextFile
from tfm.data.sources.xml_reader import SegmentText, fits_language, read_blocks, read_xml, split_language
from tfm.errors import UserError

ENDING = ".tmx"
CODES = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))  # `hi` contains text of the segment
MAX_SHOWN_LANGUAGES = 8
Unit = list[tuple[str, str]]  # (language, text) of each variant
log = logging.getLogger(__name__)


def open_tmx(path: str, languages: Sequence[str]) -> Source:
    """Returns the pairs of a TMX file, which is read as a stream.

    Units without text in one of the languages are left out. `find_problems` of the source logs their number,
    and returns a problem if no unit is left. Reading raises a UserError with the number of the line if the
    file is damaged.

    Args:
      path: the path of the file.
      languages: the source and the target language. "en" fits en-US and EN, and "en-US" fits en.
    """
    file = TextFile(path, "a TMX file")

    def read() -> Iterator[Row]:
        with file.open() as content:
            for unit in read_units(read_blocks(content), path):
                if all(pair := choose_texts(unit, languages)):
                    yield pair

    def find_problems() -> list[str]:
        problems: list[str] = []
        with collect(problems):
            _check_pairs(file, languages)
        return problems

    return Source(
        read,
        lambda: f"tmx-{hash_text(json.dumps([*languages, file.content.sha256]))}",
        find_problems=find_problems,
    )


def read_units(blocks: Iterable[bytes], shown_as: str) -> Iterator[Unit]:
    """Yields the (language, text) of the variants of each translation unit.

    Args:
      blocks: the content of a TMX file.
      shown_as: what error messages call the file.

    Raises:
      UserError: see `read_xml`.
    """
    yield from read_xml(blocks, _UnitHandler(), shown_as)


def choose_texts(unit: Unit, languages: Sequence[str]) -> Row:
    """Returns the text of each language, "" if the unit has none. Equal codes precede related codes."""
    return tuple(_choose_text(unit, language) for language in languages)


def _choose_text(unit: Unit, wanted: str) -> str:
    parts = split_language(wanted)
    related = [(language, text) for language, text in unit if text and fits_language(language, wanted)]
    related.sort(key=lambda variant: split_language(variant[0]) != parts)
    return related[0][1] if related else ""


def _check_pairs(file: TextFile, languages: Sequence[str]) -> None:
    """Reads all units, and logs how many are left out.

    Raises:
      UserError: if the file is damaged, or no unit has text in both languages.
    """
    units = pairs = 0
    counts: collections.Counter[str] = collections.Counter()
    with file.open() as content:
        for unit in read_units(read_blocks(content), file.path):
            units += 1
            pairs += all(choose_texts(unit, languages))
            counts.update({language for language, _ in unit})
    shown = ", ".join(
        f"{shorten(language)} ({count:,})" for language, count in counts.most_common(MAX_SHOWN_LANGUAGES)
    )
    source, target = languages
    if not pairs:
        raise UserError(
            f"Expected translation units with '{source}' and '{target}' in {file.path}, but none of its "
            f"{units:,} units has both. Its languages are: {shown or 'none'}. Set data.source_language and "
            "data.target_language."
        )
    if pairs < units:
        log.warning(
            "Left out %s of %s translation units of %s that have no text in '%s' or '%s' (languages: %s)",
            f"{units - pairs:,}",
            f"{units:,}",
            file.path,
            source,
            target,
            shown,
        )


class _UnitHandler:
    """Collects the variants of translation units. Implements `XmlHandler`."""

    def __init__(self) -> None:
        self.finished: list[Unit] = []
        self._unit: Unit = []
        self._language = ""
        self._segment = SegmentText()
        self._codes = 0  # number of open elements with codes

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """See `XmlHandler`."""
        if name == "tu":
            self._unit = []
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._segment.open()
        elif name in CODES and self._segment.is_open:
            self._codes += 1

    def end(self, name: str) -> None:
        """See `XmlHandler`."""
        if name == "tu":
            self.finished.append(self._unit)
        elif name == "seg":
            self._unit.append((self._language, self._segment.close()))
            self._codes = 0
        elif name in CODES and self._segment.is_open:
            self._codes -= 1

    def text(self, text: str) -> None:
        """See `XmlHandler`."""
        if not self._codes:
            self._segment.add(text)
