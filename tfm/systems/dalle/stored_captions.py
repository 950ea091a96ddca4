"""The captions of the user's own pictures: tables, text files next to the pictures, or COCO's JSON files."""

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from tfm.data.data_errors import MissingFile
from tfm.data.source import clean_line
from tfm.data.sources.coco_json import CocoFile, PictureFolder
from tfm.data.sources.splits import find_name
from tfm.data.sources.tables import TableOptions, find_tables, open_table
from tfm.errors import UserError
from tfm.io.files import read_text
from tfm.systems.dalle.captions import CaptionsConfig

METADATA = "metadata"  # the table in a folder of pictures, as in the data sets of Hugging Face
MAX_TEXT_FILE_BYTES = 1 << 20  # of the captions of one picture
MAX_SHOWN_PROBLEMS = 5
SLICE = re.compile(r"(.+)\[(?:(\d{1,2})%)?:(?:(\d{1,2})%)?\]")
CAPTION_NUMBER = re.compile(r"#\d+$")  # after the name of a picture, as in Flickr8k.token.txt
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
log = logging.getLogger(__name__)


class StoredCaptions(NamedTuple):
    """The pictures and captions of a split.

    Attributes:
      paths: the path of each picture.
      captions: the captions of each picture, without empty ones. A picture may have none.
      empty: number of empty captions, which are left out.
      left_out: number of the captions whose pictures are not listed (COCO).
      fingerprint: hash of the names and sizes of the pictures and of the captions.
    """

    paths: list[str]
    captions: list[list[str]]
    empty: int
    left_out: int
    fingerprint: str


def find_captions(data: CaptionsConfig, split: str) -> StoredCaptions:
    """Returns the pictures and captions of a split.

    Args:
      data: the data section. Its kind is not "digits".
      split: "train", "validation" or "test". Any other text is itself the name in the data.

    Raises:
      UserError: if the files are missing or damaged, or a picture does not exist. The error is a
        `MissingFile` if there is no such split.
    """
    if not data.directory:
        raise UserError(f"data.kind '{data.kind}' needs data.directory, but it is empty. Set it to a path.")
    name, low, high = _split_slice(find_name(data, split))
    read = {"table": _read_tables, "txt": _read_text_files, "coco": _read_coco}[data.kind]
    paths, captions, left_out = read(data, name)
    chosen = _choose(paths, data.directory, low, high)
    if not chosen:
        raise UserError(f"Expected pictures in the split '{split}' of {data.directory}, got none.")
    cleaned = [[clean_line(text) for text in captions[index]] for index in chosen]
    kept = [[text for text in texts if text] for texts in cleaned]
    paths = [paths[index] for index in chosen]
    empty = sum(map(len, cleaned)) - sum(map(len, kept))
    return StoredCaptions(paths, kept, empty, left_out, _hash(paths, kept, data.directory))


def _split_slice(name: str) -> tuple[str, int, int]:
    """Returns a name without its slice such as [:90%], and the two percentages of the slice.

    Raises:
      UserError: if the slice is empty.
    """
    match = SLICE.fullmatch(name)
    if not match:
        return name, 0, 100
    low, high = int(match[2] or 0), int(match[3] or 100)
    if low >= high:
        raise UserError(f"Expected a slice such as [:90%] or [90%:], got {name!r}, which has no pictures.")
    return match[1], low, high


def _choose(paths: Sequence[str], directory: str, low: int, high: int) -> list[int]:
    """Returns the indices of the pictures in a slice, in their order.

    The names of the pictures decide which slice they are in, so that each slice is a random sample.
    """
    if (low, high) == (0, 100):
        return list(range(len(paths)))
    names = [os.path.relpath(path, directory) for path in paths]
    order = sorted(range(len(paths)), key=lambda index: hashlib.sha256(names[index].encode()).digest())
    return sorted(order[len(paths) * low // 100 : len(paths) * high // 100])


def _hash(paths: Sequence[str], captions: Sequence[Sequence[str]], directory: str) -> str:
    """Returns the fingerprint of pictures with captions. The sizes of files stand for their content."""
    digest = hashlib.sha256()
    for path, texts in zip(paths, captions, strict=True):
        entry = os.path.relpath(path, directory), os.path.getsize(path), list(texts)
        digest.update(repr(entry).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read_tables(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures, the captions of each, and 0. Several rows may have the same picture."""
    if os.path.isdir(os.path.join(data.directory, name)):
        name = os.path.join(name, METADATA)
    options = TableOptions((data.picture_column, data.text_column), data.format, str)
    captions: dict[str, list[str]] = {}
    problems: list[str] = []
    for table in find_tables(data.directory, name):
        folder = os.path.join(data.directory, data.pictures) if data.pictures else os.path.dirname(table)
        files = PictureFiles()
        for row, (picture, text) in enumerate(open_table(table, options), 1):
            path = files.find(os.path.join(folder, picture))
            if path is None:
                problems.append(f"{table}, row {row:,}: {picture!r}")
            else:
                captions.setdefault(path, []).append(text)
    if problems:
        shown = "; ".join(problems[:MAX_SHOWN_PROBLEMS])
        raise UserError(
            f"{len(problems):,} rows name pictures that do not exist: {shown}. Pictures are looked for in "
            "data.pictures, or next to the table if it is empty. Correct the names, or remove the rows."
        )
    return list(captions), list(captions.values()), 0


class PictureFiles:
    """The files of some folders, each of which is listed once."""

    def __init__(self) -> None:
        self._folders: dict[str, PictureFolder | None] = {}

    def find(self, path: str) -> str | None:
        """Returns the path of a picture as the disk spells it, or None if there is none.

        The path may end in the number of a caption, such as #0.
        """
        folder, name = os.path.split(os.path.normpath(path))
        if folder not in self._folders:
            self._folders[folder] = PictureFolder(folder) if os.path.isdir(folder) else None
        files = self._folders[folder]
        if files is None:
            return None
        for spelled in dict.fromkeys((name, CAPTION_NUMBER.sub("", name))):
            found = files.find(spelled)
            if found is not None and os.path.isfile(os.path.join(folder, found)):
                return os.path.join(folder, found)
        return None


def _read_text_files(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures in a folder and its subfolders, the lines of their text files, and 0."""
    folder = os.path.normpath(os.path.join(data.directory, name))
    if not os.path.isdir(folder):
        raise MissingFile(
            f"Expected a folder of pictures at {folder}, but there is none. Check data.directory."
        )
    files = {os.path.join(place, file) for place, _, names in os.walk(folder) for file in names}
    paths = sorted(path for path in files if path.lower().endswith(ENDINGS))
    if not paths:
        raise UserError(f"Expected pictures in {folder}, got none. Check data.directory.")
    texts = [os.path.splitext(path)[0] + ".txt" for path in paths]
    captions = [read_text(text, MAX_TEXT_FILE_BYTES).splitlines() if text in files else [] for text in texts]
    return paths, captions, 0


def _read_coco(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures of a JSON file, the captions of each, and how many captions have no picture."""
    path = os.path.join(data.directory, "annotations", f"captions_{name}.json")
    file = CocoFile(path, os.path.join(data.directory, name))
    captions = [
        [entry.text("caption", may_be_empty=True) for entry in group] for group in file.group_annotations()
    ]
    return file.paths, captions, file.left_out
