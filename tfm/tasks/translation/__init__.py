"""Translation of sentences with a sequence-to-sequence model. See `task`, `pipeline` and `report`."""

from tfm.data.config import VOCABULARY_FILE
from tfm.tasks.translation.task import Config, Translation, create, fingerprint, plan

__all__ = ["VOCABULARY_FILE", "Config", "Translation", "create", "fingerprint", "plan"]
