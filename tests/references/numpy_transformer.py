"""The Transformer once more, in NumPy float64 and loops, from the parameters of the Flax one.

`drop` is applied where section 5.4 has dropout; any function of an array may stand for it.
"""

import numpy as np


def nothing_dropped(x):
    return x


def wide(x):
    return np.asarray(x, np.float64)


def project(params, x, spec):
    return np.einsum(spec, wide(x), wide(params["kernel"])) + wide(params.get("bias", 0.0))


def attention(params, x, keys, mask):
    """x [B, L, D], keys [B, M, D], mask broadcastable to [B, H, L, M]."""
    query = project(params["query"], x, "bld,dhk->blhk")
    key = project(params["key"], keys, "bmd,dhk->bmhk")
    value = project(params["value"], keys, "bmd,dhv->bmhv")
    batch, length, heads, features = query.shape
    mask = np.broadcast_to(mask, (batch, heads, length, keys.shape[1]))
    mixed = np.zeros((batch, length, heads, value.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, length):
        allowed = mask[b, h, i]
        if allowed.any():
            logits = key[b, allowed, h] @ query[b, i, h] / np.sqrt(features)
            weights = np.exp(logits - logits.max())
            mixed[b, i, h] = weights / weights.sum() @ value[b, allowed, h]
    return project(params["output"], mixed, "blhv,hvd->bld")


def feed_forward(params, x):
    hidden = np.maximum(project(params["hidden"], x, "bld,df->blf"), 0)
    return project(params["output"], hidden, "blf,fd->bld")


def convolve(params, x, mask, first):
    """Convolves x [B, L, C] with a kernel [R, C, F].

    Position i reads the positions i + first, i + first + 1, ... that the mask [B, 1, L, L] shows to it.
    """
    kernel, (batch, length, _) = wide(params["kernel"]), x.shape
    mask = np.broadcast_to(mask, (batch, 1, length, length))
    result = np.zeros((batch, length, kernel.shape[-1])) + wide(params["bias"])
    for b, i, place in np.ndindex(batch, length, len(kernel)):
        j = i + first + place
        if 0 <= j < length and mask[b, 0, i, j]:
            result[b, i] += wide(x)[b, j] @ kernel[place]
    return result


def transform(params, x, mask, *, causal):
    """The feed-forward network, or two convolutions if its kernels have three axes."""
    kernel = params["hidden"]["kernel"]
    if kernel.ndim == 2:
        return feed_forward(params, x)
    first = 1 - len(kernel) if causal else -(len(kernel) // 2)
    hidden = np.maximum(convolve(params["hidden"], x, mask, first), 0)
    return convolve(params["output"], hidden, mask, first)


def layer_norm(params, x, epsilon=1e-6):
    x = wide(x)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return centred / deviation * wide(params["scale"]) + wide(params["bias"])


def residual(params, x, sublayer, order, drop=nothing_dropped):
    x = wide(x)
    if order == "post":
        return layer_norm(params["norm"], x + drop(sublayer(x)))
    if order == "pre":
        return x + drop(sublayer(layer_norm(params["norm"], x)))
    return x + drop(layer_norm(params["norm"], sublayer(x)))


def encoder_layer(params, x, mask, order="post", drop=nothing_dropped):
    x = residual(
        params["self_attention_residual"],
        x,
        lambda x: attention(params["self_attention"], x, x, mask),
        order,
        drop,
    )
    return residual(
        params["feed_forward_residual"],
        x,
        lambda x: transform(params["feed_forward"], x, mask, causal=False),
        order,
        drop,
    )


def decoder_layer(params, x, encoder_output, mask, source_mask, order="post", drop=nothing_dropped):
    x = residual(
        params["self_attention_residual"],
        x,
        lambda x: attention(params["self_attention"], x, x, mask),
        order,
        drop,
    )
    x = residual(
        params["cross_attention_residual"],
        x,
        lambda x: attention(params["cross_attention"], x, encoder_output, source_mask),
        order,
        drop,
    )
    return residual(
        params["feed_forward_residual"],
        x,
        lambda x: transform(params["feed_forward"], x, mask, causal=True),
        order,
        drop,
    )


def embed(table, tokens):
    """Section 3.4 and 3.5: scaled embedding plus interleaved sinusoids."""
    features = table.shape[1]
    position = np.arange(tokens.shape[1])[:, None]
    angle = position / 10_000.0 ** (2 * np.arange(features // 2) / features)
    encoding = np.zeros((tokens.shape[1], features))
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(angle), np.cos(angle)
    return wide(table)[tokens] * np.sqrt(features) + encoding


def transformer(params, inputs, targets, order="post", drop=nothing_dropped):
    """Logits [B, L, V]; inputs padded with 0, targets shifted right."""

    def stack(name, x, layer):
        layers = params[name]
        for depth in range(sum(key.startswith("layers_") for key in layers)):
            x = layer(layers[f"layers_{depth}"], x)
        return x if order == "post" else layer_norm(layers["norm"], x)

    def encode(params, x):
        return encoder_layer(params, x, valid, order, drop)

    def decode(params, x):
        return decoder_layer(params, x, encoder_output, causal, valid, order, drop)

    table, length = params["embedding"]["table"], targets.shape[1]
    valid = (inputs != 0)[:, None, None, :]
    causal = np.tril(np.ones((length, length), bool))[None, None]
    encoder_output = stack("encoder", drop(embed(table, inputs)), encode)
    return stack("decoder", drop(embed(table, targets)), decode) @ wide(table).T
