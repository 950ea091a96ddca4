"""The position-wise feed-forward network (section 3.3).

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.layers.dense import KERNEL_INIT, dense, scale_initializer
from tfm.layers.observe import observe
from tfm.layers.residual import Dropout

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    # The approximation of Hendrycks and Gimpel 2016 in GPT-2 and BERT.
    "gelu_tanh": functools.partial(nn.gelu, approximate=True),
    "swish": nn.swish,
    "sigmoid": nn.sigmoid,
}


class FeedForward(nn.Module):
    """The feed-forward network FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2).

    With a gate (Shazeer 2020), it computes (f(x W_1 + b_1) * (x W + b)) W_2 + b_2 with the activation f. This
    is GLU for sigmoid, SwiGLU for swish, GEGLU for gelu and ReGLU for relu.

    Attributes:
      features: Width of the output, D.
      hidden: Width of the hidden layer, F.
      activation: Name of a function in `ACTIVATIONS`, or a function of arrays. The paper uses relu.
      dropout_rate: Dropout rate of the hidden layer.
      dtype: Compute dtype.
      kernel_init: Initializer of the kernels W_1 and, with a gate, W.
      output_init: Initializer of the kernel W_2.
      gated: Whether the network has a gate.
      init_scale: Factor of all initial kernels, beta of DeepNorm.
      make_dense: Function that returns one of the projections. It is called like `tfm.layers.dense.dense`.
    """

    features: int
    hidden: int
    activation: str | Callable[[jax.Array], jax.Array] = "relu"
    dropout_rate: float = 0.0
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = KERNEL_INIT
    output_init: Initializer = KERNEL_INIT
    gated: bool = False
    init_scale: float = 1.0
    make_dense: Callable[..., nn.Module] = dense
    parameter_axes: ClassVar = {
        "hidden/kernel": ("model", "hidden"),
        "hidden/bias": ("hidden",),
        "gate/kernel": ("model", "hidden"),
        "gate/bias": ("hidden",),
        "output/kernel": ("hidden", "model"),
    }

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps x [..., D] to [..., D]. `train` turns dropout on."""
        activation = self.activation if callable(self.activation) else ACTIVATIONS.get(self.activation)
        if activation is None:
            expected = f"a function or one of {(*ACTIVATIONS,)}"
            raise ValueError(f"Expected activation to be {expected}, got {self.activation!r}.")
        hidden_init = scale_initializer(self.kernel_init, self.init_scale)
        output_init = scale_initializer(self.output_init, self.init_scale)
        project = functools.partial(self.make_dense, self.hidden, kernel_init=hidden_init, dtype=self.dtype)
        hidden = activation(project(name="hidden")(x))
        if self.gated:
            hidden = hidden * project(name="gate")(x)
        x = observe(self, "hidden", hidden, "BLF")
        x = Dropout(self.dropout_rate)(x, train=train)
        return self.make_dense(self.features, kernel_init=output_init, dtype=self.dtype, name="output")(x)
