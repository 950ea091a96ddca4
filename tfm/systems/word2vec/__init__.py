"""word2vec (Mikolov et al. 2013): vectors of words. See README.md in this folder."""
