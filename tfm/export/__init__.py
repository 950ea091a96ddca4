"""Writes a run for others: model card and StableHLO programs."""
