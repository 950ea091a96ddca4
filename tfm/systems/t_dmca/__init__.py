"""T-DMCA (Liu et al. 2018): a language model of long documents. See README.md in this folder."""
