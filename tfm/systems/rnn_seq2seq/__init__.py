"""A recurrent encoder and decoder with attention (Bahdanau et al. 2015, "RNNsearch"), and variants of it.

The defaults of `RNNConfig` describe the model of Bahdanau et al. `tfm.systems.rnn_seq2seq.luong` has the defaults for
the model of Luong et al. 2015.
"""

from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig
from tfm.systems.rnn_seq2seq.model import RNNSeq2Seq, last_read

__all__ = ["INITIALIZATIONS", "Config", "Model", "RNNConfig", "RNNSeq2Seq", "last_read"]

Config = RNNConfig
Model = RNNSeq2Seq
