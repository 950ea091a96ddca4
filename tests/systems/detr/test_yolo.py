"""Tests of the folders of YOLO: their layouts, their lines and bad input."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.support.boxed_pictures import SIZES, write_coco, write_yolo
from tests.tasks.cases import DETR
from tfm.data.batches.generated import evaluation_batches
from tfm.errors import UserError
from tfm.systems.detr import task as detection
from tfm.systems.detr.coco import CocoBoxes
from tfm.systems.detr.data import open_pictures, open_splits
from tfm.systems.detr.stored_pictures import StoredPictures
from tfm.systems.detr.yolo import YoloBoxes

KEY_POINTS = "names: [cat, dog]\nkpt_shape: [2, 3]\n"


def evaluate(config, source):
    """Returns a batch of all pictures in their order."""
    pictures = StoredPictures(config, source)
    return next(evaluation_batches(pictures, pictures.evaluated, pictures.evaluated))


def read(folder, split="small"):
    """Returns the number of pictures of a split, and their classes and boxes in pixels."""
    source = YoloBoxes(str(folder), split)
    return len(source.sizes), [source.label_names[label] for label in np.concatenate(source.labels)]


def test_batches_equal_those_of_the_same_objects_in_the_format_of_coco(tmp_path):
    config = write_yolo(tmp_path / "yolo")
    yolo = evaluate(config, YoloBoxes(config.directory, "small"))
    write_coco(tmp_path / "coco")
    coco = evaluate(config, CocoBoxes(str(tmp_path / "coco"), "small"))
    coco["labels"] = np.where(coco["objects"] > 0, coco["labels"] == 7, 0)
    for name, values in coco.items():
        np.testing.assert_allclose(yolo[name], values, atol=1e-6, err_msg=name)


LAYOUTS = {
    "Ultralytics": ("images/small", "labels/small", "names: {0: cat, 1: dog}\nsmall: images/small"),
    "Roboflow": ("small/images", "small/labels", "small: ../small/images\nnc: 2\nnames: ['cat', 'dog']"),
    "path": ("sub/images/a", "sub/labels/a", "path: sub\nsmall: images/a\nnames: [cat, dog]"),
    "list of folders": ("images/a", "labels/a", "small: [images/a]\nnames: [cat, dog]"),
    "only names": ("small/images", "small/labels", "names: [cat, dog]"),
    "file of names": ("images/small", "labels/small", None),
    "subfolders": ("images/small/a/b", "labels/small/a/b", "names: [cat, dog]"),
    "labels next to the pictures": ("all", "all", "small: all\nnames: [cat, dog]"),
    "names that look like booleans": ("images/small", "labels/small", "names: [no, yes]"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_folders_are_found(tmp_path, name):
    pictures, labels, yaml = LAYOUTS[name]
    write_yolo(tmp_path, pictures, labels, yaml)
    if yaml is None:
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
    names = ["yes", "no"] if "no, yes" in str(yaml) else ["dog", "cat"]
    assert read(tmp_path) == (3, names)


def test_a_file_may_list_the_pictures(tmp_path):
    write_yolo(tmp_path, yaml="small: small.txt\nnames: [cat, dog]")
    (tmp_path / "small.txt").write_text("./images/small/2.png\nimages/small/1.png\n")
    assert read(tmp_path) == (2, ["cat"])
    (tmp_path / "small.txt").write_text("./images/small/2.png\n./images/small/9.png\n")
    with pytest.raises(UserError, match=r"small\.txt lists 1 pictures that do not exist, .*9\.png"):
        read(tmp_path)


@pytest.mark.parametrize("written", ["val", "valid", "validation"])
@pytest.mark.parametrize("asked", ["val", "valid", "validation"])
def test_names_of_the_validation_split_are_the_same(tmp_path, written, asked):
    write_yolo(tmp_path / "folders", f"{written}/images", f"{written}/labels")
    assert read(tmp_path / "folders", asked)[0] == 3
    write_yolo(tmp_path / "fields", "images/a", "labels/a", f"{written}: images/a\nnames: [cat, dog]")
    assert read(tmp_path / "fields", asked)[0] == 3


def test_folders_of_another_machine_are_replaced_by_the_usual_ones(tmp_path, caplog):
    write_yolo(tmp_path, "valid/images", "valid/labels", "val: /content/valid/images\nnames: [cat, dog]")
    assert read(tmp_path, "validation")[0] == 3
    assert "names /content/valid/images, which does not exist" in caplog.text


FORMS = {
    "box": ("1 0.3 0.625 0.4 0.25", "names: [cat, dog]"),
    "polygon": ("1 0.1 0.6 0.5 0.5 0.3 0.75", "names: [cat, dog]"),
    "rotated box": ("1 0.3 0.5 0.5 0.6 0.3 0.75 0.1 0.6", "names: [cat, dog]"),
    "key points": ("1 0.3 0.625 0.4 0.25 0.3 0.6 2 0 0 0", KEY_POINTS),
    "class as a float": ("1.0 3e-1 0.625 0.4 0.25", "names: [cat, dog]"),
    "byte-order mark": ("\ufeff1 0.3 0.625 0.4 0.25\r\n\r\n", "names: [cat, dog]"),
    "tabs": ("1\t0.3\t0.625\t0.4\t0.25", "names: [cat, dog]"),
}


@pytest.mark.parametrize("name", FORMS)
def test_lines_become_the_surrounding_box_in_pixels(tmp_path, name):
    line, yaml = FORMS[name]
    write_yolo(tmp_path, yaml=yaml, **{"0": line})
    source = YoloBoxes(str(tmp_path), "small")
    np.testing.assert_allclose(source.boxes[0], [[4, 10, 16, 5]], atol=1e-9)
    assert source.labels[0].tolist() == [1]


def test_boxes_are_cut_at_the_border_of_the_picture(tmp_path):
    """Ultralytics permits numbers from -0.01 to 1.01, and boxes that reach out of the picture."""
    write_yolo(tmp_path, **{"0": "1 0.9 0.5 0.4 1.0\n0 -0.01 0.5 0.5 1.01\n"})
    source = YoloBoxes(str(tmp_path), "small")
    np.testing.assert_allclose(source.boxes[0], [[28, 0, 12, 20], [0, 0, 9.6, 20]], atol=1e-9)


def test_pictures_without_a_label_file_have_no_objects(tmp_path):
    write_yolo(tmp_path, **{"0": None})
    assert [len(boxes) for boxes in YoloBoxes(str(tmp_path), "small").boxes] == [0, 0, 1]


def test_label_files_must_exist(tmp_path):
    write_yolo(tmp_path, **dict.fromkeys("012"))
    with pytest.raises(UserError, match=r"none of the 3 pictures .* there is no .*labels/small/0\.txt"):
        YoloBoxes(str(tmp_path), "small")


def test_repeated_lines_are_left_out_with_a_count(tmp_path, caplog):
    write_yolo(tmp_path, **{"0": "1 0.3 0.625 0.4 0.25\n" * 3})
    source = YoloBoxes(str(tmp_path), "small")
    assert len(source.boxes[0]) == 1
    assert source.left_out == {"repeated lines": 2}
    assert "2 repeated lines" in caplog.text


BAD_LINES = {
    "1 0.3 0.6 0.4": "got 4 columns",
    "1 0.3 0.6 0.4 0.2 0.9": "got 6 columns",
    "1 0.3 0.6 0.4 0.2 0.9 0.1 0.1": "got 8 columns",
    "2 0.3 0.6 0.4 0.2": r"class from 0 to 1 of .*data\.yaml, got 2",
    "-1 0.3 0.6 0.4 0.2": "class from 0 to 1 .* got -1",
    "0.5 0.3 0.6 0.4 0.2": r"class from 0 to 1 .* got 0\.5",
    "dog 0.3 0.6 0.4 0.2": "expected numbers .*'dog'",
    "1 0.3 nan 0.4 0.2": "shares .* from 0 to 1, got 0.3 nan",
    "1 12 8 16 5": "shares .* from 0 to 1, got 12 8",
    "1 0.3 0.6 -0.005 0.2": "width and a height of at least 0, got -0.005",
    "1 0.3,0.6,0.4,0.2": "got 2 columns",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_lines_end_in_one_message_with_file_and_line(tmp_path, line):
    write_yolo(tmp_path, **{"2": f"\n0 0.5 0.5 0.5 0.5\n{line}\n"})
    with pytest.raises(UserError, match=rf"^1 lines .*labels/small/2\.txt, line 3: .*{BAD_LINES[line]}"):
        YoloBoxes(str(tmp_path), "small")


def test_all_bad_lines_are_counted_and_some_are_shown(tmp_path):
    write_yolo(tmp_path, **{"0": "9 0 0 0 0\n" * 40, "2": "0 0 0 0"})
    with pytest.raises(UserError, match="41 lines") as error:
        YoloBoxes(str(tmp_path), "small")
    assert len(str(error.value)) < 2000


# Each list contains the list before it three times, so that the last stands for 3^30 texts.
ALIASES = "\n".join(["- &a0 [x]", *(f"- &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 31))])
BAD_FOLDERS = {
    "names: [cat": "is no YAML file",
    "- cat": "expected the fields names, train and val",
    "names: {0: cat, 2: dog}": "numbers of names to be 0 to 1, got 0, 2",
    "nc: 3\nnames: [cat, dog]": "expected nc to be 2, .* got '3'",
    "train: images/small": "class names in the field names, got None",
    "names: [[cat], dog]": "class names in the field names",
    "names: []": "class names in the field names",
    "nc: 99999999999": "class names in the field names, got None",
    f"nc: {'9' * 5000}": "class names in the field names, got None",
    f"names: [cat]\nnc: {'9' * 5000}": "expected nc to be 1",
    f"{ALIASES}\n- *a30": "expected the fields names, train and val",
    f"names:\n{ALIASES}": "class names in the field names",
    f"names: [cat]\nnc:\n{ALIASES}": "expected nc to be 1",
}


@pytest.mark.parametrize("yaml", BAD_FOLDERS)
def test_bad_yaml_files_end_in_one_message(tmp_path, yaml):
    write_yolo(tmp_path, yaml=yaml)
    with pytest.raises(UserError, match=rf"data\.yaml.*{BAD_FOLDERS[yaml]}"):
        YoloBoxes(str(tmp_path), "small")


def test_huge_number_of_key_points_is_not_read(tmp_path):
    write_yolo(tmp_path, yaml=f"names: [cat, dog]\nkpt_shape: ['{'9' * 5000}', '3']")
    assert YoloBoxes(str(tmp_path), "small").label_names == ["cat", "dog"]


def test_folders_without_pictures_or_classes_end_in_one_message(tmp_path):
    config = write_yolo(tmp_path)
    with pytest.raises(UserError, match=r"'other': expected a folder other/images or images/other"):
        YoloBoxes(config.directory, "other")
    (tmp_path / "more.yaml").write_text("names: [a]")
    (tmp_path / "data.yaml").rename(tmp_path / "one.yaml")
    with pytest.raises(UserError, match=r"several YAML files: more\.yaml, one\.yaml"):
        YoloBoxes(config.directory, "small")
    for name in ("more.yaml", "one.yaml"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=r"neither data\.yaml nor classes\.txt"):
        YoloBoxes(config.directory, "small")
    with pytest.raises(UserError, match=r"none. Check data\.directory"):
        YoloBoxes(str(tmp_path / "none"), "small")


def test_label_files_of_another_encoding_are_named(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels" / "small" / "0.txt").write_bytes("1 0.3 0.625 0.4 0.25".encode("utf-16"))
    with pytest.raises(UserError, match=r"0\.txt is not encoded in UTF-8"):
        YoloBoxes(str(tmp_path), "small")


def test_damaged_pictures_are_named_before_training(tmp_path):
    config = write_yolo(tmp_path)
    (tmp_path / "images" / "small" / "1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"1 pictures .*small/1\.png cannot be read"):
        YoloBoxes(config.directory, "small")


def test_turned_pictures_have_the_size_of_their_upright_form(tmp_path):
    config = write_yolo(tmp_path)
    path = tmp_path / "images" / "small" / "0.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.rotate(90, expand=True).save(path, exif=exif)  # turning it upright turns it back
    batch = evaluate(config, YoloBoxes(config.directory, "small"))
    assert YoloBoxes(config.directory, "small").sizes.tolist() == [list(size) for size in SIZES]
    assert batch["images"][0, 9:11, 5:15].min() > 0.9  # the white object of the first picture


def test_a_run_opens_all_splits_and_names_bad_classes(tmp_path):
    model = dataclasses.replace(DETR, channels=3, classes=2, queries=4)
    config = write_yolo(tmp_path)
    open_splits(detection.Config(model=model, data=config))
    pictures = open_pictures(config, "train", model)
    assert pictures.label_names == ["cat", "dog"]
    with pytest.raises(UserError, match=r"data\.directory"):
        open_pictures(dataclasses.replace(config, directory=""), "train", model)


def test_fingerprint_depends_on_the_boxes_and_the_pictures(tmp_path):
    write_yolo(tmp_path)
    prints = [YoloBoxes(str(tmp_path), "small").fingerprint for _ in range(2)]
    (tmp_path / "labels" / "small" / "2.txt").write_text("1 0.75 0.25 0.5 0.5")
    prints.append(YoloBoxes(str(tmp_path), "small").fingerprint)
    Image.new("RGB", (16, 16), "red").save(tmp_path / "images" / "small" / "2.png")
    prints.append(YoloBoxes(str(tmp_path), "small").fingerprint)
    assert [prints.index(each) for each in prints] == [0, 0, 2, 3]
