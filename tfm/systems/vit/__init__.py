"""The Vision Transformer (Dosovitskiy et al. 2020). See README.md in this folder."""
