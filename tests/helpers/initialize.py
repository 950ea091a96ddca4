"""Random parameters of a model without its initialization, which takes longest to compile."""

import functools
from typing import Any

import jax
import numpy as np


def random_parameters(model: Any, *inputs: Any, deviation: float = 0.25, seed: int = 0) -> Any:
    """Parameters of the shapes and dtypes that `model.init` gives, none of them zero.

    Args:
      model: a module of Flax whose call takes `train`.
      inputs: of the call.
      deviation: of each number, about 1 where it scales a norm and else about 0. 1 / 4 suits 16 features.
      seed: of NumPy.
    """
    init = functools.partial(model.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, x):
        mean = float(path[-1].key == "scale")
        return rng.normal(mean, deviation, x.shape).astype(x.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)
