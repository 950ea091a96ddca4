"""The Universal Transformer in NumPy float64 for one sentence, with a loop over positions for halting.

`drop` is applied where the model has dropout.
"""

import numpy as np

from tests.references.numpy_transformer import decoder_layer, encoder_layer, nothing_dropped, wide


def signal(positions, step, features):
    """Equations 6 and 7: the sum of the sinusoids of the position and of the step, [L, D]."""
    table = np.zeros((len(positions), features))
    for j in range(features // 2):
        rate = 10_000.0 ** (2 * j / features)
        table[:, 2 * j] = np.sin(positions / rate) + np.sin(step / rate)
        table[:, 2 * j + 1] = np.cos(positions / rate) + np.cos(step / rate)
    return table


def halt(params, states, epsilon):
    """Returns the output [L, D] of states [S, L, D] by Graves' rule, and N(t) + R(t) of each position."""
    kernel, bias = wide(params["kernel"])[:, 0], wide(params["bias"])[0]
    output, costs = np.zeros(states.shape[1:]), []
    for position in range(states.shape[1]):
        total = 0.0
        for step, state in enumerate(states[:, position]):
            p = 1 / (1 + np.exp(-(state @ kernel + bias)))
            if total + p >= 1 - epsilon or step == len(states) - 1:
                output[position] += (1 - total) * state
                costs.append(step + 1 + 1 - total)
                break
            output[position] += p * state
            total += p
    return output, np.array(costs)


def learned_signal(params, positions, step):
    """The sum of the learned vectors of the position and of the step, [L, D]."""
    return wide(params["encode_positions"]["table"])[positions] + wide(params["steps"])[step - 1]


def universal_transformer(config, params, source, target, drop=nothing_dropped):
    """Returns the logits [L, V] of a source [M] and a decoder input [L], and the ponder costs of both."""
    table = wide(params["embedding"]["table"])
    features = table.shape[1]
    causal = np.tril(np.ones((len(target), len(target)), bool))[None, None]

    def run(side, tokens, depth, layer):
        x, states = drop(table[tokens] * np.sqrt(features)), []
        positions = np.arange(len(tokens))
        for step in range(1, depth + 1):
            if config.step_signal == "learned":
                x = x + learned_signal(params[side]["before_layer"], positions, step)
            else:
                x = x + signal(positions, step, features)
            x = layer(params[side]["layers_0"], x[None])[0]
            states.append(x)
        if not config.halting:
            return x, None
        return halt(params[side]["output"]["halt"], np.array(states), config.halting_epsilon)

    encoded, source_cost = run(
        "encoder", source, config.encoder_layers, lambda p, x: encoder_layer(p, x, True, drop=drop)
    )
    decoded, target_cost = run(
        "decoder",
        target,
        config.decoder_layers,
        lambda p, x: decoder_layer(p, x, encoded[None], causal, True, drop=drop),
    )
    return decoded @ table.T, source_cost, target_cost
