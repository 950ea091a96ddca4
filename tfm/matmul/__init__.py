"""Products of activations and weights that suit a CPU, and the memory layout of weights for them.

Other devices use `jax.lax.dot_general`. The optional package `tfm-native` lets oneDNN compute some products.
"""

from tfm.matmul.layouts import count_input_axes as count_input_axes
from tfm.matmul.layouts import inputs_first as inputs_first
from tfm.matmul.layouts import outputs_first as outputs_first
from tfm.matmul.products import MAX_SKINNY_ROWS as MAX_SKINNY_ROWS
from tfm.matmul.products import bfloat16_library as bfloat16_library
from tfm.matmul.products import dot_general as dot_general
