"""Numbers that the interactive page contains."""

import base64

import numpy as np

from tfm.visualize.page import LEVELS


def unpack(packed):
    """Returns the numbers of an array as the script of the page unpacks them."""
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])
    return levels * (packed["scale"] / LEVELS)
