"""Several corpora in one run: the tag before each source, and the share of each in an epoch."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.config import TEMPERATURE, DataConfig, check_shares
from tfm.data.text_source import TextSource
from tfm.errors import UserError


class TaggedPairs(TextSource):
    """Pairs whose sources begin with a tag and a blank, as Johnson et al. (2017, section 3) name a language.

    An empty source stays empty: training leaves it out.

    Args:
      pairs: a source of pairs, see `tfm.data.sources`.
      tag: a text without white space.
    """

    def __init__(self, pairs: Any, tag: str):
        self._pairs, self._tag = pairs, tag

    def __len__(self):
        return len(self._pairs)

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The pairs of indices that rise."""
        rows = self._pairs[indices.start : indices.stop : indices.step]
        return [(f"{self._tag} {source}" if source else "", target) for source, target in rows]

    @property
    def fingerprint(self) -> str:
        """Identity of the tag and the content."""
        identity = f"{self._tag} {self._pairs.fingerprint}"
        return f"tagged-{hashlib.sha256(identity.encode()).hexdigest()}"


def split_corpora(config: DataConfig, name: str) -> list[tuple[str, str]]:
    """(name, tag) of each corpus of a split; the whole name and "" where the config neither tags nor mixes.

    Raises:
      UserError: the split has more or fewer corpora than there are tags.
    """
    if not config.tags and not config.mixing:
        return [(name, "")]
    names = [each.strip() for each in name.split(",")]
    tags = split_tags(config.tags) if config.tags else [""] * len(names)
    if len(tags) != len(names):
        raise UserError(
            f"data.tags has {len(tags)} tags, and the split '{name}' {len(names)} names between commas: give "
            "a tag for each, or nothing between two commas for none."
        )
    return list(zip(names, tags, strict=True))


def split_tags(tags: str) -> list[str]:
    """The tags between the commas of `data.tags`; "" where a corpus has none."""
    return tags.split(",")


def compute_repeats(sizes: Sequence[int], mixing: str) -> np.ndarray:
    """How often an epoch has each pair of each corpus: float64 [corpora].

    An epoch has as many pairs as all corpora together. With `mixing` = "temperature:T" the share of a corpus
    of n pairs is in proportion to n^(1/T) (Arivazhagan et al. 2019, section 4.2); else `mixing` has the
    shares, up to a factor. "" is 1 of each.

    Args:
      sizes: usable pairs of each corpus.
      mixing: `data.mixing`.

    Raises:
      UserError: more or fewer shares than corpora.
    """
    pairs = np.asarray(sizes, np.float64)
    check_shares(mixing, len(pairs))
    if not mixing:
        return np.ones_like(pairs)
    if mixing.startswith(TEMPERATURE):
        logarithms = np.log(pairs) / float(mixing.removeprefix(TEMPERATURE))
        shares = np.exp(logarithms - logarithms.max())  # whatever the temperature, no overflow
    else:
        shares = np.array([float(share) for share in mixing.split(",")])
    return shares / shares.sum() * pairs.sum() / pairs
