"""The position-wise feed-forward network (section 3.3).

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.layers.dense import KERNEL_INIT, convolution_initializer, dense, scale_initializer
from tfm.layers.neighbours import Gather
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

    "Another way of describing this is as two convolutions with kernel size 1" (section 3.3). With a wider
    kernel, W_1, W and W_2 read R neighbouring positions instead of one.

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
      kernel: Width of the convolutions in positions, R. 1 means equation 2.
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
    kernel: int = 1

    @property
    def parameter_axes(self) -> dict[str, tuple[str | None, ...]]:
        """Names of the axes of the parameters, see `tfm.devices.mesh`."""
        window = () if self.kernel == 1 else (None,)
        return {
            "hidden/kernel": (*window, "model", "hidden"),
            "hidden/bias": ("hidden",),
            "gate/kernel": (*window, "model", "hidden"),
            "gate/bias": ("hidden",),
            "output/kernel": (*window, "hidden", "model"),
        }

    @nn.compact
    def __call__(self, x: jax.Array, *, gather: Gather | None = None, train: bool) -> jax.Array:
        """Maps x [..., D] to [..., D].

        Args:
          x: [..., D], or [B, L, D] for a kernel wider than 1.
          gather: Function that collects the R positions that each position sees, [B, L, C] -> [B, L, R, C].
            It is called for x, then for the hidden layer. Only for a kernel wider than 1.
          train: Whether dropout is on.
        """
        activation = self.activation if callable(self.activation) else ACTIVATIONS.get(self.activation)
        if activation is None:
            expected = f"a function or one of {(*ACTIVATIONS,)}"
            raise ValueError(f"Expected activation to be {expected}, got {self.activation!r}.")
        if self.kernel > 1 and gather is None:
            raise ValueError(
                f"A feed-forward network with kernel {self.kernel} needs the argument gather, which "
                "tfm.layers.Layer passes. Pass it, or use kernel 1."
            )
        project = functools.partial(self._project, self.hidden, init=self.kernel_init)
        inputs = x if gather is None else gather(x)
        hidden = activation(project(name="hidden")(inputs))
        if self.gated:
            hidden = hidden * project(name="gate")(inputs)
        hidden = observe(self, "hidden", hidden, "BLF")
        hidden = Dropout(self.dropout_rate)(hidden, train=train)
        inputs = hidden if gather is None else gather(hidden)
        return self._project(self.features, init=self.output_init, name="output")(inputs)

    @nn.nowrap
    def _project(self, features: int, *, init: Initializer, name: str) -> nn.Module:
        """Returns a projection of [..., C], or of [..., R, C] for a kernel wider than 1, to `features`."""
        options: dict[str, Any] = {"dtype": self.dtype, "name": name}
        if self.kernel > 1:
            options["axis"] = (-2, -1)
            init = convolution_initializer(init, self.kernel)
        return self.make_dense(features, kernel_init=scale_initializer(init, self.init_scale), **options)
