"""Tests of what `tfm data` shows of pictures with boxes."""

import dataclasses

import pytest
from PIL import Image

from tests.support.boxed_pictures import write_arrays, write_coco, write_yolo
from tests.tasks.cases import DETR
from tfm.commands.data import summarize_splits
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.data import open_source
from tfm.systems.detr.stored_pictures import StoredPictures
from tfm.systems.detr.task import inspect_split


def inspect(data, **model):
    """Returns the summary of the training split."""
    fields = {"channels": 3, "classes": 8, "queries": 4} | model
    config = detection.Config(model=dataclasses.replace(DETR, **fields), data=data)
    return inspect_split(config, "train")


def test_objects_are_counted_by_class_and_size(tmp_path):
    annotations = [
        {"image_id": 10, "bbox": [4, 10, 16, 5], "category_id": 7, "area": 1024},
        {"image_id": 10, "bbox": [4, 10, 16, 5], "category_id": 7, "area": 9216},
        {"image_id": 10, "bbox": [0, 0, 40, 20], "category_id": 3, "iscrowd": 1},
        {"image_id": 12, "bbox": [8, 0, 8, 8], "category_id": 3},
        {"image_id": 12, "bbox": [8, 0, 0, 8], "category_id": 3},
        {"image_id": 99, "bbox": [8, 0, 8, 8], "category_id": 3},
    ]
    summary = inspect(write_coco(tmp_path, annotations=annotations))
    assert summary.title == "3 pictures with boxes"
    assert summary.values == {
        "pictures": 3,
        "boxes": 3,
        "without_boxes": 1,
        "most_boxes": 2,
        "crowds": 1,
        "classes": {"dog": 2, "cat": 1},
        "sizes": {"small": 1, "medium": 1, "large": 1},
        "left_out": {"annotations of pictures that are not listed": 1, "boxes without height or width": 1},
    }
    assert summary.hints == []
    assert ("left out", "1 annotations of pictures that are not listed") in summary.lines


def test_ids_without_a_category_and_classes_with_only_crowds_have_no_boxes(tmp_path):
    annotations = [
        {"image_id": 10, "bbox": [0, 0, 40, 20], "category_id": 3, "iscrowd": 1},
        {"image_id": 12, "bbox": [8, 0, 8, 8], "category_id": 7},
    ]
    summary = inspect(write_coco(tmp_path, annotations=annotations))
    assert dict(summary.lines)["classes"] == "1 of 2 have boxes"
    assert summary.hints == ["classes without a box: cat"]


def test_objects_of_two_ids_with_the_same_name_are_added_up(tmp_path):
    labels = (3, 3, 5, 5, 7, 7, 7)
    annotations = [{"image_id": 12, "bbox": [8, 0, 8, 8], "category_id": label} for label in labels]
    categories = [{"id": 3, "name": "cat"}, {"id": 5, "name": "cat"}, {"id": 7, "name": "dog"}]
    summary = inspect(write_coco(tmp_path, annotations=annotations, categories=categories))
    assert list(summary.values["classes"].items()) == [("cat", 4), ("dog", 3)]
    assert dict(summary.lines)["classes"] == "3 of 3 have boxes"


def test_hints_name_what_training_would_stumble_over(tmp_path):
    data = write_yolo(
        tmp_path, yaml="names: [cat, dog, cow]", **{"2": "0 0.2 0.2 0.1 0.1\n0 0.5 0.5 0.1 0.1"}
    )
    picture = tmp_path / "images" / "small" / "1.png"
    picture.write_bytes(picture.read_bytes()[:45])  # its header is complete
    summary = inspect(dataclasses.replace(data, max_objects=1), classes=2)
    assert summary.values["pictures"] == 3
    unreadable, unseen, objects, classes = summary.hints
    assert unreadable.startswith(f"1 pictures cannot be read. {picture} cannot be read")
    assert unseen == "classes without a box: cow"
    assert "data.max_objects and model.queries to at least 2" in objects
    assert "model.classes to at least 3" in classes


def test_boxes_that_training_leaves_out_do_not_count(tmp_path):
    """The last box only begins at the right end of its picture, so that nothing of it remains."""
    places = ([8, 0, 8, 8], [8, 0, 0, 8], [16, 0, 1, 8])
    annotations = [{"image_id": 12, "bbox": place, "category_id": 3} for place in places]
    data = dataclasses.replace(write_coco(tmp_path, annotations=annotations), max_objects=1)
    StoredPictures(data, open_source(data, "train"), is_training=True)  # is no error
    summary = inspect(data)
    assert (summary.values["boxes"], summary.values["most_boxes"]) == (1, 1)
    assert summary.values["left_out"]["boxes without height or width"] == 2
    assert summary.hints == ["classes without a box: dog"]


def test_boxes_outside_of_their_pictures_are_a_hint(tmp_path):
    annotations = [{"id": 17, "image_id": 12, "bbox": [8, 0, 18, 8], "category_id": 3}]
    (outside, _) = inspect(write_coco(tmp_path, annotations=annotations)).hints
    assert outside.startswith("1 boxes are not inside their pictures, for example")
    assert "(id 17)" in outside


def test_boxes_outside_of_their_pictures_are_not_called_boxes_without_height(tmp_path):
    annotations = [{"image_id": 12, "bbox": [20, 0, 8, 8], "category_id": 3}]
    summary = inspect(write_coco(tmp_path, annotations=annotations))
    assert summary.hints[0].startswith("1 boxes are not inside their pictures")
    assert summary.values["left_out"]["boxes without height or width"] == 0


@pytest.mark.parametrize("kind", ["digits", "arrays"])
def test_other_kinds_of_data_are_summarized_too(tmp_path, kind):
    data = BoxedPicturesConfig(height=16, width=16, max_objects=2, evaluated=5)
    if kind == "arrays":
        data = write_arrays(tmp_path)
    summary = inspect(data)
    assert summary.values["pictures"] == len(summary.hashes) == (2 if kind == "arrays" else 5)
    assert sum(summary.values["classes"].values()) == summary.values["boxes"] > 0


def test_repeated_pictures_and_those_of_the_training_split_are_counted(tmp_path):
    data = write_yolo(tmp_path)
    first, second = (tmp_path / "images" / "small" / f"{name}.png" for name in "02")
    with Image.open(first) as picture:
        picture.save(second)
    config = detection.Config(model=dataclasses.replace(DETR, channels=3, queries=4), data=data)
    train, validation, _ = summarize_splits(config, [], inspect_split)
    assert train.values["duplicates"] == 1
    assert validation.values["overlap"] == 3
