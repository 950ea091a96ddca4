"""Where the pictures of a split are in a folder of YOLO, and the names of its classes.

The fields of the YAML file have the meaning that Ultralytics gives them.
"""

import logging
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfm.data.data_errors import MissingFile
from tfm.data.picture_files import list_pictures
from tfm.errors import UserError, first_line
from tfm.io.files import read_text

MAX_YAML_BYTES = 1 << 20
MAX_LIST_BYTES = 1 << 30  # of a file that lists pictures
MAX_DIGITS = 5  # of the number of classes, and of the numbers of key points
CLASS_FILES = ("classes.txt", "labels/classes.txt")
SAME_SPLITS = ("validation", "val", "valid")
BOX_COLUMNS = 5  # of a line of a label file: the class and the box
log = logging.getLogger(__name__)


class Description(NamedTuple):
    """The content of the YAML file of a folder.

    Attributes:
      path: the YAML file, or the file of class names.
      names: the names of the classes.
      places: {split: folders or lists of pictures}.
      root: the folder to which places are relative, as the YAML file gives it, or "".
      pose_columns: columns of a line with a box and key points, or 0.
    """

    path: str
    names: list[str]
    places: Mapping[str, Sequence[str]]
    root: str = ""
    pose_columns: int = 0


def read_description(folder: str) -> Description:
    """Returns what the YAML file or the file of class names in a folder says.

    Raises:
      UserError: if there is no such folder or file, the YAML file is damaged, or there are several YAML files
        and not exactly one of them is called data or dataset.
    """
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"Expected a folder with YOLO's files at {folder}. Check data.directory.") from None
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    preferred = [name for name in files if os.path.splitext(name)[0] in ("data", "dataset")]
    if len(preferred or files) > 1:
        raise UserError(
            f"{folder} has several YAML files: {', '.join(preferred or files)}. Keep the file with the names "
            "of the classes as data.yaml."
        )
    for name in preferred or files:
        return _read_yaml(os.path.join(folder, name))
    for path in (os.path.join(folder, *name.split("/")) for name in CLASS_FILES):
        if os.path.exists(path):
            lines = [line.strip() for line in read_text(path, MAX_YAML_BYTES).splitlines()]
            return Description(path, [line for line in lines if line], {})
    raise UserError(
        f"{folder} has neither data.yaml nor {' nor '.join(CLASS_FILES)}. Write the names of the classes "
        "into one of these files."
    )


