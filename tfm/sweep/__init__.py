"""Sweeps: several runs that differ in named fields of one config, their ledger and their table."""

from tfm.sweep.table3 import table3
from tfm.sweep.variants import Variant

__all__ = ["Variant", "table3"]
