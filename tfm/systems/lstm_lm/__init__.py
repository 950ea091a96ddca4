"""The LSTM language model of Zaremba et al. 2014. See README.md in this folder."""
