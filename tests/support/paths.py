"""Where the checkout is."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
