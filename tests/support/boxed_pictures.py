"""Small pictures with boxes, as COCO's files, as YOLO's files and as arrays."""

import json
from typing import Any

import numpy as np
from PIL import Image

from tfm.systems.detr.batches import BoxedPicturesConfig

SIZES = ((20, 40), (30, 10), (16, 16))  # height and width of the pictures


def write_coco(folder, **changes):
    """Writes three pictures, whose objects are white on black, in COCO's format. Returns the config."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "small").mkdir()
    content: dict[str, Any] = {
        "images": [
            {"id": 10 + index, "file_name": f"{index}.png", "height": height, "width": width}
            for index, (height, width) in enumerate(SIZES)
        ],
        "annotations": [
            {"image_id": 10, "bbox": [4, 10, 16, 5], "category_id": 7},
            {"image_id": 10, "bbox": [0, 0, 40, 20], "category_id": 3, "iscrowd": 1},
            {"image_id": 12, "bbox": [8, 0, 8, 8], "category_id": 3},
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
    }
    for index, (height, width) in enumerate(SIZES):
        pixels = np.zeros((height, width, 3), np.uint8)
        for annotation in content["annotations"]:
            left, top, box_width, box_height = annotation["bbox"]
            if annotation["image_id"] == 10 + index and "iscrowd" not in annotation:
                pixels[top : top + box_height, left : left + box_width] = 255
        Image.fromarray(pixels).save(folder / "small" / f"{index}.png")
    (folder / "annotations" / "instances_small.json").write_text(json.dumps(content | changes))
    return BoxedPicturesConfig(
        kind="coco",
        directory=str(folder),
        train="small",
        validation="small",
        test="small",
        height=16,
        width=32,
        batch_size=2,
    )


def write_yolo(folder, pictures="images/small", labels="labels/small", yaml="names: [cat, dog]", **changes):
    """Writes the pictures and boxes of `write_coco` in YOLO's format, without its crowd. Returns the config.

    Args:
      folder: the folder.
      pictures, labels: the folders of the pictures and of the label files.
      yaml: content of data.yaml. None writes no file.
      changes: {name of a picture without ending: content of its label file}. None writes no file.
    """
    write_coco(folder / "coco")
    (folder / pictures).mkdir(parents=True)
    (folder / labels).mkdir(parents=True, exist_ok=True)
    contents = {"0": "1 0.3 0.625 0.4 0.25\n", "1": "", "2": "0 0.75 0.25 0.5 0.5"} | changes
    for name, content in contents.items():
        (folder / "coco" / "small" / f"{name}.png").rename(folder / pictures / f"{name}.png")
        if content is not None:
            (folder / labels / f"{name}.txt").write_text(content)
    if yaml is not None:
        (folder / "data.yaml").write_text(yaml)
    return BoxedPicturesConfig(
        kind="yolo",
        directory=str(folder),
        train="small",
        validation="small",
        test="small",
        height=16,
        width=32,
        batch_size=2,
    )


def write_arrays(folder, **changes):
    """Writes two pictures with up to two objects. Returns the config."""
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(256, size=(2, 12, 8, 1), dtype=np.uint8),
        "train_boxes": np.array([[[0, 3, 4, 6], [2, 2, 2, 2]], [[1, 1, 1, 1], [0, 0, 0, 0]]], np.float32),
        "train_labels": np.array([[2, 0], [1, -1]]),
    }
    for split in ("validation", "test"):
        arrays |= {name.replace("train", split): array for name, array in arrays.items()}
    np.savez(folder / "boxes.npz", **(arrays | changes))
    return BoxedPicturesConfig(kind="arrays", file=str(folder / "boxes.npz"), height=12, width=8)
