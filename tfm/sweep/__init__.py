"""Sweeps: runs of one config that differ in named fields, with a table of their scores."""

from tfm.sweep.table3 import table3
from tfm.sweep.variants import Variant

__all__ = ["Variant", "table3"]
