"""The one place that decides between equal implementations of which one suits a CPU better."""

import jax


def is_cpu() -> bool:
    """Whether programs run on a CPU by default; asked when a program is traced, not when it runs.

    `tfm.dropout`, `tfm.layers.matmul` and `tfm.search.top_k` have an implementation for CPUs. Everywhere else
    they use JAX's own, and so does a program that is exported from an accelerator's host.
    """
    return jax.default_backend() == "cpu"
