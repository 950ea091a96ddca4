"""The model of Luong et al. 2015: stacked LSTMs with global attention after each step, and input feeding.

It is `tfm.models.rnn_seq2seq` with other defaults: `RNNConfig` says what each field means.
"""

import dataclasses
import functools

from tfm.fields import field_like
from tfm.models.rnn_seq2seq import RNNConfig, RNNSeq2Seq

_default = functools.partial(field_like, RNNConfig)


@dataclasses.dataclass(frozen=True)
class LuongConfig(RNNConfig):
    """The best single model of Luong et al. 2015, section 4.1, with the score "general"."""

    name: str = _default("name", "rnn_luong")
    cell: str = _default("cell", "lstm")
    layers: int = _default("layers", 4)
    bidirectional: bool = _default("bidirectional", False)
    embedding_features: int = _default("embedding_features", 1000)
    initial_state: str = _default("initial_state", "copied")
    attention: str = _default("attention", "general")
    query: str = _default("query", "current")
    input_feeding: bool = _default("input_feeding", True)
    output: str = _default("output", "tanh")
    output_state: str = _default("output_state", "current")
    output_features: int = _default("output_features", 1000)
    initialization: str = _default("initialization", "uniform")
    dropout: float = _default("dropout", 0.2)


Config = LuongConfig
Model = RNNSeq2Seq
