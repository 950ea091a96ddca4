"""Whether pictures of two coloured digits show what their captions say, in NumPy."""

from typing import NamedTuple

import numpy as np

from tfm.systems.dalle.captions import COLOURS, DIGIT, NUMBERS, PALETTE, RELATIONS

MIN_INK = 0.05  # mean brightness of the brightest channel of a cell with a digit; an empty cell has 0


class PictureParts(NamedTuple):
    """The two digits of each picture, before they are classified.

    Attributes:
      is_readable: bool [N], whether exactly two of the four cells contain something.
      cells: int [N, 2, 2], row and column of the cells of the two digits.
      colours: int [N, 2], numbers of the nearest colours.
      shades: float32 [N, 2, 8, 8, 1], the digits without colour, from -1 to 1.
    """

    is_readable: np.ndarray
    cells: np.ndarray
    colours: np.ndarray
    shades: np.ndarray


def find_digits(images: np.ndarray) -> PictureParts:
    """Finds the two brightest of the four cells of pictures [N, 16, 16, 3] from -1 to 1, the brightest first.

    There are always two. `is_readable` says whether exactly two cells have ink.
    """
    count = len(images)
    grid = (images + 1).reshape(count, 2, DIGIT, 2, DIGIT, 3).transpose(0, 1, 3, 2, 4, 5)
    cells = grid.reshape(count, 4, DIGIT, DIGIT, 3)
    ink = cells.max(-1).mean((2, 3)) / 2
    order = np.argsort(-ink, axis=1, kind="stable")[:, :2]
    two = np.take_along_axis(cells, order[:, :, None, None, None], 1)
    means = two.mean((2, 3))
    means /= np.maximum(means.max(-1, keepdims=True), 1e-9)
    colours = ((means[:, :, None] - PALETTE) ** 2).sum(-1).argmin(-1)
    positions = np.stack([order // 2, order % 2], axis=-1)
    return PictureParts((ink > MIN_INK).sum(1) == 2, positions, colours, two.max(-1, keepdims=True) - 1)


def is_satisfied(words: np.ndarray, parts: PictureParts, digits: np.ndarray) -> np.ndarray:
    """Returns whether pictures show what their captions say, bool [N].

    Args:
      words: numbers of the words in `tfm.systems.dalle.captions.WORDS`, int [N, 5].
      parts: the two digits of each picture.
      digits: classes of the digits, int [N, 2].
    """
    properties = np.stack([parts.colours, len(COLOURS) + digits], axis=-1)  # [N, 2, 2]
    relations = words[:, 2] - len(COLOURS) - len(NUMBERS)
    asked = words[:, [0, 1, 3, 4]].reshape(-1, 2, 2)
    result = np.zeros(len(words), bool)
    for order in ((0, 1), (1, 0)):
        shows = (properties[:, order] == asked).all((1, 2))
        first, second = parts.cells[:, order[0]], parts.cells[:, order[1]]
        result |= shows & _holds(relations, first, second)
    return result & parts.is_readable


def _holds(relations: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns whether relations [N] hold between cells [N, 2] of rows and columns."""
    rows, columns = np.sign(second - first).T
    sides = {"left of": columns == 1, "right of": columns == -1, "above": rows == 1, "below": rows == -1}
    return np.choose(relations, [sides[name] for name in RELATIONS])
