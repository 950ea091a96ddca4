"""The Self-Attention GAN once more, in NumPy float64, from the parameters and the state of the Flax one."""

import collections

import numpy as np

from tests.references.numpy_convolution import convolve, double, pool
from tests.references.numpy_transformer import wide


def relu(x):
    return np.maximum(x, 0)


class Reference:
    """Both networks.

    The singular vectors of each call are computed for the first parameters and kept for later parameters,
    because no gradient reaches them.

    Args:
      state: the collection "batch_stats".
      weights: [B], 0 for padding. None uses the stored statistics of batch norms and changes no state.
      attention_map: height of the feature map with self-attention.
    """

    def __init__(self, state, weights, attention_map):
        self._state, self._weights, self._attention_map = state, weights, attention_map
        self._vectors = {}
        self._calls = collections.Counter()

    def __call__(self, params, noise, labels, images):
        """Returns the logits [B] of generated and of real images, and the generated images."""
        self._calls.clear()
        drawn = self._generate(params["generator"], noise, labels)
        fake = self._judge(params["discriminator"], drawn, labels)
        return fake, self._judge(params["discriminator"], images, labels), drawn

    def last_vector(self, *path):
        """Returns the vector of the power iteration after all calls."""
        return self._vectors[path, self._calls[path] - 1][0]

    def _normalize(self, kernel, *path):
        """Divides a kernel by the estimate of its largest singular value after one step from the state."""
        matrix, call = wide(kernel).reshape(-1, kernel.shape[-1]), self._calls[path]
        self._calls[path] += 1
        if (path, call) not in self._vectors:
            *parents, name = path
            state = self._state
            for parent in parents:
                state = state[parent]
            (key,) = [key for key in state[f"{name}_norm"] if key.endswith("/u")]
            u = wide(state[f"{name}_norm"][key])[0]
            if call and self._weights is not None:
                u = self._vectors[path, call - 1][0]
            v = matrix @ u / np.linalg.norm(matrix @ u)
            self._vectors[path, call] = v @ matrix / np.linalg.norm(v @ matrix), v
        u, v = self._vectors[path, call]
        return wide(kernel) / (v @ matrix @ u)

    def _convolve(self, params, x, *path):
        params = params[path[-1]]
        return convolve({**params, "kernel": self._normalize(params["kernel"], *path)}, x)

    def _batch_norm(self, state, x):
        if self._weights is None:
            mean, variance = wide(state["mean"]), wide(state["variance"])
        else:
            real = x[self._weights > 0]
            mean, variance = real.mean((0, 1, 2)), real.var((0, 1, 2))
        return (x - mean) / np.sqrt(variance + 1e-5)

    def _conditional_norm(self, params, x, labels, block, name):
        x = self._batch_norm(self._state["generator"][block][name]["norm"], x)
        scales, biases = (wide(params[name][table]["embedding"])[labels] for table in ("scales", "biases"))
        return x * scales[:, None, None] + biases[:, None, None]

    def _attend(self, params, x, network):
        """Adds the attended values. A query reads the maxima of areas of 2 x 2 pixels."""
        path = network, "attention"
        params = params["attention"]
        query = self._convolve(params, x, *path, "query")
        key = pool(self._convolve(params, x, *path, "key"), np.max)
        value = pool(self._convolve(params, x, *path, "value"), np.max)
        mixed = np.zeros((*x.shape[:3], value.shape[-1]))
        for b, row, column in np.ndindex(*x.shape[:3]):
            logits = key[b].reshape(-1, key.shape[-1]) @ query[b, row, column]
            weights = np.exp(logits - logits.max())
            mixed[b, row, column] = weights / weights.sum() @ value[b].reshape(-1, value.shape[-1])
        return x + wide(params["gamma"]) * self._convolve(params, mixed, *path, "output")

    def _generate(self, params, noise, labels):
        blocks = sorted((name for name in params if name.startswith("block_")), reverse=True)
        kernel = self._normalize(params["input"]["kernel"], "generator", "input")
        x = wide(noise) @ kernel + wide(params["input"]["bias"])
        features = params[blocks[0]]["norm_1"]["scales"]["embedding"].shape[1]
        side = round((x.shape[1] / features) ** 0.5)
        x = x.reshape(len(x), side, side, features)
        for name in blocks:
            block, path = params[name], ("generator", name)
            y = double(relu(self._conditional_norm(block, x, labels, name, "norm_1")))
            y = self._convolve(block, y, *path, "conv_1")
            y = relu(self._conditional_norm(block, y, labels, name, "norm_2"))
            y = self._convolve(block, y, *path, "conv_2")
            x = y + self._convolve(block, double(x), *path, "shortcut")
            if x.shape[1] == self._attention_map:
                x = self._attend(params, x, "generator")
        x = self._batch_norm(self._state["generator"]["norm"], x)
        x = relu(x * wide(params["norm"]["scale"]) + wide(params["norm"]["bias"]))
        return np.tanh(self._convolve(params, x, "generator", "output"))

    def _judge(self, params, x, labels):
        for name in [*sorted(name for name in params if name.startswith("block_")), "last_block"]:
            block, path = params[name], ("discriminator", name)
            y = x if name == "block_0" else relu(x)
            y = self._convolve(block, y, *path, "conv_1")
            y = self._convolve(block, relu(y), *path, "conv_2")
            if name == "last_block":
                x = x + y
            else:
                x = pool(y + self._convolve(block, x, *path, "shortcut"), np.mean)
            if x.shape[1] == self._attention_map:
                x = self._attend(params, x, "discriminator")
        sums = relu(x).sum((1, 2))
        output, table = params["output"], params["labels"]["embedding"]
        kernel = self._normalize(output["kernel"], "discriminator", "output")
        rows = self._normalize(table, "discriminator", "labels")[labels]
        return sums @ kernel[:, 0] + wide(output["bias"])[0] + (sums * rows).sum(-1)
