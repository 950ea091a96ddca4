"""The data section of labelled images."""

import dataclasses
import functools
import os
import re

from tfm.config import OnResume, field, field_like
from tfm.data.config.pairs import PairsConfig
from tfm.data.config.sections import HUGGINGFACE_NAME, TFDS_NAME, DataSection, remove_folders
from tfm.errors import UserError
from tfm.io.files import user_cache

shared_field = functools.partial(field_like, PairsConfig)


@dataclasses.dataclass(frozen=True)
class ImagesConfig(DataSection):
    """The source of labelled images, and how they become batches."""

    kind: str = field(
        "tfds",
        "Kind of the data. folder: a folder of pictures for each class. table: TSV, CSV, JSON Lines or "
        "Parquet files with a picture and a label in each row. huggingface: a data set of the package "
        "datasets. tfds: a TFDS data set. arrays: the arrays of an .npz file. digits: scikit-learn's 1,797 "
        "digits of 8 x 8 pixels (install the extra digits).",
        choices=("folder", "table", "huggingface", "tfds", "arrays", "digits"),
    )
    name: str = field(
        "mnist",
        "Name of the data set. tfds: it must have the features image and label. huggingface: with the "
        "configuration after a colon.",
        pattern=re.compile(f"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})"),
        form="a name such as mnist",
    )
    directory: str = field(
        "",
        "Folder of the data. folder, table: folder of the splits. huggingface: folder written by "
        "save_to_disk; if empty, data.name is loaded. tfds: TFDS's data_dir; empty for its default. A "
        "resumed run may read from another folder if the content of the training data is the same.",
        resume=OnResume.FREE,
    )
    pictures: str = field(
        "",
        "table: folder of the pictures in data.directory. If empty, the folder of the table.",
        resume=OnResume.FREE,
    )
    picture_column: str = field(
        "",
        "table, huggingface: column with the names of the files, or with the pictures. If empty, file_name "
        "of a table and image of a data set. A number, counted from 1, selects a column of a TSV or CSV file "
        "without a header.",
    )
    label_column: str = field(
        "label", "table, huggingface: column with the classes, in the form of data.picture_column."
    )
    format: str = shared_field("format")
    channels: int = field(
        3,
        "folder, table, huggingface: 1 reads pictures in grey, 3 in RGB.",
        choices=(1, 3),
        minimum=1,
        maximum=3,
        resume=OnResume.FIXED,
    )
    file: str = field(
        "",
        "arrays: path of an .npz file. For each SPLIT it contains SPLIT_images, [N, height, width, C] or "
        "[N, height, width], uint8 or floats from 0 to 1, and SPLIT_labels, [N], integers from 0. The array "
        "label_names, a text for each label, is optional.",
    )
    mean: tuple[float, ...] = field(
        (),
        "arrays: means that were subtracted from the floats of the images, before they were divided by "
        "data.deviation: a value for each channel, or one for all. The images become floats from 0 to 1 "
        "again.",
        resume=OnResume.FIXED,
    )
    deviation: tuple[float, ...] = field(
        (),
        "arrays: standard deviations by which the floats were divided, see data.mean.",
        resume=OnResume.FIXED,
    )
    resize: int = field(
        0,
        "Height and width to which pictures are resized. arrays and digits are never resized. 0 keeps their "
        "size.",
        minimum=0,
        maximum=8192,
        unit="pixels",
        resume=OnResume.FIXED,
    )
    resizing: str = field(
        "crop",
        "How pictures of another shape become squares. crop: the longer side is cut in the middle. pad: the "
        "shorter side gets black margins. stretch: the aspect ratio changes.",
        choices=("crop", "pad", "stretch"),
        resume=OnResume.FIXED,
    )
    train: str = field(
        "train",
        "Training split. folder: a folder that contains a folder for each class. table: file name, or a "
        "folder with metadata.jsonl or metadata.csv. folder, table, tfds: also a part such as train[:90%]. "
        "arrays: the SPLIT in the names of the arrays. digits: train, validation or test.",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = shared_field("test")
    batch_size: int = field(
        128, "Images of a batch, summed over all hosts.", minimum=1, maximum=10**7, unit="images"
    )
    max_shift: int = field(
        0,
        "Maximum random shift of each training image, vertically and horizontally. Zeros fill the margin.",
        minimum=0,
        maximum=4096,
        unit="pixels",
    )
    flip: bool = field(False, "Random mirroring of training images, left to right, with probability 1/2.")
    random_crop: float = field(
        0.0,
        "Smallest area of a random rectangle that is cut out of each training image and resized, as a share "
        "of the area of the image (Szegedy et al. 2015, who use 0.08). 0 turns this off.",
        minimum=0,
        maximum=1,
    )
    cache_dir: str = shared_field("cache_dir")

    def __post_init__(self):
        super().__post_init__()
        if self.kind == "arrays" and not self.file:
            raise UserError("data.kind 'arrays' needs data.file, but it is empty. Set it to an .npz file.")
        if self.kind in ("folder", "table") and not self.directory:
            raise UserError(
                f"data.kind '{self.kind}' needs data.directory, but it is empty. Set it to a path."
            )

    def without_paths(self) -> "ImagesConfig":
        """Returns this section without the paths of this machine, for an export."""
        return dataclasses.replace(
            self,
            directory="." if self.kind in ("folder", "table") else "",  # these kinds need a folder
            pictures=remove_folders(self.pictures),
            file=os.path.basename(self.file),
            cache_dir="",
            train=remove_folders(self.train),
            validation=remove_folders(self.validation),
            test=remove_folders(self.test),
        )

    @property
    def cache(self) -> str:
        """Folder of prepared data: `cache_dir`, or by default the user's cache folder."""
        return self.cache_dir or user_cache()

    @property
    def summary(self) -> str:
        """Description of the data for the model card, such as "TFDS mnist, train, validated on test"."""
        of = {
            "folder": "folders of pictures",
            "table": "pictures in tables",
            "huggingface": f"Hugging Face {self.name}" if not self.directory else "a saved data set",
            "digits": "scikit-learn's digits",
            "arrays": self.file,
            "tfds": f"TFDS {self.name}",
        }
        return f"{of[self.kind]}, {self.train}, validated on {self.validation}"
