"""Operations of a program, and the peak rates of devices."""

import math
from typing import Any

import jax

# Peak rates of dense matrix products in bfloat16, operations per second, by a part of a device's name.
PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    **dict.fromkeys(("H100", "H200", "GH200"), 989e12),
    "B200": 2250e12,
    "A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


def peak_flops() -> float:
    """Returns the peak rate of a device of this process, see `PEAK_FLOPS`, or 0 if it is unknown."""
    kind = jax.local_devices()[0].device_kind
    return next((rate for name, rate in PEAK_FLOPS.items() if name in kind), 0.0)


def count_flops(jaxpr: Any) -> float:
    """Returns the operations of the matrix products of a program. A multiply-add counts as two.

    Fused kernels and convolutions do not count. The body of a loop counts once if its length is unknown, and
    all branches count.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (inputs, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in inputs)
        parts = [x for x in jax.tree.leaves(list(equation.params.values())) if hasattr(x, "eqns")]
        total += equation.params.get("length", 1) * sum(map(count_flops, parts))
    return total
