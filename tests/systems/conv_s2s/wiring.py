"""The cases of the config of ConvS2S."""

from tests.tasks.translation.wiring import observe_model
from tests.wiring.case import Case
from tfm.systems.conv_s2s.model import ConvS2SConfig

MODEL = ConvS2SConfig(encoder="1x8/3", decoder="1x8/3", embedding_features=6, max_positions=16, dropout=0.1)
CASES = [Case(MODEL, observe_model)]
VALUES = {ConvS2SConfig: {"encoder": "1x8/2", "decoder": "1x8/2"}}
