"""The folder of the repository and its config files."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("[!_]*.py"))
