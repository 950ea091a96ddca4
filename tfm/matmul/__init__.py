"""Products of activations and weights that are fast on a CPU.

Other devices use `jax.lax.dot_general`. With the optional package `tfm-native`, oneDNN computes some of them.
"""

from tfm.matmul.products import bfloat16_library as bfloat16_library
from tfm.matmul.products import decoding_products as decoding_products
from tfm.matmul.products import dot_general as dot_general
