"""The feed-forward language model of Bengio et al. 2003. See README.md in this folder."""
