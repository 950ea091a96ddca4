"""Devices: division of parameters and rows, memory, and products that suit a CPU."""
