"""The model of Luong et al. 2015: stacked LSTMs with global attention after each step, and input feeding.

It is the model of `tfm.systems.rnn_seq2seq` with other defaults. See `RNNConfig` for the fields.
"""

import dataclasses

from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.model import RNNSeq2Seq


@dataclasses.dataclass(frozen=True)
class LuongConfig(RNNConfig):
    """The config of Luong et al. 2015 (section 4.1): global attention, the score "general" and input feeding.

    Their best single model has local attention, which tfm does not implement.
    """

    name: str = "rnn_luong"
    cell: str = "lstm"
    layers: int = 4
    bidirectional: bool = False
    embedding_features: int = 1000
    initial_state: str = "copied"
    attention: str = "general"
    query: str = "current"
    input_feeding: bool = True
    output: str = "tanh"
    output_state: str = "current"
    output_features: int = 1000
    initialization: str = "uniform"
    dropout: float = 0.2


Config = LuongConfig
Model = RNNSeq2Seq
