"""Terms of the loss that modules inside a model compute, such as the cost of pondering."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

LOSS_TERMS = "loss_terms"  # Flax collection of the terms. It is not part of the state of a model.


def add_loss_term(module: nn.Module, name: str, total: jax.Array, count: jax.Array) -> None:
    """Adds a term to the loss of the task that trains the model around a module.

    Training descends total / count, where both are first added over all rows of a step. The name of the term
    is the path of the module and `name`, such as "encoder.output.ponder". Outside of training, this function
    does nothing.

    Args:
      module: A bound module. The sums and the counts of several calls are added.
      name: Name of the term within the module.
      total: Sum over the rows of the batch. Padding must not contribute to it.
      count: Number of summands.
    """
    if module.is_initializing():  # Otherwise, the terms would become part of the state.
        return
    pair = jnp.float32(total), jnp.float32(count)
    add = functools.partial(jax.tree.map, jnp.add)
    module.sow(LOSS_TERMS, name, pair, init_fn=lambda: (0.0, 0.0), reduce_fn=add)
