"""What makes a run durable: checkpoints, manifests, lock, preemption, provenance, files, memory."""
