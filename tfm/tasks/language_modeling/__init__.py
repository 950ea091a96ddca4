"""Language modelling: documents, a decoder alone, bits per byte. See `task`, `data`, `report`."""

from tfm.tasks.language_modeling.task import Config, LanguageModeling, create, fingerprint

__all__ = ["Config", "LanguageModeling", "create", "fingerprint"]
