"""Metrics that compare outputs with references. The modules use NumPy and never import JAX."""
