"""The Vision Transformer once more, in NumPy float64, from the parameters of the Flax one."""

import math

import numpy as np

from tests.references.numpy_transformer import attention, layer_norm, project, wide


def gelu(x):
    """Returns x times the normal distribution function of x."""
    return x * np.vectorize(lambda value: 0.5 * (1 + math.erf(value / math.sqrt(2))))(x)


def cut_patches(images, size):
    """Returns the patches [B, N, size * size * C] of images in reading order, by loops."""
    batch, height, width, _ = images.shape
    return np.array(
        [
            [
                images[b, row : row + size, column : column + size].ravel()
                for row in range(0, height, size)
                for column in range(0, width, size)
            ]
            for b in range(batch)
        ]
    )


def encoder_layer(params, x, epsilon):
    """Computes equations 2 and 3 of Dosovitskiy et al. 2021."""
    mask = np.ones((1, 1, x.shape[1], x.shape[1]), bool)
    normed = layer_norm(params["self_attention_residual"]["norm"], x, epsilon)
    x = x + attention(params["self_attention"], normed, normed, mask)
    normed = layer_norm(params["feed_forward_residual"]["norm"], x, epsilon)
    hidden = gelu(project(params["feed_forward"]["hidden"], normed, "bld,df->blf"))
    return x + project(params["feed_forward"]["output"], hidden, "blf,fd->bld")


def logits(params, images, *, patch_size, epsilon=1e-6):
    """Returns logits [B, classes] of images [B, height, width, C] (equations 1 to 4 and the linear head)."""
    patches = project(params["embedding"], cut_patches(wide(images), patch_size), "bnp,pd->bnd")
    token = np.broadcast_to(wide(params["class_token"]), (len(images), 1, patches.shape[-1]))
    x = np.concatenate([token, patches], axis=1) + wide(params["positions"]["table"])
    layers = params["encoder"]
    for depth in range(sum(name.startswith("layers_") for name in layers)):
        x = encoder_layer(layers[f"layers_{depth}"], x, epsilon)
    return project(params["head"], layer_norm(layers["norm"], x, epsilon)[:, 0], "bd,dc->bc")
