"""ConvS2S in NumPy float64, for one sentence at a time.

`drop` is applied where the model has dropout.
"""

import numpy as np

from tests.references.numpy_transformer import nothing_dropped, wide
from tfm.systems.conv_s2s.model import list_layers


def project(params, x):
    """A weight-normalized projection: each column of the kernel has the norm `scale`."""
    direction = wide(params["direction"])
    return x @ (direction / np.linalg.norm(direction, axis=0) * wide(params["scale"])) + wide(params["bias"])


def gated_convolution(params, x, kernel, left):
    """The gated output [L, C] of a convolution over x [L, D], with `left` neighbours before each position."""
    padded = np.pad(x, ((left, kernel - 1 - left), (0, 0)))
    windows = np.array([padded[i : i + kernel].ravel() for i in range(len(x))])
    value, gate = np.split(project(params["convolution"], windows), 2, axis=-1)
    return value / (1 + np.exp(-gate))


def shortcut(params, x):
    """The input of a layer, projected if its width differs from that of the output."""
    return project(params["shortcut"], x) if "shortcut" in params else x


def embed(params, side, tokens):
    """The sums of the embeddings of tokens and of their positions."""
    return (
        wide(params[f"{side}_embedding"]["table"])[tokens]
        + wide(params[f"{side}_positions"]["table"])[: len(tokens)]
    )


def encode(config, params, source, drop=nothing_dropped):
    """Returns the encoder output z [M, E] and the embeddings e [M, E] of a source [M]."""
    e = drop(embed(params, "source", source))
    x = project(params["encoder_input"], e)
    for index, (_, kernel) in enumerate(list_layers(config.encoder)):
        layer = params[f"encoder_{index}"]
        h = gated_convolution(layer, drop(x), kernel, (kernel - 1) // 2)
        x = np.sqrt(0.5) * (h + shortcut(layer, x))
    return project(params["encoder_output"], x), e


def decode(config, params, encoded, target, drop=nothing_dropped):
    """Returns the logits [L, V] of a decoder input [L], and the attention weights of each layer."""
    z, e = encoded
    g = drop(embed(params, "target", target))
    x, attention = project(params["decoder_input"], g), []
    for index, (_, kernel) in enumerate(list_layers(config.decoder)):
        layer, attend = params[f"decoder_{index}"], params[f"attentions_{index}"]
        h = gated_convolution(layer, drop(x), kernel, kernel - 1)
        logits = np.sqrt(0.5) * (project(attend["query"], h) + g) @ z.T
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        context = np.sqrt(len(z)) * weights @ (np.sqrt(0.5) * (z + e))
        h = np.sqrt(0.5) * (h + project(attend["output"], context))
        x = np.sqrt(0.5) * (h + shortcut(layer, x))
        attention.append(weights)
    return project(params["output"], drop(project(params["decoder_output"], x))), np.array(attention)


def conv_s2s(config, params, source, target, drop=nothing_dropped):
    """Logits [L, V] for one source [M] and one decoder input [L], and the attention weights of each layer."""
    return decode(config, params, encode(config, params, source, drop), target, drop)
