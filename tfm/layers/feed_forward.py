"""The position-wise feed-forward network (section 3.3).

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.layers import activations
from tfm.layers.dense import KERNEL_INIT, dense, scale_initializer
from tfm.layers.dropout import Dropout
from tfm.layers.parameter_axes import declare_axes

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(nn.gelu, approximate=True),  # of Hendrycks and Gimpel 2016, GPT-2 and BERT
    "swish": nn.swish,
    "sigmoid": nn.sigmoid,
}


@declare_axes(
    {
        "hidden/kernel": ("model", "hidden"),
        "hidden/bias": ("hidden",),
        "gate/kernel": ("model", "hidden"),
        "gate/bias": ("hidden",),
        "output/kernel": ("hidden", "model"),
    }
)
class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation 2; [..., D] -> [..., D].

    Gated (Shazeer 2020), the activation of one product is multiplied by another: (f(x W_1 + b_1) * (x W + b))
    W_2 + b_2, GLU with sigmoid, SwiGLU with swish, GEGLU with gelu, ReGLU with relu.

    Attributes:
      features: D.
      hidden: F.
      activation: a name in `ACTIVATIONS`, or a function of arrays; relu in the paper.
      dropout_rate: of the hidden layer (0 in the paper).
      dtype: compute dtype.
      kernel_init, output_init: initializers of the kernels of the hidden layer, the gate's among them, and of
        the output layer.
      gated: whether there is a gate.
    """

    features: int
    hidden: int
    activation: str | Callable[[jax.Array], jax.Array] = "relu"
    dropout_rate: float = 0.0
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = KERNEL_INIT
    output_init: Initializer = KERNEL_INIT
    gated: bool = False

    @nn.nowrap
    def scale_initialization(self, factor: float) -> "FeedForward":
        """A copy whose kernels begin `factor` times as large, as in DeepNorm."""
        return self.clone(
            kernel_init=scale_initializer(self.kernel_init, factor),
            output_init=scale_initializer(self.output_init, factor),
        )

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        activation = self.activation if callable(self.activation) else ACTIVATIONS.get(self.activation)
        if activation is None:
            expected = f"a function or one of {(*ACTIVATIONS,)}"
            raise ValueError(f"activation must be {expected}, got {self.activation!r}")
        make = functools.partial(dense, self.hidden, kernel_init=self.kernel_init, dtype=self.dtype)
        hidden = activation(make(name="hidden")(x))
        if self.gated:
            hidden = hidden * make(name="gate")(x)
        x = activations.observe(self, "hidden", hidden, "BLF")
        x = Dropout(self.dropout_rate)(x, train=train)
        return dense(self.features, kernel_init=self.output_init, dtype=self.dtype, name="output")(x)
