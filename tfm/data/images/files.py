"""Labelled pictures in files: a folder for each class, or a table of files and labels."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from tfm.data.config import ImagesConfig
from tfm.data.data_errors import DataError, MissingFile
from tfm.data.images.augmentation import Crops
from tfm.data.images.labelled import LabelledPictures, sort_classes
from tfm.data.picture_files import (
    PictureFiles,
    PictureFinder,
    choose_slice,
    find_picture_tables,
    list_pictures,
    split_slice,
)
from tfm.data.picture_index import PictureIndex, index_files
from tfm.data.sources.tables import TableOptions, open_table
from tfm.errors import UserError
from tfm.io.files import spell_path

FILE_COLUMN = "file_name"  # of a table, as in the data sets of Hugging Face
MAX_PROBLEMS = 5  # that a message shows


class FileImages(LabelledPictures):
    """Pictures in files.

    Args:
      pictures: the files.
      classes: the name of the class of each picture. The labels are in the order of these names.
      index: the index of the pictures.
      root: folder of all files. The fingerprint contains their names relative to it, so that the data may
        move.
    """

    def __init__(self, pictures: PictureFiles, classes: Sequence[str], index: PictureIndex, root: str):
        self._pictures = pictures
        digest = hashlib.sha256(index.hashes.astype("<u8").tobytes())
        for path, name in zip(pictures.paths, classes, strict=True):
            digest.update(f"{os.path.relpath(path, root)}\0{name}\0".encode("utf-8", "surrogatepass"))
        super().__init__(classes, sort_classes(classes), index, digest.hexdigest())

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        boxes = crops and crops.boxes(self.index.sizes[indices])
        return self._pictures.take(indices, boxes), self.labels[indices]


def open_folder(config: ImagesConfig, name: str) -> FileImages:
    """Opens a split whose pictures are in a folder for each class. Keeps an index in the cache folder.

    Args:
      config: the data section.
      name: name of the folder of the split, also with a slice such as train[:90%].

    Raises:
      UserError: if there is no such folder, or it has no pictures in folders, or a picture is damaged.
    """
    name, low, high = split_slice(name)
    folder = spell_path(os.path.normpath(os.path.join(config.directory, name)))
    paths = list_pictures(folder)
    loose = [path for path in paths if os.path.dirname(path) == folder]
    if loose or not paths:
        found = f"pictures without a class, such as {loose[0]}" if loose else "no pictures"
        raise UserError(
            f"Expected a folder for each class in {folder}, such as {os.path.join(folder, 'cat', '1.png')}, "
            f"got {found}. Move them into folders, or write a table of files and labels and set "
            "data.kind=table."
        )
    classes = [os.path.relpath(path, folder).split(os.sep)[0] for path in paths]
    return _open_files(config, paths, classes, (low, high))


def open_tables(config: ImagesConfig, name: str) -> FileImages:
    """Opens a split whose pictures and labels are in the rows of tables. Keeps an index in the cache folder.

    Args:
      config: the data section.
      name: name of the table, or of a folder that has a table with the name metadata, also with a slice such
        as labels.csv[:90%].

    Raises:
      UserError: if there is no such table, a row has no label, a picture is missing, or it is damaged.
    """
    name, low, high = split_slice(name)
    columns = (config.picture_column or FILE_COLUMN, config.label_column)
    options = TableOptions(columns, config.format, str.strip, columns[1:])
    paths, classes, problems = [], [], []
    finder = PictureFinder()
    for table, folder in find_picture_tables(config.directory, name, config.pictures):
        for row, (picture, label) in enumerate(open_table(table, options), 1):
            path = finder.find(os.path.join(folder, picture))
            if path is None:
                problems.append(f"{table}, row {row:,}: {picture!r} is not in {folder}.")
            elif not label:
                problems.append(f"{table}, row {row:,}: the label of {picture!r} is empty.")
            else:
                paths.append(path)
                classes.append(label)
    if problems:
        more = [f"There are {len(problems) - MAX_PROBLEMS:,} more such rows."] * (
            len(problems) > MAX_PROBLEMS
        )
        raise DataError(*problems[:MAX_PROBLEMS], *more)
    return _open_files(config, paths, classes, (low, high))


def _open_files(
    config: ImagesConfig, paths: Sequence[str], classes: Sequence[str], part: tuple[int, int]
) -> FileImages:
    """Returns the pictures of a part of the files, in per cent from and to."""
    names = [os.path.relpath(path, config.directory or os.curdir) for path in paths]
    chosen = choose_slice(names, *part)
    if not chosen:
        raise MissingFile(f"Expected pictures in {config.directory}, got none. Check the name of the split.")
    kept = [paths[index] for index in chosen]
    index = index_files(kept, config.directory or os.curdir, config.cache)
    pictures = PictureFiles(kept, config.resize, config.channels, config.resizing)
    kept_classes = [classes[index] for index in chosen]
    return FileImages(pictures, kept_classes, index, config.directory or os.curdir)
