"""Every activation of the Transformer by name, in NumPy float64, from the parameters of the Flax model."""

import numpy as np

from tests.references.numpy_transformer import embed, layer_norm, project, wide


def attention(params, x, keys, mask, prefix, found):
    """x [B, L, D], keys [B, M, D], mask broadcastable to [B, H, L, M] -> [B, L, D]; adds to `found`."""
    query = project(params["query"], x, "bld,dhk->blhk")
    key = project(params["key"], keys, "bmd,dhk->bmhk")
    value = project(params["value"], keys, "bmd,dhv->bmhv")
    logits = np.einsum("blhk,bmhk->bhlm", query, key) / np.sqrt(query.shape[-1])
    weights = np.where(mask, np.exp(logits - logits.max()), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    heads = np.stack([weights[:, h] @ value[:, :, h] for h in range(value.shape[2])], axis=2)
    named = {"query": query, "key": key, "value": value, "logits": logits, "weights": weights}
    found |= {f"{prefix}.{name}": each for name, each in named.items()} | {f"{prefix}.head_outputs": heads}
    return project(params["output"], heads, "blhv,hvd->bld")


def feed_forward(params, x, prefix, found):
    hidden = np.maximum(project(params["hidden"], x, "bld,df->blf"), 0)
    found[f"{prefix}.hidden"] = hidden
    return project(params["output"], hidden, "blf,fd->bld")


def residual(params, x, sublayer, order, prefix, found):
    found[f"{prefix}.input"] = x
    norm = {
        "post": lambda x, y: layer_norm(params["norm"], x + y),
        "pre": lambda x, y: x + y,
        "norm_then_add": lambda x, y: x + layer_norm(params["norm"], y),
    }
    y = sublayer(layer_norm(params["norm"], x) if order == "pre" else x)
    found[f"{prefix}.sublayer_output"] = y
    found[f"{prefix}.output"] = norm[order](x, y)
    return found[f"{prefix}.output"]


def stack(params, name, tokens, table, mask, order, found, encoder_output=None, source_mask=None):
    """Encoder or decoder: int [B, L] -> [B, L, D]."""
    found[f"{name}.embeddings"] = wide(table)[tokens] * np.sqrt(table.shape[1])
    x = embed(table, tokens)
    found[f"{name}.positions"] = x - found[f"{name}.embeddings"]
    for depth in range(sum(key.startswith("layers_") for key in params)):
        layer, prefix = params[f"layers_{depth}"], f"{name}.layers_{depth}"

        def mix(x, layer=layer, prefix=prefix):
            return attention(layer["self_attention"], x, x, mask, f"{prefix}.self_attention", found)

        def attend(x, layer=layer, prefix=prefix):
            of_cross = layer["cross_attention"], x, encoder_output, source_mask
            return attention(*of_cross, f"{prefix}.cross_attention", found)

        def transform(x, layer=layer, prefix=prefix):
            return feed_forward(layer["feed_forward"], x, f"{prefix}.feed_forward", found)

        cross = {} if encoder_output is None else {"cross_attention": attend}
        for part, sublayer in ({"self_attention": mix} | cross | {"feed_forward": transform}).items():
            of_residual = layer[f"{part}_residual"], x, sublayer, order
            x = residual(*of_residual, f"{prefix}.{part}_residual", found)
    found[f"{name}.output"] = x if order == "post" else layer_norm(params["norm"], x)
    return found[f"{name}.output"]


def activations(params, inputs, targets, order="post"):
    """{name: value} of inputs padded with 0 and targets shifted right."""
    found, table, length = {}, params["embedding"]["table"], targets.shape[1]
    valid, causal = (inputs != 0)[:, None, None], np.tril(np.ones((length, length), bool))[None, None]
    own = valid & (inputs != 0)[:, None, :, None]  # padding attends to nothing
    encoder_output = stack(params["encoder"], "encoder", inputs, table, own, order, found)
    x = stack(params["decoder"], "decoder", targets, table, causal, order, found, encoder_output, valid)
    found["logits"] = x @ wide(table).T
    return found
