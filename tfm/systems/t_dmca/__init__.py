"""A language model of long texts: the Transformer decoder with memory-compressed attention (T-DMCA).

See Liu et al. 2018, section 4.2.3. Layers alternate between two kinds of self-attention. Local attention (L)
sees the earlier tokens of a block of positions. Memory-compressed attention (M) sees all completed windows of
R earlier tokens, through one key and one value that a convolution computes from each window. So a token does
not see up to R - 1 of the newest tokens in M, but sees them in L. Both kinds compute and cache only the keys
that they see. For a row of N tokens, time and memory grow with N * block in L, and with N * N /
R in M. A decoded token reads one block of keys in L, and N / R keys in M.

Shape letters as in `tfm.layers`. P is the number of positions of a prefix, and P' the number of positions
that are appended to it. R is the kernel and stride of the convolution, C is the number of compressed keys, S
is the number of slots of a hypothesis, and G is the number of heads of keys and values.
"""

from tfm.systems.t_dmca.model import CompressedLM, CompressedLMConfig

Config = CompressedLMConfig
Model = CompressedLM

__all__ = ["CompressedLM", "CompressedLMConfig", "Config", "Model"]
