"""Products of activations and kernels that are fast on a CPU, and the memory layout of kernels for them.

Other devices use `jax.lax.dot_general`. With the optional package `tfm-native`, oneDNN computes some of them.
"""

from tfm.matmul.layouts import count_input_axes as count_input_axes
from tfm.matmul.layouts import inputs_first as inputs_first
from tfm.matmul.layouts import outputs_first as outputs_first
from tfm.matmul.products import MAX_SKINNY_ROWS as MAX_SKINNY_ROWS
from tfm.matmul.products import bfloat16_library as bfloat16_library
from tfm.matmul.products import dot_general as dot_general
