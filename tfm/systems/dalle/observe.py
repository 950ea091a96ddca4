"""The observation of a drawn caption: which words and codes each prediction attends to."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tfm.data.tokenizers.protocol import BOS_ID
from tfm.interpret.observation import AttentionMap, Observation, image_track
from tfm.systems.dalle.captions import describe_text
from tfm.systems.dalle.model import DALLEConfig


def make_inputs(text: ArrayLike, codes: ArrayLike, model: DALLEConfig) -> jax.Array:
    """Returns the tokens of captions and pictures, int [B, 1 + T + I].

    Args:
      text: ids of the captions, int [B, S].
      codes: codes of the pictures, int [B, I].
      model: config of the model. Its ids of codes come after the ids of words.
    """
    tokens = jnp.concatenate([jnp.asarray(text), model.text_vocabulary + jnp.asarray(codes)], axis=1)
    return jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=BOS_ID)


def observe_drawing(text: np.ndarray, image: np.ndarray, weights: np.ndarray, is_right: bool) -> Observation:
    """Describes how a model draws a caption.

    Args:
      text: ids of the caption, int [S].
      image: the drawn image [height, width, C], from -1 to 1.
      weights: attention weights of the layers, [layers, H, L, L] with L = 1 + T + I.
      is_right: whether the image shows what the caption says.
    """
    side = math.isqrt(weights.shape[-1] - 1 - len(text))
    track = image_track(image, weights.shape[-1], (side, side))
    words = ["start", *(describe_text(text[index : index + 1]) for index in range(len(text)))]
    labels = [*words, *track.labels[len(words) :]]
    tracks = {"tokens": track._replace(element="token", labels=labels, texts=labels)}
    result = "the picture is right" if is_right else "the picture is wrong"
    attention = {"decoder": AttentionMap("tokens", "tokens", weights)}
    return Observation(describe_text(text), result, tracks, attention, [])
