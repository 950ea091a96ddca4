"""Checkpoints of a run: training steps that are written durably, verified and read back.

A checkpoint is a folder that is named by its step. The folder contains one tree of arrays, in the files of
Orbax, and a manifest. A checkpoint is written in this order:

1. `CheckpointStore.save` copies the arrays from the devices and returns. Orbax writes them in the background,
   into a temporary folder.
2. The complete files are read back and compared with the digests of what was saved.
3. The manifest is written. It contains the step, the fingerprints of the assets, the progress of the run, and
   the size and SHA-256 of every file.
4. Orbax renames the folder to its step. From this moment on, readers find the checkpoint.
5. A checkpoint that is no longer kept is renamed before it is deleted. Readers never find a part of it.

A checkpoint is intact if its files match its manifest. The manifest is needed because Orbax restores an array
whose stored values have flipped bits without an error.
"""
