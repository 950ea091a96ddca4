"""DETR (Carion et al. 2020): detection of objects. See README.md in this folder."""
