"""Sentences and their trees as pairs of texts: a source of pairs (see `tfm.data.sources`) for parsing.

The source is the words of a sentence, separated by blanks, the target the tokens of its tree (see
`tfm.data.trees`).
"""

import functools
import hashlib
import logging
import os
from collections.abc import Iterable, Sequence

from tfm.data.config import DataConfig
from tfm.data.lines import Lines
from tfm.data.text_files import OPENERS, decompress, find_file
from tfm.data.trees import Node, clean_tree, linearize, list_leaves, read_trees
from tfm.errors import UserError

ENDINGS = (".mrg", ".txt", "")
ADVICE = "check data.directory and the name of the split"
SPLITS_IN_MEMORY = 3
log = logging.getLogger(__name__)


class TreePairs:
    """Pairs that are held in memory: `pairs[i]` is (words, tokens of the tree)."""

    def __init__(self, pairs: Sequence[tuple[str, ...]]):
        self._pairs = pairs

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, index):
        return self._pairs[index]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content."""
        digest = hashlib.sha256()
        for pair in self._pairs:
            for text in pair:
                digest.update(text.encode("utf-8") + b"\n")
        return f"trees-{digest.hexdigest()}"


def open_treebank(config: DataConfig, name: str) -> TreePairs:
    """The trees of a bracketed file of `config.directory`, without empty elements and function tags.

    Args:
      config: where the file is.
      name: of the split: that of the file with or without its ending .mrg or .txt; .gz and .xz are found too.

    Raises:
      UserError: there is no such file, it holds no trees, or it is damaged; names file and line.
    """
    path = _find(os.path.join(config.directory, name))
    state = os.stat(path)
    return _read_file(path, config.cache, state.st_size, state.st_mtime_ns)


def some_file_exists(config: DataConfig, name: str) -> bool:
    """Whether there is a file of the split, of any ending."""
    return bool(_find_endings(os.path.join(config.directory, name)))


def make_pair(tree: Node) -> tuple[str, str]:
    """(words, tokens) of a clean tree."""
    words = " ".join(leaf.word for leaf in list_leaves(tree))
    return words, " ".join(linearize(tree))


def _find(stem):
    return find_file(stem + [*_find_endings(stem), ENDINGS[0]][0], ADVICE)


def _find_endings(stem):
    """Those of `ENDINGS` with which there is a file, compressed or not."""
    return [
        ending for ending in ENDINGS if any(os.path.lexists(f"{stem}{ending}{packed}") for packed in OPENERS)
    ]


# A new run opens a split four times, to check, to learn the tokenizer, to tokenise and to evaluate.
@functools.lru_cache(maxsize=SPLITS_IN_MEMORY)
def _read_file(path, cache_dir, size, changed):
    del size, changed  # they identify the content
    return collect_trees(read_trees(Lines(decompress(path, cache_dir), path), path), path)


def collect_trees(trees: Iterable[Node], path: str) -> TreePairs:
    """Returns the pairs of trees without empty elements and function tags.

    Raises:
      UserError: if no tree has words.
    """
    cleaned = [clean_tree(tree) for tree in trees]
    pairs = [make_pair(tree) for tree in cleaned if tree is not None]
    if not pairs:
        raise UserError(
            f"{path} has no tree with words: expected bracketed trees, (S (NP (DT The) ...) ...)."
        )
    if len(pairs) < len(cleaned):
        log.warning("Left out %s trees of %s that have no words", f"{len(cleaned) - len(pairs):,}", path)
    return TreePairs(pairs)
