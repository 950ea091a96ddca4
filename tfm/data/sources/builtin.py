"""The built-in language: its sentence pairs and its trees, see `tfm.datasets.toy_language`."""

import functools
import itertools
from collections.abc import Sequence

from tfm.data.config import PairsConfig
from tfm.data.source import Row, Source, hold
from tfm.data.sources.tfds import BAD_SPLIT
from tfm.data.sources.treebank import collect_trees
from tfm.data.trees import read_trees
from tfm.datasets import toy_language
from tfm.errors import UserError


def open_language(config: PairsConfig, name: str) -> Source:
    """Returns the sentence pairs of a split, or of a part of one, such as "train[:90%]".

    Raises:
      UserError: if there is no such split or language, or the config names a folder.
    """
    _require_no_folder(config)
    pairs = _read_columns(name, config.languages)
    version = f"tfm_language/{toy_language.VERSION}"
    return hold(pairs, f"tfds-{version}-{name}-{len(pairs)}-{'-'.join(config.languages)}")


def open_trees(config: PairsConfig, name: str) -> Source:
    """Returns the words and the trees of a split.

    Raises:
      UserError: if there is no such split, or the config names a folder.
    """
    _require_no_folder(config)
    return _read_trees(name)


def read_feature(split: str, feature: str) -> list[str]:
    """Returns one of "en", "de", "wrong" and "alignment" of each example of a split.

    Raises:
      UserError: if there is no such split or feature.
    """
    return [value for (value,) in _read_columns(split, (feature,))]


def _read_columns(split: str, columns: Sequence[str]) -> list[Row]:
    """Returns some columns of a split of the language, such as ("en", "de").

    Raises:
      UserError: if there is no such split or column.
    """
    known = toy_language.Example._fields
    for column in columns:
        if column not in known:
            raise UserError(f"The built-in language has no {column!r}, but {', '.join(known)}.")
    return [tuple(getattr(example, column) for column in columns) for example in _read_examples(split)]


def _require_no_folder(config):
    """A user who gives a folder has probably forgotten `data.kind`."""
    if config.directory:
        raise UserError(
            f"data.kind is {config.kind!r}, whose texts come with tfm, and data.directory is "
            f"{config.directory}: set data.kind=text or another kind to read the folder, or leave "
            "data.directory out."
        )


def _read_examples(split):
    if "[" not in split and "+" not in split:
        return toy_language.read_examples(split)
    import tensorflow_datasets as tfds  # takes half a second

    infos = {
        name: tfds.core.SplitInfo(name=name, shard_lengths=[size], num_bytes=0, filename_template=None)
        for name, size in toy_language.SIZES.items()
    }
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    except BAD_SPLIT as error:
        reason = str(error).strip().split("\n")[-1]
        raise UserError(
            f"The built-in language has no split '{split}', but {', '.join(infos)} ({reason})."
        ) from None
    slices = [toy_language.read_examples(part.splitname)[part.from_ : part.to] for part in parts]
    return list(itertools.chain.from_iterable(slices))


@functools.cache
def _read_trees(split):
    return collect_trees(read_trees(toy_language.read_trees(split), split), split)
