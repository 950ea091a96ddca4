"""The Universal Transformer (Dehghani et al. 2018). See README.md in this folder."""
