"""Tests of stored pictures with boxes: arrays and COCO's files, their sizes, their order and bad input."""

import dataclasses
import os
import unicodedata

import numpy as np
import pytest
from PIL import Image

from tests.support.boxed_pictures import write_arrays, write_coco
from tests.tasks.cases import DETR
from tfm.data.batches.generated import GeneratedBatches, evaluation_batches
from tfm.errors import UserError
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import picture_size
from tfm.systems.detr.coco import CocoBoxes
from tfm.systems.detr.data import open_pictures, open_splits
from tfm.systems.detr.stored_pictures import ArrayBoxes, StoredPictures


class Model:
    """The section `model` of a detector."""

    channels, classes = 3, 8


def open_stored(config):
    """Opens the training split of a config."""
    if config.kind == "coco":
        return StoredPictures(config, CocoBoxes(config.directory, "small"))
    return StoredPictures(config, ArrayBoxes(config.file, "train"))


def evaluate(config):
    """Returns a batch of all pictures in their order."""
    pictures = open_stored(config)
    return next(evaluation_batches(pictures, pictures.evaluated, pictures.evaluated))


def find_white(batch, row):
    """Returns left, top, right and bottom of the white pixels of a picture, as shares of its size."""
    height, width = picture_size(batch, row)
    rows, columns = np.nonzero(batch["images"][row, ..., 0] > 0)
    shape = np.array([width, height] * 2)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / shape


def corners(box):
    """Returns left, top, right and bottom of a box."""
    return np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])


def test_pictures_are_resized_until_they_fit_and_padded(tmp_path):
    batch = evaluate(write_coco(tmp_path))
    assert [picture_size(batch, row) for row in range(3)] == [(16, 32), (16, 5), (16, 16)]
    assert not batch["images"][~batch["valid"]].any()


def test_boxes_of_coco_are_shares_of_the_picture(tmp_path):
    batch = evaluate(write_coco(tmp_path))
    for row in (0, 2):
        np.testing.assert_allclose(corners(batch["boxes"][row, 0]), find_white(batch, row), atol=0.04)


def test_labels_are_the_ids_of_categories_without_crowds(tmp_path):
    config = write_coco(tmp_path)
    batch = evaluate(config)
    assert batch["objects"].sum(1).tolist() == [1, 0, 1]
    names = open_pictures(config, "train", Model).label_names
    assert [names[label] for label in batch["labels"][[0, 2], 0]] == ["dog", "cat"]


