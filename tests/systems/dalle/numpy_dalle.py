"""The Transformer of DALL-E once more, in NumPy float64 and loops, from the parameters of the Flax one."""

import math

import numpy as np

from tests.references.numpy_decoder_lm import EPSILON, feed_forward
from tests.references.numpy_transformer import attention, layer_norm, wide


def sees(query, key, kind, config):
    """Returns whether the token at place `query` sees the token at place `key`."""
    if key > query:
        return False
    before = 1 + config.text_length
    if key < before:
        return True
    (row, column), (other_row, other_column) = (divmod(place - before, config.side) for place in (query, key))
    reach = config.kernel // 2
    return {
        "row": query - key <= config.side,
        "column": column == other_column,
        "convolution": abs(row - other_row) <= reach and abs(column - other_column) <= reach,
    }[kind]


def embed(params, tokens, config):
    """Returns the embeddings of tokens [B, L] plus the vectors of their places."""
    x = wide(params["embedding"]["table"])[tokens]
    places = {name: wide(table) for name, table in params["positions"].items()}
    for position in range(tokens.shape[1]):
        if position <= config.text_length:
            x[:, position] += places["text"][position]
        else:
            row, column = divmod(position - 1 - config.text_length, config.side)
            x[:, position] += places["row"][row] + places["column"][column]
    return x


def log_probabilities(params, tokens, config, kinds):
    """Returns the log probabilities [B, L, V] of the token after each of the tokens [B, L].

    Args:
      params: parameters of `tfm.systems.dalle.model.DALLE`.
      tokens: BOS, words and codes.
      config: config of the model.
      kinds: kind of the mask of each layer.
    """
    x, length = embed(params, tokens, config), tokens.shape[1]
    for index, kind in enumerate(kinds):
        layer = params["decoder"][f"layers_{index}"]
        mask = np.array([[sees(i, j, kind, config) for j in range(length)] for i in range(length)])
        y = layer_norm(layer["self_attention_residual"]["norm"], x, EPSILON)
        x = x + attention(layer["self_attention"], y, y, mask[None, None])
        y = layer_norm(layer["feed_forward_residual"]["norm"], x, EPSILON)
        x = x + feed_forward(layer["feed_forward"], y)
    x = layer_norm(params["decoder"]["norm"], x, EPSILON)
    logits = x @ wide(params["embedding"]["output"]).T
    result = np.full(logits.shape, -np.inf)
    for position in range(length):
        if position < config.text_length:
            possible = slice(0, config.text_vocabulary)
        elif position < config.text_length + config.side**2:
            possible = slice(config.text_vocabulary, None)
        else:
            possible = slice(2, 3)  # EOS
        shifted = logits[:, position, possible]
        shifted = shifted - shifted.max(-1, keepdims=True)
        totals = np.log(np.exp(shifted).sum(-1, keepdims=True))
        result[:, position, possible] = shifted - totals
    return result


def nll_sums(log_probabilities, tokens, text_length):
    """Returns the negative log probabilities of the words and of the codes of each row, two arrays [B].

    Args:
      log_probabilities: [B, L, V] after each token.
      tokens: BOS, words and codes, [B, L].
      text_length: number of words.
    """
    sums = np.zeros((2, len(tokens)))
    for row, position in np.ndindex(len(tokens), tokens.shape[1] - 1):
        value = log_probabilities[row, position, tokens[row, position + 1]]
        sums[int(position >= text_length), row] -= value
    assert math.isfinite(sums.sum())
    return sums
