"""The cases of the config of the Universal Transformer."""

import dataclasses

from tests.tasks.translation.wiring import TRANSFORMER, observe_model
from tests.wiring.case import make_cases
from tfm.systems.universal.model import UniversalConfig

MODEL = UniversalConfig(**{**dataclasses.asdict(TRANSFORMER), "name": "universal"})
CASES = make_cases(MODEL, observe_model, {"positions": "learned"}, {"halting": True})
VALUES: dict[type, dict] = {}
