"""Pictures with the boxes of their objects: generated scenes, arrays, or files of COCO or YOLO.

A batch is a dict of

    images   float32 [B, height, width, C], from -1 to 1; 0 in padding
    valid    bool [B, height, width]; False for padding at the right and at the bottom of a picture
    boxes    float32 [B, M, 4], center x, center y, width and height as shares of the picture
    labels   int32 [B, M]
    objects  float32 [B, M]; 1 for an object, and 0 for the places after the last object
    weights  float32 [B]; 1, or 0 in padding rows
"""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import Batch
from tfm.data.config import SPLITS, remove_folders, require_local


@dataclasses.dataclass(frozen=True)
class BoxedPicturesConfig:
    """The pictures with boxes, and how they become batches."""

    kind: str = field(
        "digits",
        "Kind of the data. digits: generated scenes of scikit-learn's digits. arrays: the arrays of an .npz "
        "file. coco: a folder with COCO's annotations and images. yolo: a folder with pictures and files of "
        "boxes, in the form of Ultralytics and Roboflow.",
        choices=("digits", "arrays", "coco", "yolo"),
    )
    file: str = field(
        "",
        "arrays: path of an .npz file. For each SPLIT it contains SPLIT_images, uint8 [N, height, width, 1 "
        "or 3]; SPLIT_boxes, [N, M, 4], left, top, width and height in pixels; and SPLIT_labels, integers "
        "[N, M], with -1 for places without an object. The array label_names is optional.",
    )
    directory: str = field(
        "",
        "coco: folder that contains annotations/instances_SPLIT.json and the images in SPLIT/, such as "
        "annotations/instances_train2017.json and train2017/. yolo: folder that contains data.yaml or "
        "classes.txt, the pictures in images/SPLIT/ or SPLIT/images/, and the boxes in labels/.",
    )
    train: str = field(
        "train",
        "Training split, the SPLIT in the names of arrays and files. yolo: a field of data.yaml, or the "
        "SPLIT in the names of folders.",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = field("test", "Test split, in the form of data.train.", resume=OnResume.FREE)
    height: int = field(
        32,
        "Height of a batch. Pictures are resized until they fit, and padded.",
        minimum=8,
        maximum=4096,
        unit="pixels",
        resume=OnResume.FIXED,
    )
    width: int = field(32, "Width of a batch.", minimum=8, maximum=4096, unit="pixels", resume=OnResume.FIXED)
    max_objects: int = field(
        4,
        "Maximum number of objects of a picture, M.",
        minimum=1,
        maximum=65_536,
    )
    max_overlap: float = field(
        0.1, "digits: maximum intersection over union of the cells of two digits.", minimum=0, maximum=1
    )
    flip: bool = field(
        False, "arrays, coco, yolo: mirror training pictures, left to right, with probability 1/2."
    )
    batch_size: int = field(64, "Pictures of a batch.", minimum=1, maximum=10**6, unit="pictures")
    evaluated: int = field(
        300,
        "Number of pictures of the validation split and of the test split. Smaller splits are used whole.",
        minimum=1,
        maximum=10**7,
    )

    def __post_init__(self):
        check_fields(self, "data")
        require_local(self)

    def without_paths(self) -> "BoxedPicturesConfig":
        """Returns this section without the paths of this machine, for an export."""
        names: dict[str, Any] = {name: remove_folders(getattr(self, name)) for name in SPLITS}
        return dataclasses.replace(self, directory="", file=os.path.basename(self.file), **names)


class BoxedPicture(NamedTuple):
    """A picture and its objects.

    Attributes:
      image: [h, w, C], from -1 to 1. It fits into a batch.
      boxes: float [n, 4], center x, center y, width and height as shares of the picture.
      labels: int [n].
    """

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


def assemble(config: BoxedPicturesConfig, channels: int, pictures: list[BoxedPicture], rows: int) -> Batch:
    """Returns a batch of pictures. Padding fills it up to `rows`."""
    places = config.max_objects
    batch = {
        "images": np.zeros((rows, config.height, config.width, channels), np.float32),
        "valid": np.ones((rows, config.height, config.width), bool),
        "boxes": np.zeros((rows, places, 4), np.float32),
        "labels": np.zeros((rows, places), np.int32),
        "objects": np.zeros((rows, places), np.float32),
        "weights": np.zeros(rows, np.float32),
    }
    for row, (image, boxes, labels) in enumerate(pictures):
        height, width = image.shape[:2]
        count = len(boxes)
        batch["images"][row, :height, :width] = image
        batch["valid"][row, height:] = False
        batch["valid"][row, :, width:] = False
        batch["boxes"][row, :count] = boxes
        batch["labels"][row, :count] = labels
        batch["objects"][row, :count] = 1
        batch["weights"][row] = 1
    return batch


def picture_size(batch: Batch, row: int) -> tuple[int, int]:
    """Returns height and width of a picture of a batch in pixels, without padding."""
    valid = batch["valid"][row]
    return int(valid.any(1).sum()), int(valid.any(0).sum())
