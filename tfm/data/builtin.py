"""The built-in language as sources of pairs, see `tfm.datasets.toy_language`."""

import functools
import itertools
from collections.abc import Sequence

from tfm.data.config import DataConfig
from tfm.data.tfds_records import BAD_SPLIT
from tfm.data.treebank import TreePairs, collect_trees
from tfm.data.trees import read_trees
from tfm.datasets import toy_language
from tfm.errors import UserError


class LanguagePairs(TreePairs):
    """Pairs of the built-in language, which are held in memory.

    Attributes:
      fingerprint: the name and the version of the language, the split and the languages.
    """

    def __init__(self, pairs: list[tuple[str, ...]], split: str, languages: Sequence[str]):
        super().__init__(pairs)
        name = f"tfm_language/{toy_language.VERSION}"
        self.fingerprint = f"tfds-{name}-{split}-{len(pairs)}-{'-'.join(languages)}"


def open_language(config: DataConfig, name: str) -> LanguagePairs:
    """Returns the sentence pairs of a split, or of a part of one, such as "train[:90%]".

    Raises:
      UserError: if there is no such split or language, or the config names a folder.
    """
    _require_no_folder(config)
    return LanguagePairs(_read_columns(name, config.languages), name, config.languages)


def open_trees(config: DataConfig, name: str) -> TreePairs:
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


def _read_columns(split: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
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
