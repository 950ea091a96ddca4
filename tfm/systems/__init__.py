"""The systems of the family, a folder with a page for each. `tfm.family` lists them."""
