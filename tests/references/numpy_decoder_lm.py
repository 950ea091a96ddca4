"""GPT-2 once more, in NumPy float64, from the parameters of the Flax model: independent of its code."""

import numpy as np

from tests.references.numpy_transformer import attention, layer_norm, project, wide

EPSILON = 1e-5


def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def feed_forward(params, x):
    hidden = gelu_tanh(project(params["hidden"], x, "bld,df->blf"))
    return project(params["output"], hidden, "blf,fd->bld")


def layer(params, x, mask):
    """x = x + attention(norm(x)); x = x + feed_forward(norm(x))."""
    y = layer_norm(params["self_attention_residual"]["norm"], x, EPSILON)
    x = x + attention(params["self_attention"], y, y, mask)
    return x + feed_forward(
        params["feed_forward"], layer_norm(params["feed_forward_residual"]["norm"], x, EPSILON)
    )


def decoder_lm(params, tokens):
    """Logits [B, L, V] of tokens int [B, L]."""
    table, length = wide(params["embedding"]["table"]), tokens.shape[1]
    x = table[tokens] + wide(params["positions"]["table"])[:length]
    mask = np.tril(np.ones((length, length), bool))[None, None]
    for depth in range(sum(name.startswith("layers_") for name in params["decoder"])):
        x = layer(params["decoder"][f"layers_{depth}"], x, mask)
    return layer_norm(params["decoder"]["norm"], x, EPSILON) @ table.T
