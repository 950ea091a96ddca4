"""Generated pictures of two coloured digits with captions, such as "red three left of blue seven".

A picture has four cells of 8 x 8 pixels, and scikit-learn's digits in two of them. A batch is a dict of

    images   float32 [B, 16, 16, 3], from -1 to 1; 0 in padding rows
    text     int32 [B, 5], the ids of the caption's words; 0 in padding rows
    weights  float32 [B]; 1, or 0 in padding rows
"""

import dataclasses
import hashlib
import re
from typing import Any, NamedTuple

import numpy as np

from tfm.config import check_fields, field
from tfm.data.batches.generated import Batch, GeneratedData, find_split
from tfm.data.config import ImagesConfig
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

    batch_size: int = field(64, "Pictures of a batch.", minimum=1, maximum=10**6, unit="pictures")
    evaluated: int = field(
        300,
        "Number of pictures of the validation split and of the test split.",
        minimum=1,
        maximum=10**6,
        unit="pictures",
    )

    def __post_init__(self):
        check_fields(self, "data")


class CaptionedPicture(NamedTuple):
    """A picture and its caption.

    Attributes:
      image: float32 [16, 16, 3], from -1 to 1.
      words: numbers of the words in `WORDS`: colour, digit, relation, colour, digit.
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

    def __init__(self, split: str):
        self._split = find_split(split)
        source = open_images(ImagesConfig(kind="digits"), split)
        self._digits, self._labels = source.take(np.arange(len(source)))  # from 0 to 16
        self.fingerprint = hashlib.sha256(f"captions {split} {source.fingerprint}".encode()).hexdigest()

    def make(self, *numbers: int) -> CaptionedPicture:
        """Returns the picture of these numbers."""
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


def open_captions(config: Any, hosts: dict[str, int]) -> GeneratedData:
    """Opens the training and validation pictures of a run.

    Args:
      config: config of the task, with the sections data and training.
      hosts: index and number of hosts, see `GeneratedBatches`.
    """
    return GeneratedData(
        CaptionedDigits("train"),
        CaptionedDigits("validation"),
        batch_size=config.data.batch_size,
        seed=config.training.seed,
        hosts=hosts,
        description=f"{config.data.batch_size:,} new pictures of two coloured digits in each batch",
    )
