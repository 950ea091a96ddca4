"""Sentence pairs and a tokenizer for tests of batches, and a reader of batches."""

import numpy as np

from tfm.data.batches.pairs import PairEpochs
from tfm.data.batches.schedule import Batches
from tfm.data.config import PairsConfig
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.protocol import EOS_ID

TEXTS = [
    f"The {a} dog {b} the {c} cat ."
    for a in ("big", "red")
    for b in ("sees", "bites")
    for c in ("old", "wet")
]


class Letters:
    """A tokenizer whose ids are the code points of the characters. All of them must be below `size`."""

    fingerprint = "letters"

    def __init__(self, size=60_000):
        self._size = size

    def __len__(self):
        return self._size

    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


class Pairs(list):
    """A list of pairs as a source."""

    fingerprint = "pairs"


def random_pairs(count):
    """Returns pairs of texts of 1 to 19 letters. Both sides of pair i begin with the letter chr(1000 + i)."""
    rng = np.random.default_rng(0)
    return Pairs(
        tuple(chr(1000 + i) + letter * int(rng.integers(0, 19)) for letter in "st") for i in range(count)
    )


def pair_config(**fields):
    """Returns a config with small batches."""
    return PairsConfig(**{"max_length": 32, "batch_tokens": 256, "row_length": 32} | fields)


def open_cache(folder, count=200):
    """Returns a cache of random pairs in a folder."""
    return TokenCache.open(random_pairs(count), Letters(), str(folder))


def train_batches(cache, config, seed, *, corpora=(), **hosts):
    """Returns the training `Batches` of a cache."""
    return Batches([PairEpochs(cache, config, seed, corpora)], **hosts)


def read_and_check_sentences(batch):
    """Returns [(source, target)] of a batch. Asserts that segments, positions and padding are correct."""
    found = []
    for row in range(len(batch["inputs"])):
        last = max(batch["input_segments"][row].max(), batch["target_segments"][row].max())
        for segment in range(1, last + 1):
            pair = []
            for side in ("input", "target"):
                at = batch[f"{side}_segments"][row] == segment
                ids = batch[f"{side}s"][row][at]
                np.testing.assert_array_equal(batch[f"{side}_positions"][row][at], np.arange(len(ids)))
                assert ids[-1] == EOS_ID
                pair.append(tuple(ids.tolist()))
            found.append(tuple(pair))
    for side in ("input", "target"):
        padding = batch[f"{side}_segments"] == 0
        assert not batch[f"{side}s"][padding].any()
        assert not batch[f"{side}_positions"][padding].any()
    return found
