"""Metrics of outputs against references. NumPy only, never JAX."""
