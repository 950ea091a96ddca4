"""Checkpoints of a run: written in the background, verified before use."""
