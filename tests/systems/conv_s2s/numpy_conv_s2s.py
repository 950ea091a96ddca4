"""ConvS2S in NumPy float64, for one sentence at a time."""

import numpy as np

from tests.references.numpy_transformer import wide
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


def conv_s2s(config, params, source, target):
    """Logits [L, V] for one source [M] and one decoder input [L], and the attention weights of each layer."""
    tables = {side: wide(params[f"{side}_embedding"]["table"]) for side in ("source", "target")}
    places = {side: wide(params[f"{side}_positions"]["table"]) for side in ("source", "target")}
    e = tables["source"][source] + places["source"][: len(source)]
    x = project(params["encoder_input"], e)
    for index, (_, kernel) in enumerate(list_layers(config.encoder)):
        layer = params[f"encoder_{index}"]
        x = np.sqrt(0.5) * (gated_convolution(layer, x, kernel, (kernel - 1) // 2) + shortcut(layer, x))
    z = project(params["encoder_output"], x)
    g = tables["target"][target] + places["target"][: len(target)]
    x, attention = project(params["decoder_input"], g), []
    for index, (_, kernel) in enumerate(list_layers(config.decoder)):
        layer, attend = params[f"decoder_{index}"], params[f"attentions_{index}"]
        h = gated_convolution(layer, x, kernel, kernel - 1)
        logits = np.sqrt(0.5) * (project(attend["query"], h) + g) @ z.T
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        context = np.sqrt(len(source)) * weights @ (np.sqrt(0.5) * (z + e))
        h = np.sqrt(0.5) * (h + project(attend["output"], context))
        x = np.sqrt(0.5) * (h + shortcut(layer, x))
        attention.append(weights)
    return project(params["output"], project(params["decoder_output"], x)), np.array(attention)
