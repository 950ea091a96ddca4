"""Opens the sentence pairs of a config, and finds what is wrong with them before work is put into them."""

import hashlib
import json
import re
import reprlib
from collections.abc import Sequence

from tfm.config import find_by_name, is_dotted
from tfm.data.config import SPLITS, PairsConfig
from tfm.data.data_errors import MissingFile, collect, raise_all
from tfm.data.source import CHUNK_ROWS, Source, add_tag, join, join_neighbours
from tfm.data.sources import builtin, huggingface, tables, tfds, treebank
from tfm.data.sources.parallel_text import open_parallel_text
from tfm.data.sources.splits import find_empty_names, find_name, find_split_problems, list_distinct
from tfm.data.sources.tables import TableOptions
from tfm.data.tokenizers.learning import MAX_TEXT_BYTES
from tfm.errors import UserError

LINE_ENDS = re.compile(r"[\r\n]+")
SOURCE_MEMBERS = ("__len__", "__getitem__", "fingerprint")
# Kinds that a function opens, like the kinds of the user: (PairsConfig, name of a split) -> source.
OPENED_BY_FUNCTION = {
    "treebank": treebank.open_treebank,
    "builtin": builtin.open_language,
    "builtin_treebank": builtin.open_trees,
}


def open_pairs(config: PairsConfig, split: str) -> Source:
    """Returns the pairs of a split, with the pairs of all its corpora; see `open_corpora`."""
    return join(open_corpora(config, split))


def open_corpora(config: PairsConfig, split: str) -> list[Source]:
    """Returns the pairs of each corpus of a split. A config that neither tags nor mixes has one corpus.

    Args:
      config: the data section.
      split: "train", "validation" or "test", for the name in the config; any other text is itself the
        name, such as "pronoun" of the built-in language.

    Raises:
      UserError: if a corpus is missing or cannot be opened, or there are more or fewer tags than corpora.
    """
    name = find_name(config, split)
    separate = config.tags or config.mixing
    corpora = [_open(config, part.strip()) for part in name.split(",")] if separate else [_open(config, name)]
    if split == "train":
        corpora = [join_neighbours(pairs, config.joined_share) for pairs in corpora]
    if not config.tags:
        return corpora
    tags = split_tags(config.tags)
    if len(tags) != len(corpora):
        raise UserError(
            f"data.tags has {len(tags)} tags, but the split '{name}' has {len(corpora)} names separated by "
            "commas. Give a tag for each name, or nothing between two commas for a name without a tag."
        )
    return [add_tag(pairs, tag) if tag else pairs for pairs, tag in zip(corpora, tags, strict=True)]


def split_tags(tags: str) -> list[str]:
    """Returns the tags between the commas of `data.tags`; "" stands for a corpus without a tag."""
    return tags.split(",")


def read_sides(config: PairsConfig, split: str) -> tuple[list[str], list[str]]:
    """Returns the source texts and the target texts of a split, after checking it."""
    check_splits(config, [split])
    sources, targets = zip(*open_pairs(config, split), strict=True)
    return list(sources), list(targets)


def fingerprint_texts(sources: Sequence[str], references: Sequence[str]) -> str:
    """Returns the SHA-256 of the texts of a split, wherever they were read from."""
    return hashlib.sha256(json.dumps([sources, references]).encode()).hexdigest()


def check_splits(config: PairsConfig, splits: Sequence[str] = SPLITS) -> None:
    """Reads all rows of some splits, so that problems show before a long tokenization.

    Raises:
      UserError: if there are problems. The message lists all problems.
    """
    raise_all(find_problems(config, splits))


def find_problems(config: PairsConfig, splits: Sequence[str]) -> list[str]:
    """Returns why splits cannot be used, one message for each problem.

    A test split of the default name may be missing. A test split that exists must be usable.
    """
    if config.source_language == config.target_language:
        return [
            "data.source_language and data.target_language are both "
            f"'{config.source_language}', so the text would be translated into itself. Set another language."
        ]
    if config.kind == "tfds":
        return _find_tfds_problems(config, splits)
    return find_split_problems(config, splits, _find_pair_problems)


