"""Sentence pairs to batches, in the order a reader meets them: source, tokenizer, cache, batches.

Host side: NumPy only, JAX is never imported here.
"""
