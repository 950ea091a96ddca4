"""The config of pictures with captions, and generated pictures: "red three left of blue seven".

A generated picture has four cells of 8 x 8 pixels, and scikit-learn's digits in two of them. For the user's
own pictures, see `tfm.systems.dalle.captioned_pictures`. A batch is a dict of

    images        float32 [B, height, width, C], from -1 to 1; 0 in padding rows
    text          int32 [B, S], the ids of the caption's words; 0 in padding rows
    weights       float32 [B]; 1, or 0 in padding rows
    text_weights  float32 [B, S]; only for own captions, which have different lengths: 1 for the tokens of a
                  caption and for its end, 0 for the rest
"""

import dataclasses
import hashlib
import re
from typing import Any, NamedTuple

import numpy as np

from tfm.config import OnResume, check_fields, field, field_like
from tfm.data.batches.generated import Batch, find_split
from tfm.data.config import (
    AUTO,
    SPLITS,
    DocumentsConfig,
    ImagesConfig,
    PairsConfig,
    remove_folders,
    remove_tokenizer_folder,
    require_local,
    vocabulary_field,
)
from tfm.data.images import open_images
from tfm.errors import UserError

DIGIT = 8  # height and width of a digit in pixels
SIZE = 2 * DIGIT  # height and width of a picture
COLOURS = {
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "magenta": (1, 0, 1),
    "cyan": (0, 1, 1),
}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RELATIONS = ("left of", "right of", "above", "below")
FIRST_WORD_ID = 3  # after padding, BOS and EOS
WORDS = (*COLOURS, *NUMBERS, *RELATIONS)  # the id of a word is its index plus FIRST_WORD_ID
CAPTION_WORDS = 5
PALETTE = np.array(list(COLOURS.values()), np.float32)


