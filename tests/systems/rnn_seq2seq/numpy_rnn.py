"""The recurrent models in NumPy float64, one sentence and one position at a time, from the papers' equations.

It shares no code with `tfm`; only the names of parameters are Flax's. `drop` is applied where a layer or the
logits read the output of another layer; any function of an array may stand for it.
"""

import numpy as np

from tests.systems.lstm_lm.numpy_lstm_lm import lstm, sigmoid


def nothing_dropped(x):
    return x


def dense(parameters, x):
    return x @ parameters["kernel"] + parameters.get("bias", 0)


def gru(parameters, h, x):
    """Bahdanau et al. 2015, appendix A.1.1."""
    size = len(h)
    w, b = parameters["input"]["kernel"], parameters["input"]["bias"]
    u = parameters["recurrent_gates"]["kernel"]
    r = sigmoid(x @ w[:, :size] + b[:size] + h @ u[:, :size])
    z = sigmoid(x @ w[:, size : 2 * size] + b[size : 2 * size] + h @ u[:, size:])
    proposal = np.tanh(
        x @ w[:, 2 * size :] + b[2 * size :] + (r * h) @ parameters["recurrent_candidate"]["kernel"]
    )
    return (1 - z) * h + z * proposal


def run_cell(config, parameters, state, x):
    if config.cell == "gru":
        return gru(parameters, state, x)
    return lstm(parameters, state, x, config.forget_bias)


def output_of(config, state):
    return state if config.cell == "gru" else state[1]


def first_state(config):
    zeros = np.zeros(config.hidden_features)
    return zeros if config.cell == "gru" else (zeros, zeros)


def join_states(config, forward, backward):
    if config.cell == "gru":
        return np.concatenate([forward, backward])
    return tuple(np.concatenate(pair) for pair in zip(forward, backward, strict=True))


def encode(config, parameters, x, drop):
    """Returns the annotations of a sentence, and for each layer the state that begins the decoder.

    The state is the final state of the direction that was read last. Without attention, it contains the final
    states of both directions.
    """
    last = []
    for layer in range(config.layers):
        state, forward = first_state(config), []
        x = drop(np.array(x))
        for each in x:
            state = run_cell(config, parameters[f"forward_{layer}"]["cell"], state, each)
            forward.append(output_of(config, state))
        if config.bidirectional:
            end, state, backward = state, first_state(config), []
            for each in x[::-1]:
                state = run_cell(config, parameters[f"backward_{layer}"]["cell"], state, each)
                backward.insert(0, output_of(config, state))
            x = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
            if config.attention == "none":
                state = join_states(config, end, state)
        else:
            x = forward
        last.append(state)
    return x, last


def attend(config, parameters, query, annotations):
    """(context, weights)."""
    scores = []
    for annotation in annotations:
        if config.attention == "additive":
            hidden = np.tanh(dense(parameters["query"], query) + dense(parameters["key"], annotation))
            scores.append(hidden @ parameters["vector"][:, 0])
        elif config.attention == "general":
            scores.append(query @ dense(parameters["key"], annotation))
        else:
            scores.append(query @ annotation)
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    return sum(w * a for w, a in zip(weights, annotations, strict=True)), weights


def begin_decoder(config, parameters, last):
    """The decoder's states before its first step."""
    if config.initial_state == "copied":
        return last
    arrays = [x for state in last for x in (state if config.cell == "lstm" else [state])]
    arrays = [np.tanh(dense(parameters[f"initial_{i}"], x)) for i, x in enumerate(arrays)]
    return list(zip(arrays[::2], arrays[1::2], strict=True)) if config.cell == "lstm" else arrays


def rnn(config, parameters, source, targets, drop=nothing_dropped):
    """Source ids and decoder input ids -> logits [L, V] and attention weights [L, M] or None."""
    target_table = parameters["target_embedding"]["table"]
    source_table = target_table if config.share_embeddings else parameters["source_embedding"]["table"]
    output_table = target_table if config.tie_output else parameters["output_table"]["table"]
    annotations, last = encode(config, parameters["encoder"], list(source_table[source]), drop)
    decoder = parameters["decoder"]
    states, fed = begin_decoder(config, decoder, last), np.zeros(config.output_features)
    none = config.attention == "none"
    logits, weights = [], []
    for token in targets:
        embedding, before = target_table[token], output_of(config, states[-1])
        x = [embedding]
        if config.query == "previous" and not none:
            context, attention = attend(config, decoder.get("attention"), before, annotations)
            x.append(context)
        x = np.concatenate([*x, fed] if config.input_feeding else x)
        for layer in range(config.layers):
            states[layer] = run_cell(config, decoder[f"cells_{layer}"], states[layer], drop(x))
            x = output_of(config, states[layer])
        if config.query == "current" and not none:
            context, attention = attend(config, decoder.get("attention"), x, annotations)
        state = before if config.output_state == "previous" else x
        contexts = [] if none else [context]
        if config.output == "tanh":
            fed = np.tanh(dense(decoder["output"], np.concatenate([*contexts, state])))
        else:
            fed = dense(decoder["output"], np.concatenate([state, embedding, *contexts]))
        if config.output == "maxout":
            fed = np.maximum(fed[0::2], fed[1::2])
        fed = drop(fed)
        logits.append(output_table @ fed)
        weights.append(None if none else attention)
    return np.array(logits), None if none else np.array(weights)
