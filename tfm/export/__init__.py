"""Export of a run: a portable folder with a model card, and StableHLO programs."""

from tfm.export.importing import import_parameters

__all__ = ["import_parameters"]
