"""Figures and pages: training curves, attention maps, and an explorer of translations."""
