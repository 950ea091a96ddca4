"""Test sets in the forms of WMT: one XML file (since 2021), or a file of SGML or XML for each language.

In the XML file, a document (`doc`) contains its source (`src`) and a reference (`ref`) by each translator.
The older form has a `srcset` in one file and a `refset` in another file. It is no SGML that a parser could
read, because `&` and `<` may stand in the text, so regular expressions read it, as in sacreBLEU.
"""

import dataclasses
import html
import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from reprlib import repr as shorten
from typing import NamedTuple

from tfm.data.source import Row, Source, hash_text
from tfm.data.sources.text_files import TextFile, exists, find_file
from tfm.data.sources.xml_reader import SPACE, SegmentText, fits_language, read_blocks, read_xml
from tfm.errors import UserError

SGML_ENDINGS = (".sgm", ".sgml", ".xml")
ELEMENT = re.compile(r"<(srcset|refset|tstset|doc|seg)\b([^>]*)>", re.IGNORECASE)
SEGMENT_END = re.compile(r"</seg\s*>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"""([\w:]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
log = logging.getLogger(__name__)


@dataclasses.dataclass
class Document:
    """A document of a test set.

    Attributes:
      name: its id.
      is_suite: whether it belongs to a test suite, which is no part of the test set.
      source_language, target_languages: languages of the source and of the references.
      source: {number of the segment: text}.
      references: {translator: {number of the segment: text}}, in the order of the file.
    """

    name: str
    is_suite: bool = False
    source_language: str = ""
    target_languages: list[str] = dataclasses.field(default_factory=list)
    source: dict[str, str] = dataclasses.field(default_factory=dict)
    references: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)


class SgmlSegment(NamedTuple):
    """A segment of SGML: its document, the system or translator, its number and its text."""

    document: str
    system: str
    number: str
    text: str


def open_xml(path: str, languages: Sequence[str], reference: str = "") -> Source:
    """Returns the pairs of a test set in one XML file.

    The pairs are the same as sacreBLEU's: documents of test suites and segments without any reference are
    left out. A segment that lacks this reference has an empty target.

    Args:
      path: the path of the file.
      languages: the source and the target language.
      reference: the translator of the targets. By default, the first translator of the file.

    Reading the source raises a UserError if the file is damaged, or has other languages or no such reference.
    """
    file = TextFile(path, "a test set in WMT's XML")

    def read() -> Iterator[Row]:
        with file.open() as content:
            documents = list(read_documents(read_blocks(content), path))
        yield from _pair_documents(documents, path, languages, reference)

    return Source(read, lambda: _fingerprint("xml", [*languages, reference], [file]))


def open_sgml(source: str, target: str, reference: str = "") -> Source:
    """Returns the pairs of a test set in two files.

    Args:
      source, target: the paths of the file with the sources and of the file with the references.
      reference: the `sysid` of the references, if the file has several. By default, the first.

    Reading the source raises a UserError if a file is damaged, or a segment has no partner or occurs twice.
    """
    files = [TextFile(path, "a test set in SGML") for path in (source, target)]

    def read() -> Iterator[Row]:
        sides = [list(read_segments(file.decode(), file.path)) for file in files]
        yield from _pair_segments(*sides, paths=(source, target), reference=reference)

    return Source(read, lambda: _fingerprint("sgml", [reference], files))


def find_sgml(stem: str, languages: Sequence[str]) -> list[str]:
    """Returns the paths of the two files of a test set in SGML, or [] if there is none of both.

    Args:
      stem: the path without "-src.de.sgm". For example, newstest2014-deen stands for
        newstest2014-deen-src.de.sgm and newstest2014-deen-ref.en.sgm, or for newstest2014-deen.de.sgm and
        newstest2014-deen.en.sgm.
      languages: the source and the target language.

    Raises:
      UserError: if one of both is missing.
    """
    candidates = [
        [f"{stem}{infix}.{language}{ending}" for infix in (role, "") for ending in SGML_ENDINGS]
        for role, language in zip(("-src", "-ref"), languages, strict=True)
    ]
    paths = [next(filter(exists, names), "") for names in candidates]
    if not any(paths):
        return []
    return [find_file(path or names[0]) for path, names in zip(paths, candidates, strict=True)]


def strip_sgml_name(path: str, languages: Sequence[str]) -> str:
    """Returns the stem of the name of one of both files: newstest2014 for newstest2014-ref.en.sgm."""
    codes = "|".join(map(re.escape, languages))
    return re.sub(rf"(-src|-ref)?\.({codes})\.(sgml?|xml)$", "", path)


def read_documents(blocks: Iterable[bytes], shown_as: str) -> Iterator[Document]:
    """Yields the documents of a test set in XML.

    Args:
      blocks: the content of the file.
      shown_as: what error messages call the file.

    Raises:
      UserError: with the number of the line if the file is damaged or is no such test set.
    """
    yield from read_xml(blocks, _DocumentHandler(shown_as), shown_as)


def read_segments(text: str, shown_as: str) -> Iterator[SgmlSegment]:
    """Yields the segments of a test set in SGML. Segments without an id are counted from 1.

    Args:
      text: the content of the file.
      shown_as: what error messages call the file.

    Raises:
      UserError: with the number of the line if a segment does not end.
    """
    document = set_system = system = ""
    position = 0  # of the segment in its document
    for element in ELEMENT.finditer(text):
        name, attributes = element[1].lower(), _read_attributes(element[2])
        if name == "doc":
            document, position = attributes.get("docid", ""), 0
            system = attributes.get("sysid", attributes.get("refid", set_system))
        elif name != "seg":
            set_system = system = attributes.get("refid", "")
        if name != "seg":
            continue
        position += 1
        end = SEGMENT_END.search(text, element.end())
        following = ELEMENT.search(text, element.end())
        if end is None or (following and following.start() < end.start()):
            line = text.count("\n", 0, element.start()) + 1
            raise UserError(
                f"Line {line:,} of {shown_as} begins a segment that does not end: expected </seg>. If the "
                "file was cut short, fetch it again."
            )
        number, content = attributes.get("id") or str(position), text[element.end() : end.start()]
        yield SgmlSegment(document, system, number, _read_entities(content))


def _pair_documents(
    documents: Sequence[Document], path: str, languages: Sequence[str], reference: str
) -> list[Row]:
    """Returns the (source, reference) of each segment; see `open_xml`."""
    documents = [document for document in documents if not document.is_suite]
    translators = list(dict.fromkeys(itertools.chain.from_iterable(doc.references for doc in documents)))
    if not translators:
        raise UserError(f"Expected references (<ref>) in {path}, but there are none: it cannot be scored.")
    _check_languages(documents, path, languages)
    translator = reference or translators[0]
    if translator not in translators:
        raise UserError(
            f"{path} has no reference of the translator {translator!r}, but of "
            f"{', '.join(map(shorten, translators))}."
        )
    pairs: list[Row] = []
    for document in documents:
        for number in sorted(document.source, key=order_of_number):
            texts = {name: segments.get(number, "") for name, segments in document.references.items()}
            if any(texts.values()):
                pairs.append((document.source[number], texts.get(translator, "")))
    if not pairs:
        raise UserError(f"No segment of {path} has a source and a reference.")
    return pairs


def _check_languages(documents: Sequence[Document], path: str, languages: Sequence[str]) -> None:
    """Raises a UserError if documents have other languages than the config."""
    source, target = languages
    for document in documents:
        sides = [
            ("source", [document.source_language], source),
            ("target", document.target_languages, target),
        ]
        for side, codes, wanted in sides:
            for language in codes:
                if language and not fits_language(language, wanted):
                    raise UserError(
                        f"The {side} language of the document {shorten(document.name)} of {path} is "
                        f"{shorten(language)}, but data.{side}_language is '{wanted}'. Set "
                        "data.source_language and data.target_language to the languages of the file."
                    )


def _pair_segments(
    sources: Sequence[SgmlSegment],
    targets: Sequence[SgmlSegment],
    *,
    paths: Sequence[str],
    reference: str,
) -> list[Row]:
    """Returns the (source, reference) of each segment, by document and number; see `open_sgml`."""
    systems = list(dict.fromkeys(segment.system for segment in targets))
    if reference and reference not in systems:
        raise UserError(
            f"{paths[1]} has no reference with the sysid {reference!r}, but "
            f"{', '.join(map(shorten, systems))}."
        )
    documents = {segment.document for segment in sources}
    translations: dict[tuple[str, str], str] = {}
    for segment in targets:
        if segment.document in documents and reference in ("", segment.system):
            translations.setdefault((segment.document, segment.number), segment.text)
    keys = [(segment.document, segment.number) for segment in sources]
    if not keys:
        raise UserError(f"Expected segments (<seg>) in {paths[0]}, but there are none.")
    if len(set(keys)) < len(keys):
        document, number = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise UserError(f"{paths[0]} has the segment {number} of the document {shorten(document)} twice.")
    if set(keys) != translations.keys():
        missing = [key for key in keys if key not in translations] or [
            key for key in translations if key not in set(keys)
        ]
        document, number = missing[0]
        raise UserError(
            f"{paths[0]} has {len(keys):,} segments and {paths[1]} has {len(translations):,} for them: each "
            f"segment must have one reference. For example, the segment {number} of the document "
            f"{shorten(document)} is only in one of both files."
        )
    return [(segment.text, translations[key]) for key, segment in zip(keys, sources, strict=True)]


def order_of_number(number: str) -> tuple[bool, int, str]:
    """Returns the key by which segments are in order: numbers by their value, then other ids."""
    return not number.isdecimal(), int(number) if number.isdecimal() else 0, number


def _read_attributes(text: str) -> dict[str, str]:
    """Returns the attributes of a tag."""
    return {match[1].lower(): match[2] or match[3] or match[4] or "" for match in ATTRIBUTE.finditer(text)}


def _read_entities(text: str) -> str:
    """Returns the text with single blanks, and with the characters of XML's entities. Another & stays."""
    return SPACE.sub(" ", ENTITY.sub(lambda match: html.unescape(match[0]), text)).strip()


def _fingerprint(form: str, options: Sequence[str], files: Sequence[TextFile]) -> str:
    """Returns an identity of the content of files."""
    return f"{form}-{hash_text(json.dumps([*options, *(file.content.sha256 for file in files)]))}"


class _DocumentHandler:
    """Collects the documents of a test set in XML. Implements `XmlHandler`."""

    def __init__(self, shown_as: str) -> None:
        self.finished: list[Document] = []
        self._shown_as = os.path.basename(shown_as)
        self._document = Document("")
        self._side: dict[str, str] | None = None  # of the open `src` or `ref`
        self._number = ""
        self._segment = SegmentText()
        self._has_root = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """See `XmlHandler`."""
        if not self._has_root and name not in ("dataset", "collection"):
            raise ValueError(
                f"begins with <{name}>, but a test set of WMT begins with <dataset>. If each language has a "
                "file, name both without their languages, such as newstest2014-deen"
            )
        self._has_root = True
        if name == "doc":
            self._document = Document(attributes.get("id", ""), "testsuite" in attributes)
        elif name == "src":
            self._document.source_language = attributes.get("lang", "")
            self._side = self._document.source
        elif name == "ref":
            self._document.target_languages.append(attributes.get("lang", ""))
            self._side = self._document.references.setdefault(attributes.get("translator", ""), {})
        elif name == "hyp":
            self._side = None
        elif name == "seg" and self._side is not None:
            self._number = attributes.get("id", "")
            if self._number in self._side:
                raise ValueError(
                    f"has the segment {self._number} of the document {shorten(self._document.name)} twice"
                )
            self._segment.open()

    def end(self, name: str) -> None:
        """See `XmlHandler`."""
        if name == "doc":
            self.finished.append(self._document)
        elif name in ("src", "ref", "hyp"):
            self._side = None
        elif name == "seg" and self._side is not None:
            self._side[self._number] = self._segment.close()

    def text(self, text: str) -> None:
        """See `XmlHandler`."""
        self._segment.add(text)