@dataclasses.dataclass(frozen=True)
class CaptionsConfig:
    """The pictures with captions, and how they become batches."""

    kind: str = vocabulary_field(
        "digits",
        "Kind of the data. digits: generated pictures of two coloured digits. table: TSV, CSV, JSON Lines or "
        "Parquet files with a picture and a caption in each row. txt: a folder of pictures with a .txt file "
        "next to each, which has a caption on each line. coco: a folder with COCO's captions and images.",
        choices=("digits", "table", "txt", "coco"),
    )
    directory: str = vocabulary_field(
        "",
        "Folder of the data. coco: it contains annotations/captions_SPLIT.json and the images in SPLIT/.",
        resume=OnResume.FREE,
    )
    pictures: str = field(
        "",
        "table: folder of the pictures in data.directory. If empty, the folder of the table.",
        resume=OnResume.FREE,
    )
    picture_column: str = vocabulary_field(
        "file_name",
        "table: name of the column with the names of the pictures. A number, counted from 1, selects a "
        "column of a TSV or CSV file without a header.",
    )
    text_column: str = vocabulary_field(
        "text", "table: name of the column with the captions, in the form of data.picture_column."
    )
    format: str = field_like(PairsConfig, "format")
    train: str = vocabulary_field(
        "train",
        "Training split. table: file name or pattern, or a folder with metadata.jsonl or metadata.csv. txt: "
        "folder of the pictures. coco: the SPLIT. A slice such as captions.csv[:90%] takes a part of the "
        "pictures, which is chosen by their names.",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = field("test", "Test split, in the form of data.train.", resume=OnResume.FREE)
    tokenizer: str = field_like(DocumentsConfig, "tokenizer", "word_pieces")
    vocabulary_size: int | str = vocabulary_field(
        1000,
        "Number of word pieces that are learned from the captions. auto: the size of the text decides. Other "
        "tokenizers ignore this field.",
        minimum=1,
        maximum=10_000_000,
        word=AUTO,
        unit="pieces",
        resume=OnResume.FIXED,
    )
    batch_size: int = field(64, "Pictures of a batch.", minimum=1, maximum=10**6, unit="pictures")
    evaluated: int = field(
        300,
        "Number of pictures of the validation split and of the test split. Smaller splits are used whole.",
        minimum=1,
        maximum=10**6,
        unit="pictures",
    )

    def __post_init__(self):
        check_fields(self, "data")
        require_local(self)

    def without_paths(self) -> "CaptionsConfig":
        """Returns this section without the paths of this machine, for an export."""
        names: dict[str, Any] = {name: remove_folders(getattr(self, name)) for name in (*SPLITS, "pictures")}
        tokenizer = remove_tokenizer_folder(self.tokenizer)
        return dataclasses.replace(self, directory="", tokenizer=tokenizer, **names)


class CaptionedPicture(NamedTuple):
    """A picture and its caption.

    Attributes:
      image: float32 [height, width, C], from -1 to 1.
      words: for generated pictures, the numbers of the words in `WORDS`: colour, digit, relation, colour,
        digit. For own pictures, the ids of the tokens.
    """

    image: np.ndarray
    words: tuple[int, ...]


class CaptionedDigits:
    """The captioned pictures of a split, see `tfm.data.batches.generated.Generator`.

    Args:
      split: "train", "validation" or "test". Splits have different digits.

    Raises:
      UserError: if scikit-learn is missing, or the split does not exist.
    """

    size = None  # the pictures never end

    def __init__(self, split: str):
        self._split = find_split(split)
        source = open_images(ImagesConfig(kind="digits"), split)
        self._digits, self._labels = source.take(np.arange(len(source)))  # from 0 to 16
        self.fingerprint = hashlib.sha256(f"captions {split} {source.fingerprint}".encode()).hexdigest()

    def make(self, *numbers: int) -> CaptionedPicture:
        """Returns the picture of these numbers: `EVALUATION` and an index, or seed, step and row.

        The same numbers give the same picture.
        """
        rng = np.random.default_rng((self._split, *numbers))
        relation = int(rng.integers(len(RELATIONS)))
        image = np.zeros((SIZE, SIZE, 3), np.float32)
        words: list[int] = []
        for row, column in place_digits(relation, rng.integers(2, size=2)):
            colour, index = int(rng.integers(len(PALETTE))), int(rng.integers(len(self._digits)))
            cell = self._digits[index].astype(np.float32) / 8 * PALETTE[colour]  # from 0 to 2
            image[row * DIGIT :, column * DIGIT :][:DIGIT, :DIGIT] = cell
            words += [colour, len(COLOURS) + int(self._labels[index])]
        words.insert(2, len(COLOURS) + len(NUMBERS) + relation)
        return CaptionedPicture(image - 1, tuple(words))

    def assemble(self, examples: list[CaptionedPicture], rows: int) -> Batch:
        """Returns a batch of pictures. Padding fills it up to `rows`."""
        batch = {
            "images": np.zeros((rows, SIZE, SIZE, 3), np.float32),
            "text": np.zeros((rows, CAPTION_WORDS), np.int32),
            "weights": np.zeros(rows, np.float32),
        }
        for row, (image, words) in enumerate(examples):
            batch["images"][row] = image
            batch["text"][row] = FIRST_WORD_ID + np.array(words)
            batch["weights"][row] = 1
        return batch


def place_digits(relation: int, free: np.ndarray) -> list[tuple[int, int]]:
    """Returns the cells (row, column) of the first and of the second digit.

    Args:
      relation: number of the relation in `RELATIONS`.
      free: the coordinate of each digit that the relation leaves free, int [2].
    """
    name = RELATIONS[relation]
    first, second = (0, 1) if name in ("left of", "above") else (1, 0)
    if name in ("left of", "right of"):
        return [(int(free[0]), first), (int(free[1]), second)]
    return [(first, int(free[0])), (second, int(free[1]))]


def describe_text(text: np.ndarray) -> str:
    """Returns the words of the ids of a caption."""
    return " ".join(WORDS[token - FIRST_WORD_ID] for token in text)


def parse_text(caption: str) -> np.ndarray:
    """Returns the ids of the words of a caption, int [5]. The inverse of `describe_text`.

    Raises:
      UserError: if it is no caption of these pictures.
    """
    colour, number, relation = ("|".join(words) for words in (COLOURS, NUMBERS, RELATIONS))
    side = f"({colour}) ({number})"
    match = re.fullmatch(f"{side} ({relation}) {side}", " ".join(caption.split()))
    if not match:
        raise UserError(
            "Expected a caption of a colour, a digit, a relation, a colour and a digit, such as 'red three "
            f"left of blue seven', got {caption!r}. The words are {', '.join(WORDS)}."
        )
    return FIRST_WORD_ID + np.array([WORDS.index(word) for word in match.groups()])
