"""Pictures that a language model of captions and codes draws: their codes, their texts and their figures."""

import dataclasses
import functools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.systems.dalle.captions import describe_text
from tfm.visualize.pictures import draw_images

TITLE_WIDTH = 20  # characters above a drawn picture


def continue_codes(
    model: Any, params: Any, texts: np.ndarray, first_codes: np.ndarray, decoding: GenerationConfig
) -> np.ndarray:
    """Draws the codes of a picture for each caption. If there are several samples, the most probable sample
    is kept.

    Args:
      model: the Linen module.
      params: its parameters, or a tuple of the parameters of several models.
      texts: ids of the captions, int [N, S].
      first_codes: codes of the upper part of each picture, int [N, P].
      decoding: options of the sampling.

    Returns:
      int [N, side * side], row by row.
    """
    start = model.config.text_vocabulary
    prefixes = np.concatenate([texts, start + first_codes], axis=1).tolist()
    length = model.config.side**2 - first_codes.shape[1]
    generated = generate_ids(model, params, prefixes, dataclasses.replace(decoding, max_tokens=length))
    best = [max(samples, key=lambda sample: sample.score).ids for samples in generated]
    codes = np.array([ids[:-1] for ids in best]) - start  # without EOS
    return np.concatenate([first_codes, codes], axis=1)


def describe_drawings(texts: np.ndarray, satisfied: np.ndarray) -> list[dict[str, str]]:
    """Returns each caption [N, S], and whether its picture is right, [N]."""
    return [
        {"caption": describe_text(text), "satisfied": "yes" if is_right else "no"}
        for text, is_right in zip(texts, satisfied, strict=True)
    ]


def make_figures(
    rows: Sequence[dict[str, str]], images: np.ndarray, real: np.ndarray, completed: np.ndarray
) -> dict[str, Callable[[str], None]]:
    """Returns functions that draw the pictures of captions, and pictures whose lower half was drawn.

    Args:
      rows: the result of `describe_drawings`.
      images: drawn pictures of the captions, [N, height, width, C] from -1 to 1.
      real, completed: pictures, and the same pictures with lower halves that the model drew.
    """
    titles = ["\n".join(textwrap.wrap(row["caption"], TITLE_WIDTH)) for row in rows]
    names = ["original"] * len(real) + ["completed"] * len(completed)
    pairs = np.concatenate([real, completed])
    return {
        "drawn": functools.partial(draw_images, images, titles, columns=4, panel=1.4),
        "completed": functools.partial(draw_images, pairs, names, columns=len(real)),
    }
