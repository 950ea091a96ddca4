"""Recurrent encoder and decoder with attention (Bahdanau et al. 2015, "RNNsearch"), and its relatives.

The defaults of `RNNConfig` are that paper's; `tfm.models.rnn_luong` has those of Luong et al. 2015.
"""

from tfm.models.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig
from tfm.models.rnn_seq2seq.model import RNNSeq2Seq, last_read

__all__ = ["INITIALIZATIONS", "Config", "Model", "RNNConfig", "RNNSeq2Seq", "last_read"]

Config = RNNConfig
Model = RNNSeq2Seq
