"""BERT and its losses in NumPy float64, one row without padding at a time.

`drop` is applied where the model has dropout, except to the weights of attention.
"""

import math

import numpy as np

from tests.references.numpy_transformer import attention, layer_norm, nothing_dropped, project, wide

EPSILON = 1e-12  # of the norms, from the authors' code
ERF = np.vectorize(math.erf)


def gelu(x):
    """x times the probability that a normal number is smaller than x."""
    return x * (1 + ERF(x / math.sqrt(2))) / 2


def linear(params, x):
    return project(params, x, "...d,df->...f")


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def features(params, tokens, types, drop=nothing_dropped):
    """Returns the output [L, D] of the last layer for the tokens [L] of a row."""
    tables = {name: wide(params[name]["table"]) for name in ("embedding", "types", "positions")}
    x = tables["embedding"][tokens] + tables["types"][types] + tables["positions"][: len(tokens)]
    x = drop(layer_norm(params["embedding_norm"], x, EPSILON))
    for index in range(len(params["encoder"])):
        layer = params["encoder"][f"layers_{index}"]
        mixed = attention(layer["self_attention"], x[None], x[None], True)[0]
        x = layer_norm(layer["self_attention_residual"]["norm"], x + drop(mixed), EPSILON)
        hidden = gelu(linear(layer["feed_forward"]["hidden"], x))
        x = x + drop(linear(layer["feed_forward"]["output"], hidden))
        x = layer_norm(layer["feed_forward_residual"]["norm"], x, EPSILON)
    return x


def pooled(params, x):
    """Returns the features [D] of a row, from the first token."""
    return np.tanh(linear(params["pooler"], x[0]))


def pretraining(params, tokens, types):
    """Returns the logits of all tokens [L, V], and of whether the second text follows [2]."""
    x = features(params, tokens, types)
    transformed = layer_norm(params["transform_norm"], gelu(linear(params["transform"], x)), EPSILON)
    logits = transformed @ wide(params["embedding"]["table"]).T + wide(params["embedding"]["bias"])
    return logits, linear(params["follows"], pooled(params, x))


def pretraining_sums(params, batch):
    """Returns {name of a metric: (sum, count)} of a batch, and the predicted tokens of each row."""
    sums = dict.fromkeys(("masked_nll", "masked_accuracy", "next_nll", "next_accuracy"), 0.0)
    predictions, rows = 0, []
    for row in np.flatnonzero(batch["rows"]):
        tokens = batch["tokens"][row][batch["tokens"][row] > 0]
        logits, follows = pretraining(params, tokens, batch["types"][row][: len(tokens)])
        count, label = np.count_nonzero(batch["weights"][row]), batch["follows"][row]
        rows.append([])
        for place, target in zip(batch["predicted"][row][:count], batch["targets"][row][:count], strict=True):
            sums["masked_nll"] -= log_softmax(logits[place])[target]
            sums["masked_accuracy"] += logits[place].argmax() == target
            rows[-1].append(int(logits[place].argmax()))
        sums["next_nll"] -= log_softmax(follows)[label]
        sums["next_accuracy"] += follows.argmax() == label
        predictions += count
    counts = {"masked": predictions, "next": len(rows)}
    return {name: (total, counts[name.split("_")[0]]) for name, total in sums.items()}, rows


def class_logits(params, tokens, types, head, drop=nothing_dropped):
    """Returns the logits of the classes of a row [1, C], or of each of its tokens [L, C]."""
    x = features(params, tokens, types, drop)
    return linear(params["head"], drop(x if head == "tags" else pooled(params, x)[None]))


def class_sums(params, batch, head):
    """Returns the sum of the cross-entropies of the labels, and the numbers of correct and of all labels."""
    nll, correct, count = 0.0, 0, 0
    for row, tokens in enumerate(batch["tokens"]):
        tokens = tokens[tokens > 0]
        if not len(tokens):
            continue
        logits = class_logits(params, tokens, batch["types"][row][: len(tokens)], head)
        for place in np.flatnonzero(batch["weights"][row][: len(logits)]):
            label = batch["labels"][row][place]
            nll -= log_softmax(logits[place])[label]
            correct += logits[place].argmax() == label
            count += 1
    return nll, correct, count
