"""Time and memory of attention over the length of a row: python -m benchmarks.attention_length

For each length, mask and implementation: CPU seconds of a forward and backward pass of the attention of one
row, and MiB of its temporary arrays, with 8 heads of 64 features as in the base model. Prints JSON lines.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.layer_costs import measure_time  # with its flags --lengths and --repeats
from tfm.attention import dot_product_attention
from tfm.masks import AttentionMask

FLAGS = flags.FLAGS
flags.DEFINE_list("implementations", ["None", "xla", "blockwise"], "Implementations of attention.")
HEADS, FEATURES = 8, 64
MASKS = {
    "none": None,
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(causal=True, window=512),
}


def main(_: list[str]) -> None:
    for length in map(int, FLAGS.lengths):
        shape = (3, 1, length, HEADS, FEATURES)
        inputs = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
        for (name, mask), implementation in [
            (item, each) for item in MASKS.items() for each in FLAGS.implementations
        ]:
            attend = functools.partial(
                dot_product_attention,
                mask=mask,
                implementation=None if implementation == "None" else implementation,
            )
            gradient = jax.jit(jax.grad(lambda x, attend=attend: (attend(*x) ** 2).sum()))
            compiled = gradient.lower(inputs).compile()
            row = {
                "length": length,
                "mask": name,
                "implementation": implementation,
                "seconds": round(measure_time(functools.partial(compiled, inputs), FLAGS.repeats), 4),
                "temporary_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    app.run(main)
