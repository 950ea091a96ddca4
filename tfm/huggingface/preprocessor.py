"""The normalization of pixels in preprocessor_config.json of transformers."""

import logging
import math
import os
from collections.abc import Sequence

import numpy as np

from tfm.errors import UserError
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import read_json_if_present

PREPROCESSOR_FILE = "preprocessor_config.json"
RESCALE_FACTOR = 1 / 255
RESCALE_TOLERANCE = 1e-4  # relative, of factors that files round; 1/256 differs by 4e-3
log = logging.getLogger(__name__)


def read_normalization(
    folder: str, default_mean: Sequence[float], default_deviation: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Returns the mean and the deviation of each channel, for pixels from 0 to 1.

    transformers reads (x - mean) / deviation of pixels x from 0 to 1, or x if do_normalize is false.

    Args:
      folder: folder of the model.
      default_mean, default_deviation: a value for each channel, the defaults of the class of transformers
        that prepares the images. A warning says so if the folder has no preprocessor_config.json.

    Raises:
      UserError: if preprocessor_config.json does not have a mean and a deviation above 0 for each channel, or
        does not divide the pixels by 255.
    """
    path = os.path.join(folder, PREPROCESSOR_FILE)
    channels = len(default_mean)
    details = read_json_if_present(path)
    if not os.path.exists(path):
        log.warning(
            "%s has no %s. Assumed the normalization that transformers uses without this file: mean %s and "
            "deviation %s of pixels from 0 to 1.",
            *(folder, PREPROCESSOR_FILE, list(default_mean), list(default_deviation)),
        )
    fields = Fields(details, path)
    fields.require("do_rescale", True)
    factor = fields.get("rescale_factor", float, RESCALE_FACTOR)
    if not math.isclose(factor, RESCALE_FACTOR, rel_tol=RESCALE_TOLERANCE):
        fields.require("rescale_factor", RESCALE_FACTOR)
    if not fields.get("do_normalize", bool, True):
        return [0.0] * channels, [1.0] * channels
    try:
        mean = np.asarray(details.get("image_mean", default_mean), float)
        deviation = np.asarray(details.get("image_std", default_deviation), float)
    except (TypeError, ValueError):
        mean = deviation = np.zeros(0)
    if mean.shape != (channels,) or deviation.shape != mean.shape or not (deviation > 0).all():
        raise UserError(
            f"{folder}: expected image_mean and image_std in {PREPROCESSOR_FILE} to have a value for "
            f"each of {channels} channels."
        )
    return mean.tolist(), deviation.tolist()
