"""The Transformer as a parser (Vaswani et al. 2017, section 6.3). See README.md in this folder."""
