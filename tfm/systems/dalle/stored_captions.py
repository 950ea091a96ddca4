"""The captions of the user's own pictures: tables, text files next to the pictures, or COCO's JSON files."""

import dataclasses
import hashlib
import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from tfm.data.picture_files import (
    PictureFinder,
    choose_slice,
    find_picture_tables,
    list_pictures,
    split_slice,
)
from tfm.data.source import clean_line
from tfm.data.sources.coco_json import CocoFile
from tfm.data.sources.splits import find_name
from tfm.data.sources.tables import TableOptions, open_table
from tfm.errors import UserError
from tfm.io.files import read_text, spell_path
from tfm.systems.dalle.captions import CaptionsConfig

MAX_TEXT_FILE_BYTES = 1 << 20  # of the captions of one picture
MAX_SHOWN_PROBLEMS = 5
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
    data = dataclasses.replace(data, directory=spell_path(data.directory))
    name, low, high = split_slice(find_name(data, split))
    read = {"table": _read_tables, "txt": _read_text_files, "coco": _read_coco}[data.kind]
    paths, captions, left_out = read(data, name)
    names = [os.path.relpath(path, data.directory) for path in paths]
    chosen = choose_slice(names, low, high)
    if not chosen:
        raise UserError(f"Expected pictures in the split '{split}' of {data.directory}, got none.")
    cleaned = [[clean_line(text) for text in captions[index]] for index in chosen]
    kept = [[text for text in texts if text] for texts in cleaned]
    paths = [paths[index] for index in chosen]
    empty = sum(map(len, cleaned)) - sum(map(len, kept))
    return StoredCaptions(paths, kept, empty, left_out, _hash(paths, kept, data.directory))


def _hash(paths: Sequence[str], captions: Sequence[Sequence[str]], directory: str) -> str:
    """Returns the fingerprint of pictures with captions. The sizes of files stand for their content."""
    digest = hashlib.sha256()
    for path, texts in zip(paths, captions, strict=True):
        entry = os.path.relpath(path, directory), os.path.getsize(path), list(texts)
        digest.update(repr(entry).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read_tables(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures, the captions of each, and 0. Several rows may have the same picture."""
    options = TableOptions((data.picture_column, data.text_column), data.format, str)
    captions: dict[str, list[str]] = {}
    problems: list[str] = []
    for table, folder in find_picture_tables(data.directory, name, data.pictures):
        files = PictureFinder()
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


def _read_text_files(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures in a folder and its subfolders, the lines of their text files, and 0."""
    folder = spell_path(os.path.normpath(os.path.join(data.directory, name)))
    paths = list_pictures(folder)
    if not paths:
        raise UserError(f"Expected pictures in {folder}, got none. Check data.directory.")
    return paths, [_read_captions(os.path.splitext(path)[0] + ".txt") for path in paths], 0


def _read_captions(path: str) -> list[str]:
    """Returns the lines of a text file, or no lines if there is none."""
    try:
        return read_text(path, MAX_TEXT_FILE_BYTES).splitlines()
    except FileNotFoundError:
        return []


def _read_coco(data: CaptionsConfig, name: str) -> tuple[list[str], list[list[str]], int]:
    """Returns the pictures of a JSON file, the captions of each, and how many captions have no picture."""
    path = os.path.join(data.directory, "annotations", f"captions_{name}.json")
    file = CocoFile(path, os.path.join(data.directory, name))
    captions = [
        [entry.text("caption", may_be_empty=True) for entry in group] for group in file.group_annotations()
    ]
    return file.paths, captions, file.left_out
