"""Measures Table 1 of the paper: python -m benchmarks.layer_costs --figure=docs/figures/layer_costs.png

For causal layers of self-attention, restricted self-attention, convolution and recurrence, and for each
length of a row: CPU seconds of a forward and backward pass, bytes of its temporary arrays, and the maximum
path length between two positions. Prints one JSON line for each measurement.

The path length is measured by gradient. The gradient of the last output of a layer shows how many positions
back a layer reaches. The path between the first and the last position needs as many layers of this reach. A
recurrent layer needs as many steps, because each step reaches one position back.
"""

import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import Array
from matplotlib.figure import Figure

from tfm.layers import MultiHeadAttention
from tfm.layers.neighbours import gather_neighbours
from tfm.masks import causal_mask
from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLUMN, add_legend, plot_lines

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", [str(64 * 2**i) for i in range(8)], "Positions of a row.")
flags.DEFINE_string("figure", "", "PNG file of the figure; empty draws none.")
flags.DEFINE_integer("repeats", 3, "Measurements of a time, of which the least counts.", lower_bound=1)
FEATURES, HEADS, KERNEL, RANGE = 128, 2, 3, 64


class SelfAttention(nn.Module):
    """Each position attends to all earlier positions."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        index = jnp.arange(x.shape[1])
        return MultiHeadAttention(FEATURES, HEADS)(x, x, mask=causal_mask(index, index)[None], train=False)


class RestrictedAttention(nn.Module):
    """Each position attends to itself and the `RANGE` - 1 positions before it, in blocks of `RANGE`."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        blocks = x.reshape(-1, RANGE, FEATURES)
        previous = jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks[:-1]])
        keys = jnp.concatenate([previous, blocks], axis=1)
        distance = RANGE + jnp.arange(RANGE)[:, None] - jnp.arange(2 * RANGE)
        mask = jnp.broadcast_to((distance >= 0) & (distance < RANGE), (len(blocks), 1, RANGE, 2 * RANGE))
        mask = mask & ((jnp.arange(len(blocks)) > 0)[:, None, None, None] | (jnp.arange(2 * RANGE) >= RANGE))
        return MultiHeadAttention(FEATURES, HEADS)(blocks, keys, mask=mask, train=False).reshape(x.shape)


class Convolution(nn.Module):
    """A causal convolution of width `KERNEL`."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        windows = gather_neighbours(x, jnp.ones(x.shape[:2], int), range(1 - KERNEL, 1))
        return nn.Dense(FEATURES)(windows)


class Recurrence(nn.Module):
    """A gated recurrent unit."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.RNN(nn.GRUCell(FEATURES))(x)


class Kind(NamedTuple):
    """A kind of layer, its name and the formulas of Table 1: complexity per layer and maximum path length."""

    name: str
    module: nn.Module
    complexity: str
    path: str


KINDS = (
    Kind("self-attention", SelfAttention(), "n² d", "1"),
    Kind("recurrent", Recurrence(), "n d²", "n"),
    Kind(f"convolution of {KERNEL}", Convolution(), "k n d²", "n / k"),
    Kind(f"self-attention within {RANGE}", RestrictedAttention(), "r n d", "n / r"),
)


def compile_pass(module: nn.Module, x: Array) -> tuple[Any, Any]:
    """Returns the compiled forward and backward pass of a layer, and its variables."""
    variables = module.init(jax.random.key(0), x[:, :RANGE])

    def loss(variables: Any, x: Array) -> Array:
        return jnp.sin(module.apply(variables, x)).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x).compile(), variables


def measure_time(run: Callable[[], Any], repeats: int) -> float:
    """Returns the least CPU seconds, of all threads, that a call takes. The first call does not count."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(run())
        times.append(time.process_time() - began)
    return min(times)


def measure_reach(module: nn.Module, variables: Any, x: Array) -> int:
    """Returns how many positions back the gradient of the last output of a layer reaches."""
    gradient = jax.jit(jax.grad(lambda x: jnp.sin(module.apply(variables, x))[0, -1].sum()))(x)
    reached = np.flatnonzero(np.abs(np.asarray(gradient[0])).sum(-1) > 0)
    return x.shape[1] - 1 - int(reached[0])


def measure_path(kind: Kind, variables: Any, x: Array) -> int:
    """Returns the number of layers, or of recurrent steps, between the first and the last position."""
    short = x[:, : 4 * RANGE]
    reach = 1
    if not isinstance(kind.module, Recurrence):
        reach = measure_reach(kind.module, variables, short)
        if reach == short.shape[1] - 1:  # all positions
            return 1
    return math.ceil((x.shape[1] - 1) / reach)


def measure(lengths: list[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Yields the measurements of each kind of layer at each length."""
    for kind in KINDS:
        for length in lengths:
            x = jnp.asarray(np.random.default_rng(0).normal(size=(1, length, FEATURES)), jnp.float32)
            compiled, variables = compile_pass(kind.module, x)
            seconds = measure_time(functools.partial(compiled, variables, x), repeats)
            yield {
                "layer": kind.name,
                "length": length,
                "seconds": round(seconds, 5),
                "bytes": compiled.memory_analysis().temp_size_in_bytes,
                "path": measure_path(kind, variables, x),
            }


PANELS = {
    "seconds": "CPU seconds, both passes",
    "bytes": "bytes of temporary arrays",
    "path": "maximum path length",
}


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draws a panel for each measurement."""
    figure = Figure(figsize=(COLUMN, 6.8), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(len(PANELS), 1), PANELS.items(), strict=True):
        lines = {}
        for kind in KINDS:
            points = [(row["length"], row[name]) for row in rows if row["layer"] == kind.name]
            label = f"{kind.name}: cost {kind.complexity}, path {kind.path}"
            lines[label] = list(zip(*points, strict=True))
        drawn = plot_lines(axes, lines, "length of a row, n", title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    add_legend(figure, drawn)
    save(figure, path, dpi=SHARP_DPI)


def main(_: list[str]) -> None:
    rows = []
    for row in measure([int(length) for length in FLAGS.lengths], FLAGS.repeats):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if FLAGS.figure:
        draw(rows, FLAGS.figure)


if __name__ == "__main__":
    app.run(main)
