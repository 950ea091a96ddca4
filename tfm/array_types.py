"""The array type of arguments with shapes, `Float[Array, "*batch L H K"]`: a JAX or a NumPy array.

Results are JAX arrays, `Float[jax.Array, "*batch L H V"]`. The annotations are jaxtyping's. Nothing reads
them at run time; tests check them, see tests/support/shape_checks.py.
"""

import jax
import numpy as np

Array = jax.Array | np.ndarray
