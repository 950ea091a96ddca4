"""Sentences and their trees as pairs of texts, for parsing.

The source is the words of a sentence, separated by blanks. The target is the tokens of its tree (see
`tfm.systems.parsing.trees`). The functions are values of `data.kind`.
"""

import functools
import itertools
import logging
import os
from collections.abc import Iterable, Iterator

from tfm.data.config import PairsConfig
from tfm.data.source import Source, hash_text, hold
from tfm.data.sources.builtin import require_no_folder
from tfm.data.sources.text_files import ENDINGS as PACKED_ENDINGS
from tfm.data.sources.text_files import TextFile, exists, expand_names, find_file
from tfm.datasets import toy_language
from tfm.errors import UserError
from tfm.systems.parsing.columns import convert_columns, has_columns
from tfm.systems.parsing.trees import Node, clean_tree, linearize, list_leaves, read_trees

TREEBANK = "tfm.systems.parsing.treebank:open_treebank"
BUILTIN_TREES = "tfm.systems.parsing.treebank:open_builtin_trees"
ENDINGS = (".mrg", ".parse", ".txt", "")
MAX_LINE_BYTES = 1 << 26  # a file of trees may have all of them on one line
SPLITS_IN_MEMORY = 3
log = logging.getLogger(__name__)


def open_treebank(config: PairsConfig, name: str) -> Source:
    """Returns the trees of files, without empty elements and function tags.

    The files contain bracketed trees, or the columns of CoNLL-2012 or CoNLL-2005 (see
    `tfm.systems.parsing.columns`). The first line that is not blank decides.

    Args:
      config: names the folder of the files.
      name: the names of the files, between commas, or a pattern such as wsj/0[2-9]/*. The ending .mrg, .parse
        or .txt may be left out. Files that end in .gz, .xz, .bz2 and .zst are found, too.

    Raises:
      UserError: if a file is missing, holds no trees, or is damaged; names file and line.
    """
    endings = [ending + packed for ending in ENDINGS for packed in PACKED_ENDINGS]
    files = []
    for stem in expand_names(config.directory, name, endings):
        ending = next(filter(lambda ending: exists(stem + ending), ENDINGS), ENDINGS[0])
        path = find_file(stem + ending)
        state = os.stat(path)
        files.append((path, state.st_size, state.st_mtime_ns))
    return _read_files(tuple(files))


def open_builtin_trees(config: PairsConfig, name: str) -> Source:
    """Returns the words and the trees of a split of the built-in language.

    Raises:
      UserError: if there is no such split, or the config names a folder.
    """
    require_no_folder(config)
    return _read_builtin_trees(name)


def collect_trees(trees: Iterable[Node], name: str) -> Source:
    """Returns the pairs of trees, without empty elements and function tags.

    Trees without words are left out, and a warning counts them.

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
def _read_files(files: tuple[tuple[str, int, int], ...]) -> Source:
    """Returns the trees of files. Size and time of change of each file identify its content."""
    paths = [path for path, *_ in files]
    shown_as = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more files"
    return collect_trees(itertools.chain.from_iterable(map(_read_file, paths)), shown_as)


def _read_file(path: str) -> Iterator[Node]:
    """Yields the trees of a file with brackets or columns."""
    lines = TextFile(path, "bracketed trees", MAX_LINE_BYTES)
    first = next((line for line in lines if line.strip()), "")
    return read_trees(convert_columns(lines, path) if has_columns(first) else lines, path)


@functools.cache
def _read_builtin_trees(split: str) -> Source:
    return collect_trees(read_trees(toy_language.read_trees(split), split), split)
