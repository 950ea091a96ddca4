"""The self-attention GAN of Zhang et al. 2018. See README.md in this folder."""
