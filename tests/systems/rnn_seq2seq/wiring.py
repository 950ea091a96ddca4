"""The cases of the configs of recurrent encoders and decoders."""

from typing import Any

from tests.tasks.translation.wiring import observe_model
from tests.wiring.case import make_cases
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.luong import LuongConfig

SIZES: dict[str, Any] = {"layers": 1, "embedding_features": 6, "hidden_features": 5, "attention_features": 4}
SIZES |= {"output_features": 7, "dropout": 0.1, "attention": "additive", "output": "maxout"}
LSTM = {"cell": "lstm", "output_features": 6}  # 6 features, so that tie_output is valid
CASES = [
    *make_cases(RNNConfig(**SIZES), observe_model, LSTM),
    *make_cases(LuongConfig(**SIZES), observe_model, LSTM),
]
VALUES: dict[type, dict] = {}
