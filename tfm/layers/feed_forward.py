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

from tfm.layers.dense import KERNEL_INIT, dense, scale_initializer
from tfm.layers.dropout import Dropout
from tfm.layers.observe import observe
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
    """Computes FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation 2: [..., D] -> [..., D].

    With a gate (Shazeer 2020), it computes (f(x W_1 + b_1) * (x W + b)) W_2 + b_2: GLU with the activation
    sigmoid, SwiGLU with swish, GEGLU with gelu, ReGLU with relu.

    Attributes:
      features: Width of the output, D.
      hidden: Width of the hidden layer, F.
      activation: Name in `ACTIVATIONS`, or a function of arrays. The paper uses relu.
      dropout_rate: Dropout rate of the hidden layer.
      dtype: Compute dtype.
      kernel_init, output_init: Initializers of the kernels of hidden layer and gate, and of the output.
      gated: Whether there is a gate.
      init_scale: Factor of all initial kernels, beta of DeepNorm.
      make_dense: Makes each of the projections, called like `tfm.layers.dense.dense`.
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

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        activation = self.activation if callable(self.activation) else ACTIVATIONS.get(self.activation)
        if activation is None:
            expected = f"a function or one of {(*ACTIVATIONS,)}"
            raise ValueError(f"activation must be {expected}, got {self.activation!r}")
        hidden_init = scale_initializer(self.kernel_init, self.init_scale)
        output_init = scale_initializer(self.output_init, self.init_scale)
        project = functools.partial(self.make_dense, self.hidden, kernel_init=hidden_init, dtype=self.dtype)
        hidden = activation(project(name="hidden")(x))
        if self.gated:
            hidden = hidden * project(name="gate")(x)
        x = observe(self, "hidden", hidden, "BLF")
        x = Dropout(self.dropout_rate)(x, train=train)
        return self.make_dense(self.features, kernel_init=output_init, dtype=self.dtype, name="output")(x)
