"""Opens the images of a config, and checks them before long work."""

import dataclasses
from collections.abc import Callable, Sequence

from tfm.data.config import SPLITS, ImagesConfig
from tfm.data.data_errors import raise_all
from tfm.data.images.arrays import ArrayImages, open_arrays, open_digits
from tfm.data.images.files import FileImages, open_folder, open_tables
from tfm.data.images.huggingface import DatasetImages
from tfm.data.images.records import RecordImages, check_builder
from tfm.data.sources import tfds
from tfm.data.sources.splits import find_name, find_split_problems
from tfm.io.files import spell_path

Images = ArrayImages | RecordImages | FileImages | DatasetImages


def open_images(config: ImagesConfig, split: str) -> Images:
    """Opens the images of a split. Downloads a TFDS data set that does not exist yet.

    Args:
      config: where the images are.
      split: "train", "validation" or "test". The config maps these to the names in the data. Any other text
        is itself the name in the data.

    Raises:
      UserError: if the data are missing or unusable, or the config has no name for the split.
    """
    name = find_name(config, split)
    config = dataclasses.replace(config, directory=spell_path(config.directory), file=spell_path(config.file))
    if config.kind == "digits":
        return open_digits(name)
    if config.kind == "arrays":
        return open_arrays(config.file, name, config.mean, config.deviation)
    if config.kind == "folder":
        return open_folder(config, name)
    if config.kind == "table":
        return open_tables(config, name)
    if config.kind == "huggingface":
        return DatasetImages(config, name)
    builder = tfds.find_builder(config.name, config.directory)
    check_builder(builder, name)  # before the download, as far as TFDS knows
    prepared = tfds.prepare(builder, config.name, config.directory)
    if prepared is not builder:
        check_builder(prepared, name)
    return RecordImages(prepared, name, config.resize, config.resizing)


def open_splits(
    config: ImagesConfig,
    splits: Sequence[str] = SPLITS,
    open_split: Callable[[ImagesConfig, str], Images] = open_images,
) -> dict[str, Images]:
    """Opens the images of splits, so that problems show before the long work on the data begins.

    A test split of the default name may be missing. A test split that exists must be usable.

    Args:
      config: the data section.
      splits: "train", "validation", "test" or other names.
      open_split: (config, split) opens a split, and raises a UserError if it cannot be used.

    Returns:
      {split: its images}. Leaves out a split that is missing, or that has the name of an earlier split.

    Raises:
      UserError: if there are problems. The message lists the problems of all splits.
    """
    sources = {}

    def find_problems(config: ImagesConfig, split: str) -> list[str]:
        sources[split] = open_split(config, split)
        return []  # opening raises an error for a problem

    raise_all(find_split_problems(config, splits, find_problems))
    return sources
