"""The discrete autoencoder of DALL-E once more, in NumPy float64, from the parameters of the Flax one."""

import numpy as np

from tests.references.numpy_convolution import convolve, double, pool
from tests.references.numpy_transformer import wide


def relu(x):
    return np.maximum(x, 0)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def block(params, x, gain):
    """Returns the input, or its projection, plus the scaled output of four convolutions."""
    y = x
    for index in range(4):
        y = convolve(params[f"conv_{index}"], relu(y))
    return (convolve(params["shortcut"], x) if "shortcut" in params else x) + gain * y


def encode(params, images, *, groups, blocks):
    """Returns logits of codes [B, H, W, K] of images from -1 to 1."""
    x = convolve(params["input"], 0.4 * wide(images) + 0.5)
    for group in range(groups):
        for index in range(blocks):
            x = block(params[f"group_{group}_block_{index}"], x, 1 / (groups * blocks) ** 2)
        if group < groups - 1:
            x = pool(x, np.max)
    return convolve(params["output"], relu(x))


def decode(params, weights, *, groups, blocks):
    """Returns means and log scales [B, height, width, C] of weights of codes [B, H, W, K]."""
    x = convolve(params["input"], weights)
    for group in range(groups - 1, -1, -1):
        for index in range(blocks):
            x = block(params[f"group_{group}_block_{index}"], x, 1 / (groups * blocks) ** 2)
        if group > 0:
            x = double(x)
    x = convolve(params["output"], relu(x))
    channels = x.shape[-1] // 2
    return x[..., :channels], x[..., channels:]


def reconstruct(params, images, noise, temperature, **sizes):
    """Returns (logits, mean, log scale) with relaxed codes."""
    logits = encode(params["encoder"], images, **sizes)
    weights = softmax((logits + noise) / temperature)
    return logits, *decode(params["decoder"], weights, **sizes)


def draw(params, codes, **sizes):
    """Returns the images from -1 to 1 of codes [B, H, W]: the most probable pixels."""
    weights = np.eye(params["encoder"]["output"]["kernel"].shape[-1])[codes]
    mean, _ = decode(params["decoder"], weights, **sizes)
    share = 1 / (1 + np.exp(-mean))  # from 0.1 to 0.9
    return np.clip((share - 0.5) / 0.4, -1, 1)
