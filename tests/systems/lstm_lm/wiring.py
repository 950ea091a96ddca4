"""The case of the config of LSTM language models."""

from tests.tasks.wiring_language_modeling import observe_model
from tests.wiring.case import Case
from tfm.systems.lstm_lm.model import LSTMConfig

CASES = [Case(LSTMConfig(features=6), observe_model)]
VALUES: dict[type, dict] = {}
