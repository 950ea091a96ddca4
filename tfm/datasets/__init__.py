"""Data sets that ship with the project; `tfm.data` prepares them for training."""
