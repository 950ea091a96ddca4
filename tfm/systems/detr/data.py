"""Opens the pictures with boxes of a run, and checks that they fit its model."""

from typing import Any

from tfm.data.batches.generated import GeneratedData
from tfm.data.data_errors import collect, raise_all
from tfm.data.sources.splits import find_name, list_splits
from tfm.devices.rows import this_host
from tfm.errors import UserError
from tfm.io.files import spell_path
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.coco import NO_CATEGORY, CocoBoxes
from tfm.systems.detr.scenes import Scenes
from tfm.systems.detr.stored_pictures import ArrayBoxes, Source, StoredPictures
from tfm.systems.detr.yolo import YoloBoxes

NO_NAME = "class without a name"
Pictures = Scenes | StoredPictures


def open_pictures(data: BoxedPicturesConfig, split: str, model: Any) -> Pictures:
    """Opens a split, and checks that a model can read its pictures and has their classes.

    Args:
      data: the data section.
      split: "train", "validation" or "test". Any other text is itself the name in stored data.
      model: the section `model`, with channels and classes.

    Raises:
      UserError: if the data are missing or unusable, or the model has other channels or fewer classes.
    """
    pictures = _open(data, split)
    if model.channels != pictures.channels:
        raise UserError(
            f"Expected model.channels to be {pictures.channels} for the split '{split}', got "
            f"{model.channels}."
        )
    if model.classes < len(pictures.label_names):
        raise UserError(
            f"Expected model.classes to be at least {len(pictures.label_names)} for the split '{split}', got "
            f"{model.classes}."
        )
    pictures.label_names = [*pictures.label_names, *[NO_NAME] * (model.classes - len(pictures.label_names))]
    return pictures


def open_splits(config: Any) -> GeneratedData:
    """Opens training and validation pictures, and checks the test pictures if they exist.

    Args:
      config: the config of the run.

    Raises:
      UserError: if splits are missing or unusable, do not fit the model, or have other names for a class. The
        message lists the problems of all splits.
    """
    data = config.data
    splits: dict[str, Pictures] = {}
    problems: list[str] = []
    for split in list_splits(data, lambda data, split: open_pictures(data, split, config.model)):
        with collect(problems):
            splits[split] = open_pictures(data, split, config.model)
    raise_all(problems)
    for split, pictures in splits.items():
        _check_names(splits["train"].label_names, pictures.label_names, split)
    return GeneratedData(
        splits["train"],
        splits["validation"],
        batch_size=data.batch_size,
        seed=config.training.seed,
        hosts=this_host(),
        description=f"{data.batch_size:,} pictures of up to {data.max_objects} objects in each batch",
    )


def _check_names(trained: list[str], names: list[str], split: str) -> None:
    """Raises a UserError if a split has another name for a class than the training split."""
    for label, pair in enumerate(zip(trained, names, strict=True)):
        if pair[0] != pair[1] and not {NO_NAME, NO_CATEGORY} & set(pair):
            raise UserError(
                f"Expected the training split and the split '{split}' to have the same classes, but class "
                f"{label} is {pair[0]!r} and {pair[1]!r}. Give each class the same number in all splits."
            )


def _open(data: BoxedPicturesConfig, split: str) -> Pictures:
    """Opens a split."""
    if data.kind == "digits":
        return Scenes(data, split)
    return StoredPictures(data, open_source(data, split), is_training=split == "train")


def identify_split(data: BoxedPicturesConfig, split: str) -> str:
    """Returns the fingerprint of the content of a split.

    Raises:
      UserError: if the data are missing or damaged.
    """
    if data.kind == "digits":
        return Scenes(data, split).fingerprint
    return open_source(data, split).fingerprint


def open_source(data: BoxedPicturesConfig, split: str) -> Source:
    """Opens the stored pictures of a split, without checking that their boxes fit the config.

    Raises:
      UserError: if the data are missing or damaged.
    """
    path = "file" if data.kind == "arrays" else "directory"
    if not getattr(data, path):
        raise UserError(f"data.kind '{data.kind}' needs data.{path}, but it is empty. Set it to a path.")
    name = find_name(data, split)
    if data.kind == "arrays":
        return ArrayBoxes(spell_path(data.file), name)
    directory = spell_path(data.directory)
    return CocoBoxes(directory, name) if data.kind == "coco" else YoloBoxes(directory, name)
