"""Tiny labelled images and the config of a tiny model."""

import dataclasses

import numpy as np

from tfm.config import to_config_dict
from tfm.systems.vit.model import VisionTransformer, ViTConfig
from tfm.testing.parameters import random_parameters
from tfm.training.frozen import write_frozen

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


def write_arrays(path, sizes, shape=(6, 6, 5)):
    """Writes an .npz file of random images [N, *shape] of three classes. `sizes` is {split: N}."""
    rng = np.random.default_rng(0)
    arrays = {"label_names": np.array(["cat", "dog", "bird"])}
    for split, size in sizes.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(size) % 3
    np.savez(path, **arrays)


def read_split(path, split):
    """Returns images from -1 to 1 and labels of a split of such a file."""
    with np.load(path) as arrays:
        return arrays[f"{split}_images"] / 127.5 - 1, arrays[f"{split}_labels"]


def write_judge(folder, generator):
    """Writes a random classifier for the images of a generator as the frozen model "judge" of a run."""
    config = dataclasses.replace(
        MODEL, image_size=generator.image_size, channels=generator.channels, classes=generator.classes
    )
    image = np.zeros((1, config.image_size, config.image_size, config.channels), np.float32)
    params = random_parameters(VisionTransformer(config), image)
    folder.mkdir(exist_ok=True)
    write_frozen(str(folder / "judge.safetensors"), to_config_dict(config).to_dict(), {"params": params})
