"""Texts that are lists of token ids, a small model for them, and packed batches."""

import numpy as np

from tfm.models import TransformerConfig

PIECES = 20
MODEL = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=24, heads=2)


class Numbers:
    """A tokenizer for texts that are lists of token ids."""

    fingerprint = "numbers"

    def __len__(self):
        return PIECES

    def encode(self, texts):
        return [list(text) for text in texts]


def random_batch(rng, rows):
    """Returns packed rows of two sentences and padding."""
    segments = np.tile([1, 1, 1, 2, 2, 0], (rows, 1))
    positions = np.tile([0, 1, 2, 0, 1, 0], (rows, 1))
    batch = {}
    for side in ("input", "target"):
        batch[f"{side}s"] = rng.integers(3, PIECES, segments.shape) * (segments > 0)
        batch |= {f"{side}_segments": segments, f"{side}_positions": positions}
    return {name: x.astype(np.int32) for name, x in batch.items()}
