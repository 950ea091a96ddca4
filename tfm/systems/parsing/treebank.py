"""Sentences and their trees as pairs of texts, for parsing.

The source is the words of a sentence, separated by blanks. The target is the tokens of its tree (see
`tfm.systems.parsing.trees`). The functions are values of `data.kind`.
"""

import functools
import logging
import os
from collections.abc import Iterable

from tfm.data.config import PairsConfig
from tfm.data.source import Source, hash_text, hold
from tfm.data.sources import text_files
from tfm.data.sources.builtin import require_no_folder
from tfm.data.sources.text_files import TextFile, exists, find_file, find_spelling, require_folder
from tfm.datasets import toy_language
from tfm.errors import UserError
from tfm.systems.parsing.trees import Node, clean_tree, linearize, list_leaves, read_trees

TREEBANK = "tfm.systems.parsing.treebank:open_treebank"
BUILTIN_TREES = "tfm.systems.parsing.treebank:open_builtin_trees"
ENDINGS = (".mrg", ".txt", "")
MAX_LINE_BYTES = 1 << 26  # a file of trees may have all of them on one line
SPLITS_IN_MEMORY = 3
log = logging.getLogger(__name__)


def open_treebank(config: PairsConfig, name: str) -> Source:
    """Returns the trees of a bracketed file, without empty elements and function tags.

    Args:
      config: names the folder of the file.
      name: the name of the file with or without its ending .mrg or .txt. Files that end in .gz and .xz are
        found, too.

    Raises:
      UserError: if the file is missing, holds no trees, or is damaged; names file and line.
    """
    require_folder(config.directory)
    packed = [ending + compression for ending in ENDINGS for compression in text_files.ENDINGS]
    stem = find_spelling(os.path.join(config.directory, name), packed)
    ending = next(filter(lambda ending: exists(stem + ending), ENDINGS), ENDINGS[0])
    path = find_file(stem + ending)
    state = os.stat(path)
    return _read_file(path, state.st_size, state.st_mtime_ns)


def open_builtin_trees(config: PairsConfig, name: str) -> Source:
    """Returns the words and the trees of a split of the built-in language.

    Raises:
      UserError: if there is no such split, or the config names a folder.
    """
    require_no_folder(config)
    return _read_builtin_trees(name)


def collect_trees(trees: Iterable[Node], name: str) -> Source:
    """Returns the pairs of trees, without empty elements and function tags.

    Args:
      trees: the trees.
      name: what error messages call them.

    Raises:
      UserError: if no tree has words.
    """
    cleaned = [clean_tree(tree) for tree in trees]
    pairs = [
        (" ".join(leaf.word for leaf in list_leaves(tree)), " ".join(linearize(tree)))
        for tree in cleaned
        if tree is not None
    ]
    if not pairs:
        raise UserError(
            f"{name} has no tree with words: expected bracketed trees, (S (NP (DT The) ...) ...)."
        )
    if len(pairs) < len(cleaned):
        log.warning("Left out %s trees of %s that have no words", f"{len(cleaned) - len(pairs):,}", name)
    content = "".join(f"{text}\n" for pair in pairs for text in pair)
    return hold(pairs, f"trees-{hash_text(content)}")


# A new run opens a split four times: to check, to learn the tokenizer, to tokenize and to evaluate.
@functools.lru_cache(maxsize=SPLITS_IN_MEMORY)
def _read_file(path: str, size: int, changed: int) -> Source:
    del size, changed  # they identify the content
    lines = TextFile(path, "bracketed trees", MAX_LINE_BYTES)
    return collect_trees(read_trees(lines, path), path)


@functools.cache
def _read_builtin_trees(split: str) -> Source:
    return collect_trees(read_trees(toy_language.read_trees(split), split), split)
