"""Export of a run: a portable folder with a model card, and StableHLO programs."""
