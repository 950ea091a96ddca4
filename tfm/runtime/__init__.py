"""Checkpoints, manifests, lock, preemption, provenance, files and memory of a run."""
