"""Atomic files, locks, signals, and the record of the starts of a run."""
