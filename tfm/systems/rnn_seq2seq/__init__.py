"""Recurrent translation with attention (Bahdanau et al. 2015, Luong et al. 2015); see README.md."""