def _open(config: PairsConfig, name: str) -> Source:
    """Opens the pairs of a name. The name may stand for several files."""
    if config.kind == "text":
        return open_parallel_text(config.directory, name, config.languages)
    if config.kind == "table":
        return tables.open_tables(
            config.directory, name, TableOptions(_columns(config), config.format, _clean)
        )
    if config.kind == "huggingface":
        return huggingface.open_dataset(config.name, config.directory, name, _columns(config), _clean)
    if config.kind == "tfds":
        return tfds.open_records(config.name, config.directory, name, config.languages)
    return _open_by_function(config, name)


def _open_by_function(config: PairsConfig, name: str) -> Source:
    """Calls the function of `data.kind`, possibly the user's."""
    function = find_by_name(OPENED_BY_FUNCTION, config.kind, "config.data.kind", needs=("__call__",))
    try:
        pairs = function(config, name)
    except UserError as error:
        if is_dotted(config.kind):  # a function of the user has no other way to say that a split is missing
            raise MissingFile(str(error)) from None
        raise
    missing = [member for member in SOURCE_MEMBERS if not hasattr(pairs, member)]
    if missing:
        raise UserError(f"data.kind={config.kind} must return a source with {' and '.join(missing)}.")
    if not len(pairs):
        raise UserError(f"data.kind={config.kind} has no pairs in the split '{name}'.")
    first = pairs[:1]
    if not isinstance(first, tuple | list) or not all(map(_is_pair, first)):
        raise UserError(
            f"data.kind={config.kind} must return a source whose slices are lists of pairs of strings, "
            f"(source, target). The first slice of the split '{name}' is {reprlib.repr(first)}."
        )
    if isinstance(pairs, Source):
        return pairs

    def read():
        for first in range(0, len(pairs), CHUNK_ROWS):
            yield from pairs[first : first + CHUNK_ROWS]

    return Source(read, lambda: pairs.fingerprint, lambda: len(pairs), list)


def _is_pair(row: object) -> bool:
    return isinstance(row, tuple | list) and list(map(type, row)) == [str, str]


def _find_pair_problems(config: PairsConfig, split: str) -> list[str]:
    """Returns the problems of the rows of a split.

    Raises:
      UserError: if the split cannot be opened, or no pair can be trained on.
    """
    pairs = open_pairs(config, split)
    problems = pairs.find_problems()
    if not problems:
        _require_usable(pairs, f"the split '{find_name(config, split)}'")
    return problems


def _require_usable(pairs: Source, name: str) -> None:
    """Reads pairs up to the first that can be trained on.

    Raises:
      UserError: if there is none.
    """
    usable = (
        source and target and max(len(source.encode()), len(target.encode())) <= MAX_TEXT_BYTES
        for source, target in pairs
    )
    if not any(usable):
        raise UserError(
            f"No pair of {name} has text of at most {MAX_TEXT_BYTES:,} bytes on both sides. Expected one "
            "sentence in each line."
        )


def _find_tfds_problems(config: PairsConfig, splits: Sequence[str]) -> list[str]:
    """Returns problems of a TFDS data set. What is known without a download is checked before it."""
    problems = find_empty_names(config, splits)
    names = {find_name(config, split): may_miss for split, may_miss in list_distinct(config, splits).items()}
    builder = tfds.find_builder(config.name, config.directory)
    known = tfds.split_names(builder)
    wanted = [name for name, may_miss in names.items() if not may_miss or name in known or not known]
    problems += tfds.feature_problems(builder, config.languages) + tfds.split_problems(builder, wanted)
    if problems:
        return problems
    builder = tfds.prepare(builder, config.name, config.directory)
    for name in wanted:
        if names[name] and name not in builder.info.splits:
            continue
        with collect(problems):
            pairs = tfds.read_records(builder, name, config.languages)
            _require_usable(pairs, f"the split '{name}' of {builder.info.full_name}")
    return problems


def _columns(config: PairsConfig) -> tuple[str, str]:
    """Returns the source and the target column.

    Raises:
      UserError: if both are the same column.
    """
    source, target = config.columns
    if source == target:
        raise UserError(
            f"The source and the target are both the column {source!r}, so the text would be translated into "
            "itself. Set data.source_column and data.target_column."
        )
    return source, target


def _clean(text: str) -> str:
    """Returns the text as one line, because a side of a pair is a line of a text file."""
    text = text.strip()
    return LINE_ENDS.sub(" ", text) if "\n" in text or "\r" in text else text
