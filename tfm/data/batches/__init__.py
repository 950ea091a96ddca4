"""Batches: which rows each step reads, and what their arrays hold."""