def _read_yaml(path: str) -> Description:
    """Returns the classes and splits of a YAML file.

    All values stay texts. Otherwise a class called `no` would become a boolean. Aliases can make a small file
    stand for a huge value, so messages shorten values before they convert them to text.
    """
    import yaml

    try:
        content = yaml.load(read_text(path, MAX_YAML_BYTES), yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} is no YAML file ({first_line(error)}). Correct it.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected the fields names, train and val, got {reprlib.repr(content)}.")
    places = {
        str(key): [value] if isinstance(value, str) else value
        for key, value in content.items()
        if (value and isinstance(value, str)) or _is_list_of_texts(value)
    }
    shape = content.get("kpt_shape", [])
    is_pose = _is_list_of_texts(shape) and len(shape) == 2 and all(map(_is_small, shape))
    columns = BOX_COLUMNS + int(shape[0]) * int(shape[1]) if is_pose else 0
    root = content.get("path")
    return Description(
        path, _read_names(path, content), places, root if isinstance(root, str) else "", columns
    )


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_small(text: str) -> bool:
    """Returns whether a text is a number of at most `MAX_DIGITS` digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def _read_names(path: str, content: Mapping[str, Any]) -> list[str]:
    """Returns the names of the classes of a YAML file: a list, {number: name}, or only their count nc."""
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        numbered = {key: name for key, name in names.items() if isinstance(name, str)}
        expected = [str(number) for number in range(len(names))]
        if sorted(map(str, numbered)) != sorted(expected):
            raise UserError(
                f"{path}: expected the numbers of names to be 0 to {len(names) - 1}, got "
                f"{', '.join(map(str, names))}. Number the classes from 0 without gaps."
            )
        names = [numbered[number] for number in expected]
    if names is None and isinstance(count, str) and _is_small(count):
        names = [f"class_{number}" for number in range(int(count))]
    if not _is_list_of_texts(names) or not names:
        raise UserError(
            f"{path}: expected a list of class names in the field names, got {reprlib.repr(names)}."
        )
    if count not in (None, "", str(len(names))):
        raise UserError(
            f"{path}: expected nc to be {len(names)}, the number of names, got {reprlib.repr(count)}. "
            "Correct one of both."
        )
    return list(names)


def find_pictures(folder: str, split: str, description: Description) -> list[str]:
    """Returns the sorted paths of the pictures of a split.

    If a place in the YAML file does not exist, a warning says that the pictures come from SPLIT/images or
    images/SPLIT instead.

    Args:
      folder: the folder.
      split: a field of the YAML file, or the name of a folder. The names in `SAME_SPLITS` are equal.
      description: the content of the YAML file.

    Raises:
      UserError: if there are no pictures, or a list names pictures that do not exist. The error is a
        `MissingFile` if there is no such split.
    """
    names = list(dict.fromkeys([split, *SAME_SPLITS])) if split in SAME_SPLITS else [split]
    listed = next((description.places[name] for name in names if name in description.places), [])
    roots = list(dict.fromkeys((os.path.join(folder, description.root), folder)))
    places = [path for place in listed if (path := _find_place(place, roots)) is not None]
    if not listed or len(places) < len(listed):
        places = [_find_usual_folder(folder, names, listed)]
        if listed:
            reason = f"{description.path} names {', '.join(listed)}, which does not exist"
            log.warning("%s. The split '%s' is read from %s.", reason, split, places[0])
    paths = sorted({path for place in places for path in _list_place(place)})
    if not paths:
        raise UserError(f"Expected pictures of the split '{split}' in {', '.join(places)}, got none.")
    return paths


def _find_usual_folder(folder: str, names: Sequence[str], listed: Sequence[str]) -> str:
    """Returns the folder SPLIT/images or images/SPLIT for the first of several names that has one.

    Raises:
      MissingFile: if there is no such folder. The message contains the places `listed` in the YAML file.
    """
    usual = [part for name in names for part in (os.path.join(name, "images"), os.path.join("images", name))]
    for part in usual:
        if os.path.isdir(os.path.join(folder, part)):
            return os.path.join(folder, part)
    also = f" The YAML file names {', '.join(listed)}, which does not exist, either." if listed else ""
    raise MissingFile(
        f"{folder} has no pictures of the split '{names[0]}': expected a folder {' or '.join(usual)}.{also} "
        "Check data.directory and the names of the splits."
    )


def _find_place(place: str, roots: Sequence[str]) -> str | None:
    """Returns the path of a folder or list of pictures that a YAML file names, or None if there is none.

    The paths in exports of Roboflow begin with ../, although the folders are next to the YAML file. Therefore
    Ultralytics looks there, too.
    """
    places = [place, place.removeprefix("../")]
    paths = [os.path.normpath(os.path.join(root, each)) for root in roots for each in places]
    return next((path for path in paths if os.path.exists(path)), None)


def _list_place(place: str) -> list[str]:
    """Returns the paths of the pictures in a folder and its subfolders, or in a file that lists them."""
    if os.path.isdir(place):
        return list_pictures(place)
    lines = [line.strip() for line in read_text(place, MAX_LIST_BYTES).splitlines()]
    paths = [os.path.normpath(os.path.join(os.path.dirname(place), line)) for line in lines if line]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise UserError(
            f"{place} lists {len(missing):,} pictures that do not exist, for example {missing[0]}. Correct "
            "the list."
        )
    return paths
