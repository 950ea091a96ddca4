"""What happened in a run: steps that are recomputed, and profiles."""
