"""Quantization to 8 bits: dense layers and logits with weights and inputs of int8, for decoding.

A product x W is computed "vector-wise", as in Dettmers et al. 2022: each row of x and each output of W is
divided by its largest magnitude / 127 and rounded, the products of integers are summed exactly, and the sums
are multiplied by both scales. oneDNN sums on a CPU that has it (`tfm.matmul.onednn`), and JAX elsewhere: the
sums are the same.
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
from tfm.layers.parameter_axes import parameter_axes
from tfm.matmul import onednn

COLLECTION = "quantized"  # of variables: {path of a parameter: QuantizedWeights}
LARGEST = 127  # 8 bits with a sign, and no -128
SHIFT = 128  # to numbers without a sign, which oneDNN multiplies fastest


@flax.struct.dataclass
class QuantizedWeights:
    """Weights of int8, about values * scales.

    Attributes:
      values: int8 [outputs, inputs].
      scales: float32 [outputs].
      excess: int32 [outputs], what the product with shifted inputs has too much.
    """

    values: jax.Array
    scales: jax.Array
    excess: jax.Array

    def multiply(self, x: jax.Array) -> jax.Array:
        """[..., inputs] -> float32 [..., outputs]."""
        rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        values, scales = quantize_rows(rows)
        sums = self._sum_products(values)
        product = sums.astype(jnp.float32) * (scales[:, None] * self.scales)
        return product.reshape(*x.shape[:-1], -1)

    def _sum_products(self, values):
        if _suits_onednn(values):
            shifted = (values.astype(jnp.int32) + SHIFT).astype(jnp.uint8)
            return onednn.multiply(shifted, self.values) - self.excess
        numbers = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(values, self.values, numbers, preferred_element_type=jnp.int32)


def _suits_onednn(values):
    rows, inputs = values.shape
    suits = rows >= onednn.MIN_ROWS and inputs <= onednn.MAX_INPUTS
    return suits and backend.is_cpu() and onednn.is_available()


def quantize_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[rows, columns] -> int8 [rows, columns] and scales float32 [rows], whose product is about x.

    A row with NaN or an infinite number has a scale that is no number.
    """
    largest = jnp.max(jnp.abs(x), axis=1)
    scales = jnp.where(largest == 0, 1.0, largest / LARGEST)
    scales = jnp.where(jnp.isinf(scales), jnp.nan, scales)
    return jnp.round(x / scales[:, None]).astype(jnp.int8), scales


def quantize_weights(weights: jax.Array) -> QuantizedWeights:
    """Quantizes float [outputs, inputs]."""
    values, scales = quantize_rows(weights.astype(jnp.float32))
    return QuantizedWeights(values, scales, SHIFT * values.astype(jnp.int32).sum(1))


@flax.struct.dataclass
class QuantizedParams:
    """Parameters, and quantized copies of those that a dense layer or the logits multiply with.

    Attributes:
      params: a tree of parameters.
      quantized: the tree {names of modules: {name of the parameter: QuantizedWeights}}.
    """

    params: Any
    quantized: Any

    def variables(self) -> dict[str, Any]:
        """What `apply` takes, inside of `nn.intercept_methods(multiply_quantized)`."""
        return {"params": self.params, COLLECTION: self.quantized}


def quantize_params(params: Any) -> QuantizedParams:
    """Quantizes every kernel, and every matrix of embeddings that logits are computed with.

    The axes of a kernel's inputs are all but the last where its module is called "output", else the first. A
    dense layer whose kernel has others multiplies as ever.
    """
    flat = flatten_dict(params)
    matrices = {path: _as_matrix(path, flat) for path in flat}
    quantized = _quantize_all({path: x for path, x in matrices.items() if x is not None})
    return QuantizedParams(params, unflatten_dict(quantized))


_quantize_all = jax.jit(lambda matrices: {path: quantize_weights(x) for path, x in matrices.items()})


def _as_matrix(path, flat):
    """The parameter of this path as a matrix [outputs, inputs], or None where it is not quantized."""
    *modules, name = path
    weights = flat[path]
    if name == "kernel" and weights.ndim > 1:
        inputs = weights.ndim - 1 if modules[-1:] == ["output"] else 1
        return weights.reshape(math.prod(weights.shape[:inputs]), -1).T
    if parameter_axes("/".join(path), weights.ndim) == ("vocabulary", "model"):
        return None if name == "table" and (*modules, "output") in flat else weights
    return None


def multiply_quantized(
    next_function: Callable, arguments: tuple, keywords: dict[str, Any], context: nn.module.InterceptorContext
) -> Any:
    """For `nn.intercept_methods`: dense layers and logits multiply with their quantized weights, if any."""
    module, found = context.module, None
    if isinstance(module, nn.Dense | nn.DenseGeneral) and context.method_name == "__call__":
        found = _dense(module, *arguments, **keywords)
    if isinstance(module, Embedding) and context.method_name == "logits":
        found = _logits(module, *arguments, **keywords)
    return next_function(*arguments, **keywords) if found is None else found


def _dense(module, inputs):
    """[..., inputs] -> [..., outputs]; None without quantized weights of these inputs and outputs."""
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
    """[..., D] -> [..., V]; None without a quantized matrix."""
    weights = module.get_variable(COLLECTION, "table" if module.tied else "output")
    return None if weights is None else weights.multiply(x).astype(module.dtype)
