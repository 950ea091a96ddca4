"""T-DMCA in NumPy float64, for one text at a time, with a loop over queries and their windows."""

import numpy as np

from tests.references.numpy_decoder_lm import EPSILON
from tests.references.numpy_transformer import embed, layer_norm, project, wide


def attend(params, x, local_block, stride):
    """Self-attention of x [L, D]: in blocks if `stride` is None, otherwise to compressed windows."""
    query, key, value = (project(params[name], x, "ld,dhk->lhk") for name in ("query", "key", "value"))
    mixed = np.zeros(query.shape)
    for index in range(len(x)):
        if stride is None:
            begin = index // local_block * local_block
            keys, values = key[begin : index + 1], value[begin : index + 1]
        else:
            windows = [slice(i * stride, (i + 1) * stride) for i in range((index + 1) // stride)]
            keys, values = (
                [project(params[f"compress_{name}"], array[window], "rgk,rgkhl->hl") for window in windows]
                for name, array in (("key", key), ("value", value))
            )
        if not len(keys):
            continue  # attends to nothing
        logits = np.einsum("hk,mhk->hm", query[index], np.array(keys)) / np.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed[index] = np.einsum("hm,mhk->hk", weights, np.array(values))
    return project(params["output"], mixed, "lhk,hkd->ld")


def t_dmca(config, params, tokens):
    """Returns the logits [L, V] of the tokens [L] of a text."""
    table = wide(params["embedding"]["table"])
    x = embed(table, tokens[None])[0]
    for index in range(config.layers):
        layer = params["decoder"][f"layers_{index}"]
        stride = config.compression if config.pattern[index % len(config.pattern)] == "M" else None
        normed = layer_norm(layer["self_attention_residual"]["norm"], x, EPSILON)
        x = x + attend(layer["self_attention"], normed, config.local_block, stride)
        normed = layer_norm(layer["feed_forward_residual"]["norm"], x, EPSILON)
        hidden = np.maximum(project(layer["feed_forward"]["hidden"], normed, "ld,df->lf"), 0)
        x = x + project(layer["feed_forward"]["output"], hidden, "lf,fd->ld")
    return layer_norm(params["decoder"]["norm"], x, EPSILON) @ table.T
