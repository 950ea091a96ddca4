"""Language modelling of documents with a decoder-only model. See `task`, `data` and `report`."""

from tfm.tasks.language_modeling.task import Config, LanguageModeling, create, fingerprint, plan

__all__ = ["Config", "LanguageModeling", "create", "fingerprint", "plan"]
