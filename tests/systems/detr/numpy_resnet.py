"""Residual networks once more, in NumPy float64, from the parameters and the state of the Flax ones."""

import numpy as np

from tests.references.numpy_convolution import convolve
from tests.references.numpy_transformer import wide


def relu(x):
    return np.maximum(x, 0)


def norm(values, x, weights=None):
    """Normalizes x [B, H, W, C].

    Args:
      values: scale and bias, and the stored mean and variance.
      x: feature maps.
      weights: [B], 0 for padding. The statistics are those of the other rows. None uses the stored ones.
    """
    mean, variance = (wide(values[name]) for name in ("mean", "variance"))
    if weights is not None:
        real = x[weights > 0]
        mean, variance = real.mean((0, 1, 2)), real.var((0, 1, 2))
    return (x - mean) / np.sqrt(variance + 1e-5) * wide(values["scale"]) + wide(values["bias"])


def pool_by_3(x):
    """Returns the maxima of areas of 3 x 3 pixels around every second pixel."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    rows, columns = ((n + 1) // 2 for n in x.shape[1:3])
    result = np.zeros((len(x), rows, columns, x.shape[3]))
    for row, column in np.ndindex(rows, columns):
        result[:, row, column] = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].max((1, 2))
    return result


def resnet(params, state, images, *, depths, stem, weights=None):
    """Returns the feature map [B, H, W, features] of images.

    Args:
      params: convolutions, and scales and biases of norms that are trained.
      state: statistics of norms, and scales and biases of frozen norms.
      images: [B, height, width, C].
      depths: number of blocks of each stage.
      stem: "imagenet" pools after the first convolution, "small" does not.
      weights: see `norm`.
    """

    def normalize(path, x):
        values = {}
        for tree in (params, state):
            for name in path:
                tree = tree.get(name, {})
            values |= tree
        return norm(values, x, weights)

    x = relu(normalize(("stem_norm",), convolve(params["stem"], images, stride=2)))
    x = pool_by_3(x) if stem == "imagenet" else x
    for stage, depth in enumerate(depths):
        for index in range(depth):
            name, stride = f"stage_{stage}_block_{index}", 2 if stage > 0 and index == 0 else 1
            block = params[name]
            y = relu(normalize((name, "norm_1"), convolve(block["conv_1"], x)))
            y = relu(normalize((name, "norm_2"), convolve(block["conv_2"], y, stride=stride)))
            y = normalize((name, "norm_3"), convolve(block["conv_3"], y))
            if index == 0:
                x = normalize((name, "shortcut_norm"), convolve(block["shortcut"], x, stride=stride))
            x = relu(x + y)
    return x
