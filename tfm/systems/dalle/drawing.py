"""Pictures that a language model of captions and codes draws: their codes, their texts and their figures."""

import dataclasses
import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tfm.data.tokenizers.protocol import BOS_ID
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.interpret.observation import AttentionMap, Observation, image_track
from tfm.systems.dalle.model import DALLEConfig
from tfm.visualize.pictures import draw_images


def make_inputs(text: ArrayLike, codes: ArrayLike, model: DALLEConfig) -> jax.Array:
    """Returns the tokens of captions and pictures, int [B, 1 + T + I].

    Args:
      text: ids of the captions, int [B, S].
      codes: codes of the pictures, int [B, I].
      model: config of the model. Its ids of codes come after the ids of words.
    """
    tokens = jnp.concatenate([jnp.asarray(text), model.text_vocabulary + jnp.asarray(codes)], axis=1)
    return jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=BOS_ID)


def observe_drawing(
    caption: str, words: Sequence[str], image: np.ndarray, weights: np.ndarray, is_right: bool | None
) -> Observation:
    """Describes how a model draws a caption.

    Args:
      caption: the caption.
      words: labels of its ids, S.
      image: the drawn image [height, width, C], from -1 to 1.
      weights: attention weights of the layers, [layers, H, L, L] with L = 1 + S + I.
      is_right: whether the image shows what the caption says. None if nothing can judge it.
    """
    side = math.isqrt(weights.shape[-1] - 1 - len(words))
    track = image_track(image, weights.shape[-1], (side, side))
    labels = ["start", *words, *track.labels[1 + len(words) :]]
    tracks = {"tokens": track._replace(element="token", labels=labels, texts=labels)}
    results = {True: "the picture is right", False: "the picture is wrong", None: "the picture is drawn"}
    attention = {"decoder": AttentionMap("tokens", "tokens", weights)}
    return Observation(caption, results[is_right], tracks, attention, [], made="tokens")


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


def describe_drawings(captions: Sequence[str], satisfied: np.ndarray) -> list[dict[str, str]]:
    """Returns each caption, and whether its picture is right, [N]."""
    return [
        {"caption": caption, "satisfied": "yes" if is_right else "no"}
        for caption, is_right in zip(captions, satisfied, strict=True)
    ]


def make_figures(
    rows: Sequence[dict[str, str]], images: np.ndarray, real: np.ndarray, completed: np.ndarray
) -> dict[str, Callable[[str], None]]:
    """Returns functions that draw the pictures of captions, and pictures whose lower half was drawn.

    Their names are "drawn" and "completed". Each function writes a figure into the path that it gets.

    Args:
      rows: {"caption": text} of each picture, for example the result of `describe_drawings`.
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
