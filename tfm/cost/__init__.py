"""What a run takes: memory, arithmetic, communication and time, here or on accelerators elsewhere."""
