"""Tiny labelled images, and a tiny model of them."""

import numpy as np

from tfm.models.vit import ViTConfig

MODEL = ViTConfig(
    image_size=4,
    channels=2,
    patch_size=2,
    classes=3,
    encoder_layers=3,
    d_model=8,
    d_ff=12,
    heads=2,
    dropout=0.1,
)


def write_arrays(path, sizes):
    """An .npz file of random images [N, 4, 4, 2] of three classes; sizes: {split: N}."""
    rng = np.random.default_rng(0)
    arrays = {"label_names": np.array(["cat", "dog", "bird"])}
    for split, size in sizes.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (size, 4, 4, 2), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(size) % 3
    np.savez(path, **arrays)