def test_arrays_keep_their_pixels_and_boxes(tmp_path):
    batch = evaluate(write_arrays(tmp_path))
    images = np.load(tmp_path / "boxes.npz")["train_images"]
    np.testing.assert_allclose(batch["images"], images / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(batch["boxes"][0, 0], [0.25, 0.5, 0.5, 0.5])
    assert batch["objects"].sum(1).tolist() == [2, 1]


def test_each_epoch_has_each_picture_once_in_a_new_order(tmp_path):
    pictures = open_stored(write_coco(tmp_path))
    batches = GeneratedBatches(pictures, 2, seed=3)
    shapes = [picture_size(batches.batch(step), row) for step in range(30) for row in range(2)]
    epochs = [tuple(shapes[start : start + 3]) for start in range(0, 60, 3)]
    assert all(sorted(epoch) == [(16, 5), (16, 16), (16, 32)] for epoch in epochs)
    assert len(set(epochs)) > 1


def test_mirrored_pictures_have_mirrored_boxes(tmp_path):
    config = write_coco(tmp_path)
    config = dataclasses.replace(config, flip=True)
    batches = GeneratedBatches(open_stored(config), 2, seed=0)
    sides = set()
    for step in range(20):
        batch = batches.batch(step)
        for row in range(2):
            if batch["objects"][row].any():
                box = corners(batch["boxes"][row, 0])
                np.testing.assert_allclose(box, find_white(batch, row), atol=0.04)
                sides.add((int(batch["labels"][row, 0]), round(float(box[0]), 2)))
    assert sides == {(7, 0.1), (7, 0.5), (3, 0.5), (3, 0.0)}


def annotate(image, box):
    """Returns annotations of one object."""
    return {"annotations": [{"image_id": image, "bbox": box, "category_id": 3}]}


def one_image(**changes):
    """Returns images with a changed entry, and no annotations."""
    image = {"id": 10, "file_name": "0.png", "height": 20, "width": 40} | changes
    return {"images": [{key: value for key, value in image.items() if value is not None}], "annotations": []}


def one_annotation(**changes):
    """Returns annotations of one object with changed fields. None leaves a field out."""
    annotation = {"id": 17, "image_id": 10, "bbox": [0, 0, 1, 1], "category_id": 3} | changes
    return {"annotations": [{key: value for key, value in annotation.items() if value is not None}]}


CATS = [{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}]
BAD_COCO = {
    "box out of the picture": (one_annotation(bbox=[30, 0, 16, 5]), r"\(id 17\), field bbox, of .*0\.png"),
    "negative width": (one_annotation(bbox=[3, 0, -2, 5]), r"\(id 17\), field bbox, .* 40 x 20 pixels"),
    "not a number": (one_annotation(bbox=[float("nan"), 0, 1, 1]), r"annotations\[0\] \(id 17\).* bbox"),
    "infinity": (one_annotation(bbox=[0, 0, float("inf"), 1]), r"\(id 17\).* bbox, got .*Infinity"),
    "large number": (one_annotation(bbox=[0, 0, 10**400, 1]), r"\(id 17\).* bbox, got"),
    "null box": (annotate(10, None), r"annotations\[0\]: expected four numbers .* bbox, got null"),
    "missing box": (one_annotation(bbox=None), r"\(id 17\).* bbox, got no such field"),
    "empty box": (one_annotation(bbox=[]), r"\(id 17\).* bbox, got \[\]"),
    "eight numbers": (one_annotation(bbox=[0, 0, 1, 1, 0, 0, 1, 1]), "four numbers .* bbox"),
    "number as text": (one_annotation(bbox=["0", 0, 1, 1]), r"four numbers .* bbox, got \[\"0\""),
    "no box": ({"annotations": []}, "without any box"),
    "unknown category": (one_annotation(category_id=4), r"\(id 17\).* category_id, got 4"),
    "category between others": (one_annotation(category_id=5), r"\(id 17\).* category_id, got 5"),
    "missing category": (one_annotation(category_id=None), "category_id, got no such field"),
    "missing image": (one_annotation(image_id=None), "image_id, got no such field"),
    "negative area": (one_annotation(area=-1), "area, got -1"),
    "text as crowd": (one_annotation(iscrowd="no"), 'iscrowd, got "no"'),
    "no categories": ({"categories": []}, "at least one entry in the list categories"),
    "no list of categories": ({"categories": None}, "list in the field categories, got null"),
    "category without a name": ({"categories": [{"id": 3}]}, r"categories\[0\] \(id 3\).* name, got no such"),
    "category with a text as id": (
        {"categories": [{"id": "3", "name": "cat"}]},
        r"0 to 99,999 .* id, got \"3",
    ),
    "large category": ({"categories": [{"id": 10**9, "name": "cat"}]}, r"0 to 99,999 .* id, got 1000000000"),
    "negative category": ({"categories": [{"id": -1, "name": "cat"}]}, "id, got -1"),
    "repeated category": ({"categories": CATS}, "two categories have the id 3, 'cat' and 'dog'"),
    "text": ({"annotations": ["a"]}, r"annotations\[0\]: expected an object with fields, got \"a\""),
    "repeated image": (
        {"images": one_image()["images"] * 2, "annotations": []},
        r"images\[1\] \(id 10\): two images",
    ),
    "image without pixels": (one_image(height=0), r"images\[0\] \(id 10\).* height, got 0"),
    "image without width": (one_image(width=None), "width, got no such field"),
    "image without a name": (one_image(file_name=None), "file_name, got no such field"),
    "image elsewhere": (one_image(file_name="../0.png"), r"file_name, got \"\.\./0\.png"),
    "image with an absolute path": (one_image(file_name="/0.png"), 'file_name, got "/0.png'),
    "shares": (
        one_annotation(bbox=[0.1, 0.2, 0.5, 0.5]),
        r"in pixels.* \(id 17\).* \[0\.1, .*40 x 20 pixels",
    ),
}


@pytest.mark.parametrize("name", BAD_COCO)
def test_bad_annotations_end_in_one_message(tmp_path, name):
    changes, message = BAD_COCO[name]
    config = write_coco(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        open_stored(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a JSON file"),
        (b"\xff", "is not a JSON file"),
        (b"[" * 100_000, "is not a JSON file"),
        (b"[]", r"an object with images, annotations, categories, got \[\]"),
        (b'{"images": []}', "list in the field annotations, got no such field"),
    ],
)
def test_files_of_another_format_end_in_one_message(tmp_path, content, message):
    config = write_coco(tmp_path)
    (tmp_path / "annotations" / "instances_small.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_stored(config)


def test_annotations_of_pictures_that_are_not_listed_are_left_out(tmp_path, caplog):
    """Subsets of COCO often keep all annotations. pycocotools and torchvision ignore them, too."""
    annotations = [{"image_id": image, "bbox": [0, 0, 4, 4], "category_id": 3} for image in (99, 12, 98)]
    batch = evaluate(write_coco(tmp_path, annotations=annotations))
    assert batch["objects"].sum(1).tolist() == [0, 0, 1]
    assert "2 of 3 annotations" in caplog.text


def test_true_objects_of_the_scores_are_those_of_the_file(tmp_path):
    """pycocotools counts crowds, boxes without area, and the area of the segmentation."""
    annotations = [
        {"image_id": 10, "bbox": [4, 10, 16.5, 5], "category_id": 7, "area": 60.5, "iscrowd": 0},
        {"image_id": 10, "bbox": [0, 0, 40, 20], "category_id": 3, "iscrowd": 1},
        {"image_id": 10, "bbox": [3, 3, 0, 5], "category_id": 3},
    ]
    pictures = open_stored(write_coco(tmp_path, annotations=annotations))
    truth = pictures.truth(0)
    assert truth.boxes.tolist() == [each["bbox"] for each in annotations]
    assert truth.labels.tolist() == [7, 3, 3]
    assert truth.areas.tolist() == [60.5, 800, 0]
    assert truth.crowds.tolist() == [False, True, False]
    assert pictures.size(0) == (20, 40)


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("name", ["Äpfel.png", "grün/Äpfel.png"])
def test_names_may_have_another_unicode_form(tmp_path, forms, name):
    """macOS and archives write decomposed names."""
    listed = unicodedata.normalize(forms[0], name)
    config = write_coco(tmp_path, **one_image(file_name=listed) | annotate(10, [1, 1, 4, 4]))
    path = tmp_path / "small" / unicodedata.normalize(forms[1], name)
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "small" / "0.png").rename(path)
    assert evaluate(config)["objects"].sum() == 1


def test_the_exact_name_has_priority_over_another_unicode_form(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Ä.png") for form in ("NFC", "NFD"))
    config = write_coco(tmp_path, **one_image(file_name=decomposed) | annotate(10, [1, 1, 4, 4]))
    (tmp_path / "small" / "0.png").rename(tmp_path / "small" / decomposed)
    Image.new("RGB", (7, 7)).save(tmp_path / "small" / composed)
    assert evaluate(config)["objects"].sum() == 1


def test_annotation_files_are_read_with_a_limit(tmp_path):
    config = write_coco(tmp_path)
    path = tmp_path / "annotations" / "instances_small.json"
    with path.open("wb") as file:
        file.truncate(20 * 10**9)  # sparse
    with pytest.raises(UserError, match=r"at most 2,147,483,648 bytes in .*got 20,000,000,000"):
        open_stored(config)


@pytest.mark.parametrize("place", ["annotations/instances_small.json", "small/0.png"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_errors(tmp_path, place, kind):
    config = write_coco(tmp_path)
    path = tmp_path / place
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{place} is a pipe, a socket or a device"):
        evaluate(config)


def test_arrays_of_shares_are_errors(tmp_path):
    boxes = np.full((2, 2, 4), 0.25, np.float32)
    with pytest.raises(UserError, match=r"in pixels.*picture 0 of train_images, object 0.*8 x 12 pixels"):
        open_stored(write_arrays(tmp_path, train_boxes=boxes))


def test_missing_and_damaged_images_are_named(tmp_path):
    config = write_coco(tmp_path)
    (tmp_path / "small" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"1\.png cannot be read"):
        evaluate(config)
    (tmp_path / "small" / "1.png").unlink()
    with pytest.raises(UserError, match=r"lacks 1 images .* 1\.png"):
        open_stored(config)


def test_pictures_of_16_bits_keep_their_greys(tmp_path):
    """Converting them to RGB in Pillow made 99.6 % of the pixels white."""
    config = write_coco(tmp_path)
    values = np.arange(20 * 40, dtype=np.uint16).reshape(20, 40) * 80
    Image.fromarray(values).save(tmp_path / "small" / "0.png")
    config = dataclasses.replace(config, height=20, width=40)
    batch = evaluate(config)
    np.testing.assert_allclose(batch["images"][0, ..., 0], values / 65535 * 2 - 1, atol=1 / 255)


def test_image_of_another_size_than_its_annotations_is_an_error(tmp_path):
    config = write_coco(tmp_path)
    Image.new("RGB", (7, 7)).save(tmp_path / "small" / "0.png")
    with pytest.raises(UserError, match="7 x 7 pixels"):
        evaluate(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_boxes": np.zeros((2, 2, 3))}, r"\[2, 2, 3\]"),
        ({"train_images": np.zeros((2, 12, 8, 1))}, "float64"),
        ({"train_labels": np.zeros((2, 2), np.uint8)}, "signed integers"),
        ({"label_names": np.array(["a", "b"])}, "label_names"),
        ({"label_names": np.array("abc")}, "train_images"),
        ({"train_boxes": np.full((2, 2, 4), 9)}, "picture 0 of train_images"),
    ],
)
def test_unusable_arrays_end_in_one_message(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        open_stored(write_arrays(tmp_path, **changes))


def test_too_many_objects_are_an_error_that_names_the_field(tmp_path):
    config = dataclasses.replace(write_arrays(tmp_path), max_objects=1)
    with pytest.raises(UserError, match=r"data\.max_objects to at least 2"):
        open_stored(config)


def test_the_largest_number_of_objects_of_a_split_is_reported(tmp_path):
    """Otherwise, data.max_objects would be found only by repeated starts."""
    annotations = [{"image_id": 10, "bbox": [0, 0, 4, 4], "category_id": 3}] * 2
    annotations += [{"image_id": 12, "bbox": [0, 0, 4, 4], "category_id": 3}] * 3
    config = dataclasses.replace(write_coco(tmp_path, annotations=annotations), max_objects=1)
    with pytest.raises(UserError, match=r"has 3 objects.*data\.max_objects to at least 3"):
        open_stored(config)


def make_run(config, **model):
    """Returns the config of a run."""
    fields = {"channels": 3, "classes": 8, "queries": 4} | model
    return detection.Config(model=dataclasses.replace(DETR, **fields), data=config)


def test_all_splits_are_checked_before_training(tmp_path):
    """A test split that does not fit was found only after training, when the model cannot be changed."""
    config = dataclasses.replace(write_coco(tmp_path), validation="other", test="more")
    for split in ("other", "more"):
        write_coco(tmp_path / split, **one_annotation(category_id=9), categories=[{"id": 9, "name": "cow"}])
        (tmp_path / split / "annotations" / "instances_small.json").rename(
            tmp_path / "annotations" / f"instances_{split}.json"
        )
        for picture in (tmp_path / split / "small").iterdir():
            picture.rename(tmp_path / split / picture.name)
    with pytest.raises(UserError, match=r"at least 10 for the split 'validation'.*split 'test', got 8"):
        open_splits(make_run(config))
    with pytest.raises(UserError, match=r"instances_none\.json does not exist"):
        open_splits(make_run(dataclasses.replace(config, test="none"), classes=10))
    open_splits(make_run(config, classes=10))


def test_a_test_split_of_the_default_name_may_be_missing(tmp_path):
    config = dataclasses.replace(write_coco(tmp_path), test="test")
    open_splits(make_run(config))


def test_splits_with_other_names_of_a_class_are_an_error(tmp_path):
    config = write_coco(tmp_path / "coco")
    path = tmp_path / "coco" / "annotations" / "instances_small.json"
    (path.parent / "instances_other.json").write_text(path.read_text().replace('"cat"', '"cow"'))
    (tmp_path / "coco" / "small").rename(tmp_path / "coco" / "other")
    (tmp_path / "coco" / "small").symlink_to("other")
    with pytest.raises(UserError, match=r"'test' .*class 3 is 'cat' and 'cow'"):
        open_splits(make_run(dataclasses.replace(config, test="other")))


def test_the_advice_for_many_objects_can_be_followed(tmp_path):
    """The maximum of data.max_objects was 1,000."""
    annotations = [{"image_id": 10, "bbox": [0, 0, 4, 4], "category_id": 3}] * 1200
    config = write_coco(tmp_path, annotations=annotations)
    with pytest.raises(UserError, match=r"data\.max_objects to at least 1200, and model\.queries"):
        open_splits(make_run(config))
    open_splits(make_run(dataclasses.replace(config, max_objects=1200), queries=1200))


@pytest.mark.parametrize(("field", "value"), [("channels", 1), ("classes", 7)])
def test_models_of_other_channels_or_fewer_classes_are_refused(tmp_path, field, value):
    model = type("Other", (Model,), {field: value})
    with pytest.raises(UserError, match=f"model.{field}"):
        open_pictures(write_coco(tmp_path), "train", model)


def test_boxes_without_area_are_left_out_with_a_warning(tmp_path, caplog):
    boxes = [[0, 0, 0, 5], [4, 10, 16, 5]]
    annotations = [{"image_id": 10, "bbox": box, "category_id": 3} for box in boxes]
    batch = evaluate(write_coco(tmp_path, annotations=annotations))
    assert batch["objects"].sum(1).tolist() == [1, 0, 0]
    assert "1 boxes without height or width" in caplog.text


def test_boxes_without_area_do_not_count_as_objects(tmp_path):
    boxes = [[0, 0, 0, 5], [0, 0, 5, 0], [4, 10, 16, 5]]
    annotations = [{"image_id": 10, "bbox": box, "category_id": 3} for box in boxes]
    config = dataclasses.replace(write_coco(tmp_path, annotations=annotations), max_objects=1)
    assert evaluate(config)["objects"].sum(1).tolist() == [1, 0, 0]


def test_evaluated_pictures_without_a_box_are_an_error(tmp_path):
    annotations = [{"image_id": 12, "bbox": [0, 0, 4, 4], "category_id": 3}]
    config = write_coco(tmp_path, annotations=annotations)
    assert open_stored(config).evaluated == 3
    with pytest.raises(UserError, match=r"2 pictures without any box.*data\.evaluated to at least 3"):
        open_stored(dataclasses.replace(config, evaluated=2))


def test_training_pictures_without_objects_may_come_first(tmp_path):
    annotations = [{"image_id": 12, "bbox": [0, 0, 4, 4], "category_id": 3}]
    config = dataclasses.replace(write_coco(tmp_path, annotations=annotations), evaluated=2)
    pictures = open_pictures(config, "train", Model)
    batch = pictures.assemble([pictures.make(0, 0, row) for row in range(3)], 3)
    assert sorted(batch["objects"].sum(1).tolist()) == [0, 0, 1]
    with pytest.raises(UserError, match=r"2 pictures without any box.*data\.evaluated to at least 3"):
        open_pictures(config, "validation", Model)


@pytest.mark.parametrize("write", [write_coco, write_arrays])
def test_configs_of_exports_have_no_paths_and_training_needs_them(tmp_path, write):
    config = dataclasses.replace(write(tmp_path), test=str(tmp_path / "sub" / "test"))
    exported = config.without_paths()
    assert str(tmp_path) not in repr(exported)
    with pytest.raises(UserError, match=r"data\.(file|directory)"):
        open_pictures(dataclasses.replace(exported, file=""), "train", Model)


def test_fingerprint_of_coco_depends_on_the_sizes_of_the_images(tmp_path):
    config = write_coco(tmp_path)
    before = open_stored(config).fingerprint
    image = min((tmp_path / "small").iterdir())
    assert open_stored(config).fingerprint == before
    image.write_bytes(image.read_bytes() + b"more")
    assert open_stored(config).fingerprint != before


def test_exports_of_roboflow_have_their_annotations_next_to_the_pictures(tmp_path):
    config = write_coco(tmp_path)
    expected = evaluate(config)
    (tmp_path / "annotations" / "instances_small.json").rename(tmp_path / "small" / "_annotations.coco.json")
    found = evaluate(config)
    assert all((found[name] == values).all() for name, values in expected.items())
