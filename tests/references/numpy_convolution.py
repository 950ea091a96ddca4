"""Convolutions and pooling in NumPy float64, by loops over the places of a kernel."""

import numpy as np

from tests.references.numpy_transformer import wide


def convolve(params, x, *, stride=1):
    """Convolves x [B, H, W, C] with zeros around it. The margin is half of the kernel, rounded down.

    Args:
      params: kernel [size, size, C, F], and a bias [F] unless the convolution has none.
      x: images or feature maps.
      stride: distance of two places of the kernel.
    """
    kernel = wide(params["kernel"])
    size = len(kernel)
    batch, height, width, _ = x.shape
    margin = size // 2
    padded = np.pad(wide(x), ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    rows, columns = ((n + 2 * margin - size) // stride + 1 for n in (height, width))
    result = np.zeros((batch, rows, columns, kernel.shape[-1]))
    for row, column in np.ndindex(rows, columns):
        top, left = stride * row, stride * column
        area = padded[:, top : top + size, left : left + size]
        result[:, row, column] = np.einsum("bhwc,hwcf->bf", area, kernel)
    return result + wide(params.get("bias", 0.0))


def pool(x, function, size=2):
    """Reduces areas of size x size pixels of x [B, H, W, C] by a function such as `np.max`."""
    batch, height, width, channels = x.shape
    result = np.zeros((batch, height // size, width // size, channels))
    for row, column in np.ndindex(*result.shape[1:3]):
        area = x[:, size * row : size * (row + 1), size * column : size * (column + 1)]
        result[:, row, column] = function(area, axis=(1, 2))
    return result


def double(x):
    """Draws each pixel of x [B, H, W, C] as 2 x 2 pixels."""
    batch, height, width, channels = x.shape
    result = np.zeros((batch, 2 * height, 2 * width, channels))
    for row, column in np.ndindex(2 * height, 2 * width):
        result[:, row, column] = x[:, row // 2, column // 2]
    return result
