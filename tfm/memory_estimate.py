"""How many bytes a model takes, by arithmetic on its config: nothing is traced and nothing is allocated.

`model` is a config with the fields of `tfm.models.TransformerConfig`; for a config without them each function
returns None. Sizes are Python integers, so no config makes one overflow. Estimates of a whole pass leave out
what is small beside the arrays named in their docstrings.

Shape letters: B rows, M source length, L target length, W hypotheses of a row, T positions in the cache,
D model, F hidden, H heads, K key features, V value features or vocabulary.
"""

import functools

FLOAT32 = 4
INT32 = 4
BATCH_ARRAYS = 6  # tokens, positions and segments of both sides
BATCHES_HELD = 9  # one that is computed and those read ahead, see `tfm.data.batching`
ITEM_SIZES = {"float32": 4, "bfloat16": 2}
# What the host holds for each layer while a model is traced and compiled. Tracing the shapes of 100 layers
# alone took 51 MiB (CPU, JAX 0.10.2).
LAYER_PROGRAM = 1 << 20
FIELDS = (
    *("vocabulary_size", "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads"),
    *(
        "key_features",
        "value_features",
        "attention_bias",
        "norm_order",
        "positions",
        "max_positions",
        "dtype",
    ),
)


def _of_transformer(estimate):
    """The estimate, or None for a config that lacks a field of the Transformer's."""

    @functools.wraps(estimate)
    def known(model, *arguments, **keywords):
        if not all(hasattr(model, name) for name in FIELDS):
            return None
        return estimate(model, *arguments, **keywords)

    return known


@_of_transformer
def count_parameters(model):
    """The number of parameters, exact."""
    d_model, d_ff = model.d_model, model.d_ff
    keys, values = _head_features(model)
    attention = 2 * d_model * keys + 2 * d_model * values
    if model.attention_bias:
        attention += 2 * keys + values + d_model
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder = model.encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = model.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final_norms = 0 if model.norm_order == "post" else 2 * norm
    tables = model.vocabulary_size * d_model
    if model.positions == "learned":
        tables += 2 * model.max_positions * d_model
    return encoder + decoder + final_norms + tables


@_of_transformer
def program_bytes(model):
    """Host memory to trace and compile the model, whatever the width of its layers."""
    return LAYER_PROGRAM * (model.encoder_layers + model.decoder_layers)


def training_bytes(parameters, training):
    """Bytes of one device for weights, gradients, optimizer state and the moving average.

    Frozen parameters have no optimizer state; how many they are is not known here, so that a run that freezes
    any is estimated without.

    Args:
      parameters: how many.
      training: a `TrainingConfig`; under a mesh its devices share all of these.
    """
    moments = 0 if training.freeze else getattr(training.optimizer, "bytes_per_parameter", 0)
    average = FLOAT32 if training.ema_decay else 0
    sharers = training.mesh_fsdp * training.mesh_tensor if training.parallel in ("mesh", "auto") else 1
    return parameters * (2 * FLOAT32 + moments + average) // sharers


def batches_bytes(tokens):
    """Host memory for batches of so many tokens on each side, those read ahead among them."""
    return BATCHES_HELD * BATCH_ARRAYS * INT32 * tokens


@_of_transformer
def decoding_bytes(model, *, rows, source, length, width, sampling=False):
    """Bytes beside the weights that the search of one batch takes.

    The cache; what is kept of each hypothesis (tokens, ancestors, coverage); and the larger of encoding the
    source, with attention [B, H, M, M], and one step, with attention [B, H, W, T * W] and logits [B, W, V].

    Args:
      model: its config.
      rows, source, length, width: B, M, T and W.
      sampling: whether tokens are sampled, which takes float32 copies of the logits.
    """
    item, weight = ITEM_SIZES[model.dtype], _attention_item(model)
    keys, values = _head_features(model)
    cache = model.decoder_layers * rows * (keys + values) * (width * length + source) * item
    kept = rows * width * (6 * length + source) * INT32 + rows * width * width * length
    attention = rows * model.heads * width * (width * length + source) * weight
    logits = rows * width * model.vocabulary_size * (3 * FLOAT32 if sampling else item + item // 2)
    candidates = 4 * rows * width * min(width + 3, model.vocabulary_size) * FLOAT32
    return cache + kept + max(_pass_bytes(model, rows, source, source), attention + logits + candidates)


@_of_transformer
def forced_bytes(model, *, rows, source, target, chunk):
    """Bytes beside the weights of a forward pass over given pairs.

    The largest of the attentions [B, H, M, M], [B, H, L, L] and [B, H, L, M] with the layer around it, and
    float32 logits [chunk, V].

    Args:
      model: its config.
      rows, source, target: B, M and L.
      chunk: target positions whose logits are held at a time.
    """
    memory = rows * (source + target) * model.d_model * ITEM_SIZES[model.dtype]
    logits = 2 * min(max(chunk, rows), rows * target) * model.vocabulary_size * FLOAT32
    passes = (
        _pass_bytes(model, rows, *sides) for sides in ((source, source), (target, target), (target, source))
    )
    return memory + max(*passes, logits)


@_of_transformer
def collected_attention_bytes(model, *, source, target):
    """Bytes of the attention weights of all layers and heads for one pair of M and L tokens."""
    encoder = model.encoder_layers * source * source
    decoder = model.decoder_layers * (target * target + target * source)
    return model.heads * (encoder + decoder) * ITEM_SIZES[model.dtype]


def _head_features(model):
    """(H * K, H * V)."""
    own = model.d_model // model.heads
    return model.heads * (model.key_features or own), model.heads * (model.value_features or own)


def _attention_item(model):
    """Bytes for each attention weight: float32 logits and their softmax, and a copy in another dtype."""
    return 2 * FLOAT32 + (FLOAT32 if model.dtype != "float32" else 0)


def _pass_bytes(model, rows, queries, keys):
    """Bytes at the peak of one layer's forward pass: attention weights, its inputs, the hidden layer."""
    attention = rows * model.heads * queries * keys * _attention_item(model)
    features = 2 * sum(_head_features(model)) + 4 * model.d_model + model.d_ff
    return attention + rows * max(queries, keys) * features * ITEM_SIZES[model.dtype]
