"""Tiny labelled images and the config of a tiny model."""

import numpy as np

from tfm.models.vit import ViTConfig

MODEL = ViTConfig(
    image_size=6,
    channels=5,
    patch_size=2,
    classes=3,
    encoder_layers=1,
    d_model=28,
    d_ff=30,
    heads=4,
    dropout=0.1,
)


def write_arrays(path, sizes):
    """Writes an .npz file of random images [N, 6, 6, 5] of three classes. `sizes` is {split: N}."""
    rng = np.random.default_rng(0)
    arrays = {"label_names": np.array(["cat", "dog", "bird"])}
    for split, size in sizes.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (size, 6, 6, 5), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(size) % 3
    np.savez(path, **arrays)
