"""ConvS2S (Gehring et al. 2017): translation by convolutions. See README.md in this folder."""
