"""8-bit quantization of dense layers and logits for decoding.

A product x W is quantized "vector-wise", as in Dettmers et al. 2022. Each row of x, and the weights of each
output of W, are divided by a scale (their largest magnitude / 127) and rounded to integers. The products of
these integers are summed exactly, and the sums are multiplied by both scales. On a CPU, oneDNN computes the
sums if it is installed. Otherwise JAX computes the same sums.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm import backend
from tfm.layers.embedding import Embedding
from tfm.matmul import onednn

COLLECTION = "quantized"  # the Flax collection {path of a parameter: QuantizedWeights}
MAX_INT8 = 127  # -128 is not used, so that the range is symmetric.
UINT8_OFFSET = 128  # tfm_native adds this to 8-bit inputs, because oneDNN is fastest with unsigned inputs.


@flax.struct.dataclass
class QuantizedWeights:
    """An 8-bit approximation of a matrix of weights, values * scales[:, None].

    Attributes:
      values: int8 [outputs, inputs].
      scales: float32 [outputs].
      excess: int32 [outputs]. Adding `UINT8_OFFSET` to the inputs increases each sum of products by this.
    """

    values: jax.Array
    scales: jax.Array
    excess: jax.Array

    def multiply(self, x: jax.Array) -> jax.Array:
        """Quantizes x [..., inputs] and returns the product with the weights, float32 [..., outputs]."""
        rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        if backend.is_cpu() and rows.shape[1] <= onednn.MAX_INPUTS and onednn.multiplies_int8():
            product = onednn.multiply_int8(rows, self.values, self.scales, self.excess)
        else:
            values, scales = quantize_rows(rows)
            numbers = (((1,), (1,)), ((), ()))
            sums = jax.lax.dot_general(values, self.values, numbers, preferred_element_type=jnp.int32)
            product = sums.astype(jnp.float32) * (scales[:, None] * self.scales)
        return product.reshape(*x.shape[:-1], len(self.scales))


def quantize_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Quantizes each row of a matrix by its largest magnitude.

    Args:
      x: float32 [rows, columns].

    Returns:
      (values int8 [rows, columns], scales float32 [rows]). values * scales[:, None] approximates x. If a row
      contains NaN or an infinite number, its scale is NaN.
    """
    largest = jnp.max(jnp.abs(x), axis=1)
    scales = jnp.where(largest == 0, 1.0, largest / MAX_INT8)
    # On a CPU, the maximum of many numbers ignores NaN.
    scales = jnp.where(jnp.isfinite(x).all(axis=1), scales, jnp.nan)
    return jnp.round(x / scales[:, None]).astype(jnp.int8), scales


def quantize_weights(weights: jax.Array) -> QuantizedWeights:
    """Quantizes a matrix of weights, float [outputs, inputs], with one scale for each output."""
    values, scales = quantize_rows(weights.astype(jnp.float32))
    return QuantizedWeights(values, scales, UINT8_OFFSET * values.astype(jnp.int32).sum(1))


@flax.struct.dataclass
class QuantizedParams:
    """Parameters together with 8-bit copies of the matrices that dense layers and logits multiply with.

    Attributes:
      params: A tree of parameters.
      quantized: A tree with the same module and parameter names, whose leaves are `QuantizedWeights`. It
        contains only the quantized parameters.
    """

    params: Any
    quantized: Any

    def variables(self) -> dict[str, Any]:
        """Returns the variables for `apply` inside of `nn.intercept_methods(multiply_quantized)`."""
        return {"params": self.params, COLLECTION: self.quantized}


def quantize_params(params: Any) -> QuantizedParams:
    """Quantizes every kernel, and every embedding matrix that computes logits.

    If the module of a kernel has the name "output", such as the last projection of attention, all axes except
    the last are inputs. Other kernels have a single input axis. A dense layer that contracts other axes
    multiplies with its original kernel.
    """
    flat = flatten_dict(params)
    matrices = {path: _as_matrix(path, flat) for path in flat}
    quantized = _quantize_all({path: x for path, x in matrices.items() if x is not None})
    return QuantizedParams(params, unflatten_dict(quantized))


_quantize_all = jax.jit(lambda matrices: {path: quantize_weights(x) for path, x in matrices.items()})


def _as_matrix(path, flat):
    """Returns the parameter with this path as a matrix [outputs, inputs], or None if it is not quantized."""
    *modules, name = path
    weights = flat[path]
    if name == "kernel" and weights.ndim > 1:
        inputs = weights.ndim - 1 if modules[-1:] == ["output"] else 1
        return weights.reshape(math.prod(weights.shape[:inputs]), -1).T
    computes_logits = name == "output" or (name == "table" and (*modules, "output") not in flat)
    return weights if modules[-1:] == ["embedding"] and computes_logits else None


def multiply_quantized(
    next_function: Callable, arguments: tuple, keywords: dict[str, Any], context: nn.module.InterceptorContext
) -> Any:
    """Makes dense layers and logits multiply with their quantized weights, if they have such weights.

    This is an interceptor for `nn.intercept_methods`. All other methods run unchanged.
    """
    module, result = context.module, None
    if isinstance(module, nn.Dense | nn.DenseGeneral) and context.method_name == "__call__":
        result = _dense(module, *arguments, **keywords)
    if isinstance(module, Embedding) and context.method_name == "logits":
        result = _logits(module, *arguments, **keywords)
    return next_function(*arguments, **keywords) if result is None else result


def _dense(module, inputs):
    """Computes a dense layer with its quantized weights: [..., inputs] -> [..., outputs].

    Returns None if the layer has no quantized weights, or if they do not fit the axes that it contracts.
    """
    weights = module.get_variable(COLLECTION, "kernel")
    if weights is None:
        return None
    axes = getattr(module, "axis", -1)
    count = len(axes) if isinstance(axes, tuple) else 1
    kernel = module.get_variable("params", "kernel")
    features = kernel.shape[count:]
    x = inputs.reshape(*inputs.shape[: inputs.ndim - count], -1)
    last = axes in (-1, (-1,), tuple(range(-count, 0)))
    if not last or weights.values.shape != (math.prod(features), x.shape[-1]):
        return None
    product = weights.multiply(x).reshape(*x.shape[:-1], *features)
    if module.use_bias:
        product += module.get_variable("params", "bias")
    return product.astype(module.dtype or jnp.result_type(inputs, kernel))


def _logits(module, x):
    """Returns the logits [..., V] of x [..., D] computed with the quantized matrix, or None without one."""
    weights = module.get_variable(COLLECTION, "table" if module.tied else "output")
    if weights is None:
        return None
    logits = weights.multiply(x).astype(module.dtype)
    if module.use_bias:
        logits += module.get_variable("params", "bias").astype(module.dtype)
    return logits
