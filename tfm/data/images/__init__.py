"""Labelled images from files of pictures, TFDS, files of arrays or scikit-learn, and their batches."""

from tfm.data.images.arrays import ArrayImages, read_arrays, read_digits
from tfm.data.images.augmentation import augment, shift
from tfm.data.images.batches import Batch, ImageBatches, assemble, eval_batches, shuffle_epoch
from tfm.data.images.labelled import LabelledPictures, sort_classes
from tfm.data.images.opening import Images, open_images, open_splits
from tfm.data.images.records import RecordImages, check_builder

__all__ = [
    "ArrayImages",
    "Batch",
    "ImageBatches",
    "Images",
    "LabelledPictures",
    "RecordImages",
    "assemble",
    "augment",
    "check_builder",
    "eval_batches",
    "open_images",
    "open_splits",
    "read_arrays",
    "read_digits",
    "shift",
    "shuffle_epoch",
    "sort_classes",
]
