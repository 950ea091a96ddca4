"""Language modelling: documents, a decoder alone, bits per byte. See `task`, `data`, `report`."""

from tfm.tasks.language_modeling.task import Config, LanguageModeling, create, fingerprint, plan_model

__all__ = ["Config", "LanguageModeling", "create", "fingerprint", "plan_model"]
