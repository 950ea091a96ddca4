"""The array type of signatures with shapes, `Float[Array, "*batch L H K"]`: a JAX or a NumPy array.

The annotations are jaxtyping's. Nothing reads them at run time; tests check them, see
tests/helpers/shape_checks.py.
"""

import jax
import numpy as np

Array = jax.Array | np.ndarray
