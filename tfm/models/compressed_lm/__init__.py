"""A language model of long texts with local and memory-compressed attention (T-DMCA, Liu et al. 2018).

Layers alternate between two kinds of self-attention. Local attention (L) sees the earlier tokens of a block
of positions. Memory-compressed attention (M) sees all earlier tokens through keys and values that a
convolution compresses. Both kinds compute and cache only the keys that they see. For a row of N tokens, time
and memory grow with N * block and N * N / R, and a decoded token needs a block of keys or N / R keys.

Shape letters as in `tfm.layers`. R is the kernel and stride of the convolution, C is the number of compressed
keys, S is the number of slots of a hypothesis, and G is the number of heads of keys and values.
"""

from tfm.models.compressed_lm.model import CompressedLM, CompressedLMConfig

Config = CompressedLMConfig
Model = CompressedLM

__all__ = ["CompressedLM", "CompressedLMConfig", "Config", "Model"]
