"""The cases of the config of ViT."""

from tests.tasks.wiring_image_classification import VIT, observe_model
from tests.wiring.case import make_cases

CASES = make_cases(
    VIT,
    observe_model,
    {"norm_order": "post"},  # required by deep_norm
    {"positions": "interleaved"},
)
VALUES: dict[type, dict] = {}
