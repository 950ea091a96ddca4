"""Tests of tfm/visualize."""
