"""The systems of the family, a folder for each. `tfm.family` lists them. Each folder has a page, README.md."""
