"""The end-to-end memory network of Sukhbaatar et al. 2015. See README.md in this folder."""
