"""Pictures in files: how they are found, and how they are read at one size."""

import hashlib
import logging
import os
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from tfm.data.data_errors import MissingFile
from tfm.data.pictures import fit_picture, read_picture, to_pixels
from tfm.data.sources.tables import find_tables
from tfm.errors import UserError
from tfm.io.files import spell_path

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
METADATA = "metadata"  # the table in a folder of pictures, as in the data sets of Hugging Face
CAPTION_NUMBER = re.compile(r"#\d+$")  # after the name of a picture, as in Flickr8k.token.txt
SLICE = re.compile(r"(.+)\[(?:(\d{1,2})%)?:(?:(\d{1,2})%)?\]")
Box = tuple[float, float, float, float]
log = logging.getLogger(__name__)


class PictureFiles:
    """Pictures that are decoded when they are read.

    Args:
      paths: their files.
      size: new height and width of the pictures, see `pictures.fit_picture`. 0 keeps their size.
      channels: 1 for grey, 3 for RGB.
      how: how they become squares: "crop", "pad" or "stretch".
    """

    def __init__(self, paths: Sequence[str], size: int, channels: int, how: str = "crop"):
        self.paths, self._size, self._channels, self._how = list(paths), size, channels, how

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Sequence[int] | np.ndarray, boxes: Sequence[Box] | None = None) -> np.ndarray:
        """Returns pictures, uint8 [n, height, width, C].

        Args:
          indices: int [n].
          boxes: the part of each picture that is read, see `pictures.fit_picture`. None reads whole pictures.

        Raises:
          UserError: if a picture is damaged, or pictures that keep their size differ in size.
        """
        if not len(indices):
            return np.zeros((0, self._size, self._size, self._channels), np.uint8)
        pixels = [
            self._read(self.paths[index], None if boxes is None else boxes[number])
            for number, index in enumerate(indices)
        ]
        return stack_pictures(pixels, os.path.dirname(self.paths[indices[0]]))

    def _read(self, path: str, box: Box | None) -> np.ndarray:
        return to_pixels(fit_picture(read_picture(path, path, self._channels), self._size, self._how, box))


def stack_pictures(pixels: Sequence[np.ndarray], name: str) -> np.ndarray:
    """Returns pictures as one array [n, height, width, C].

    Raises:
      UserError: if they differ in size. The message says that they are the pictures of `name`.
    """
    sizes = {picture.shape[:2] for picture in pixels}
    if len(sizes) > 1:
        (height, width), (other_height, other_width), *_ = sorted(sizes)
        raise UserError(
            f"The pictures of {name} differ in size, for example {height} x {width} and {other_height} x "
            f"{other_width} (height x width). Set data.resize to the height and width that the model reads."
        )
    return np.stack(pixels)


def list_pictures(folder: str) -> list[str]:
    """Returns the paths of the pictures in a folder and its subfolders, in the order of their names.

    Leaves out hidden files and folders, and files with another ending. A message counts the latter.
    Links to folders are not followed, so that a loop of links ends.

    Raises:
      MissingFile: if there is no such folder.
    """
    if not os.path.isdir(folder):
        raise MissingFile(
            f"Expected a folder of pictures at {folder}, but there is none. Check data.directory and the "
            "name of the split."
        )
    paths, others = [], 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = sorted(name for name in names if not name.startswith("."))
        pictures = [name for name in visible if name.lower().endswith(ENDINGS)]
        others += len(visible) - len(pictures)
        paths += [os.path.join(place, name) for name in pictures]
    if others:
        log.info("Left out %s files of %s that are no pictures", f"{others:,}", folder)
    return paths


def find_picture_tables(directory: str, name: str, pictures: str) -> list[tuple[str, str]]:
    """Returns (path, folder of its pictures) of each table of a split.

    Args:
      directory: folder of the data.
      name: name of the tables, or of a folder that has a table with the name metadata.
      pictures: folder of the pictures in `directory`. If empty, the folder of each table.

    Raises:
      UserError: if a table is missing.
    """
    if os.path.isdir(spell_path(os.path.join(directory, name))):
        name = os.path.join(name, METADATA)
    return [
        (table, spell_path(os.path.join(directory, pictures)) if pictures else os.path.dirname(table))
        for table in find_tables(directory, name)
    ]


def split_slice(name: str) -> tuple[str, int, int]:
    """Returns a name without its slice such as [:90%], and the two percentages of the slice.

    Without a slice of this form, returns the name, 0 and 100.

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


def choose_slice(names: Sequence[str], low: int, high: int) -> list[int]:
    """Returns the indices of the pictures in a slice, in their order.

    The names decide which slice a picture is in, so that each slice is a random sample of the pictures.

    Args:
      names: the names of all pictures, relative to the folder of the data.
      low, high: percentages.
    """
    if (low, high) == (0, 100):
        return list(range(len(names)))
    digests = [hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest() for name in names]
    order = sorted(range(len(names)), key=digests.__getitem__)
    return sorted(order[len(names) * low // 100 : len(names) * high // 100])


class PictureFolder:
    """The pictures of a folder. Their names may have another Unicode form than those in the annotations.

    Attributes:
      sizes: {path in the folder: bytes} of the files that `find` has returned.
    """

    def __init__(self, folder: str):
        self._root = folder
        self._folders: dict[str, dict[str, os.DirEntry]] = {}
        self.sizes: dict[str, int] = {}
        self._list("")

    def find(self, name: str) -> str | None:
        """Returns the path of a picture in the folder, as the disk spells it, or None if there is none.

        The name may lack its ending if only one picture has this name.
        """
        path = ""
        *folders, file = os.path.normpath(name).split(os.sep)
        for part in folders:
            entry = self._find_entry(path, part)
            if entry is None or not entry.is_dir():
                return None
            path = os.path.join(path, entry.name)
        entry = self._find_entry(path, file)
        if entry is None:
            return None
        path = os.path.join(path, entry.name)
        self.sizes[path] = entry.stat().st_size
        return path

    def _find_entry(self, folder: str, name: str) -> os.DirEntry | None:
        """Returns the entry of a folder with a name, or with a name that is canonically equivalent.

        The name of a picture may lack its ending, as in many tables of competitions.
        """
        entries = self._list(folder)
        composed = unicodedata.normalize("NFC", name)
        exact = entries.get(name) or entries.get(composed)
        if exact is not None:
            return exact
        pictures = [entry for ending in ENDINGS if (entry := entries.get(composed + ending))]
        return pictures[0] if len(pictures) == 1 else None

    def _list(self, folder: str) -> dict[str, os.DirEntry]:
        """Returns {name: entry} of a folder. The composed form of a name stands for its entry, too."""
        if folder not in self._folders:
            with os.scandir(os.path.join(self._root, folder)) as scanned:
                entries = list(scanned)
            composed = {unicodedata.normalize("NFC", entry.name): entry for entry in entries}
            self._folders[folder] = composed | {entry.name: entry for entry in entries}
        return self._folders[folder]


class PictureFinder:
    """A search for pictures by their paths. Each folder is listed once."""

    def __init__(self) -> None:
        self._folders: dict[str, PictureFolder | None] = {}

    def find(self, path: str) -> str | None:
        """Returns the path of a picture as the disk spells it, or None if there is none.

        The path may end in the number of a caption, such as #0, and it may lack the ending of the file if
        only one picture has this name.
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
