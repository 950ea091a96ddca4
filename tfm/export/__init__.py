"""Export of a run: a portable folder with a model card."""

from tfm.export.importing import import_parameters

__all__ = ["import_parameters"]
