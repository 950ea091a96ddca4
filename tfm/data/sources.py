"""Sentence pairs from files, Hugging Face, TFDS, the built-in language, treebanks or a function of the user.

A source of pairs has `len(pairs)`, `pairs[i] -> (source, target)`, slices, and `pairs.fingerprint`, which
identifies its content. None needs TensorFlow: TFDS data sets are prepared as array_record files, which can be
read at random.
"""

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Sequence
from typing import Any

from tfm.config import find_by_name, is_dotted
from tfm.data import builtin, huggingface, tables, text_pairs, tfds_records, treebank
from tfm.data.columns import check_columns
from tfm.data.config import NOT_READ, PIPE, SPLITS, DataConfig
from tfm.data.corpora import TaggedPairs, split_corpora
from tfm.data.problems import collect, raise_all
from tfm.data.tables import TableOptions
from tfm.data.text_files import OPENERS, expand_names
from tfm.data.text_pairs import TextPairs, require_usable
from tfm.data.text_source import iterate, join
from tfm.data.tfds_records import RecordPairs
from tfm.errors import UserError

LINE_ENDS = re.compile(r"[\r\n]+")
SOURCE = ("__len__", "__getitem__", "fingerprint")
# Kinds that one function opens, as it does a kind of the user's own: (DataConfig, name of a split) -> source.
OPENED_BY_FUNCTION = {
    "treebank": treebank.open_treebank,
    "builtin": builtin.open_language,
    "builtin_treebank": builtin.open_trees,
}


def open_pairs(config: DataConfig, split: str) -> Any:
    """The pairs of a split, those of all its corpora; see `open_corpora`."""
    return join(open_corpora(config, split))


def open_corpora(config: DataConfig, split: str) -> list[Any]:
    """The pairs of each corpus of a split: one, where the config neither tags nor mixes.

    Args:
      config: a `DataConfig`.
      split: "train", "validation" or "test", which the config maps to a name of its own; any other name is
        taken as it is, such as "pronoun" of the built-in language.

    Raises:
      UserError: whatever is missing or unusable.
    """
    name = getattr(config, split) if split in SPLITS else split
    if not name:
        raise UserError(f"There is no split to read: data.{split} is empty; name one, or choose another.")
    if name == PIPE and not is_dotted(config.kind):
        raise UserError(NOT_READ)
    corpora = [(_open(config, each), tag) for each, tag in split_corpora(config, name)]
    return [TaggedPairs(pairs, tag) if tag else pairs for pairs, tag in corpora]


def _open(config, name):
    """The pairs of a name, which may stand for several files."""
    if _is_opened_by_function(config):
        return _find_function(config)(config, name)
    if config.kind == "text":
        return join([TextPairs(stem, config.languages, config.cache) for stem in _find_stems(config, name)])
    if config.kind == "table":
        return tables.open_tables(config.directory, name, _table_options(config))
    if config.kind == "huggingface":
        return _open_dataset(config, name)
    builder = tfds_records.find_builder(config.name, config.directory)
    return RecordPairs(tfds_records.prepare(builder, config.name, config.directory), name, config.languages)


def read_sides(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """Both sides of a split at once: a list of source texts and one of target texts."""
    check_splits(config, [split])
    sources, targets = zip(*open_pairs(config, split)[:], strict=True)
    return list(sources), list(targets)


def fingerprint_texts(sources: Sequence[str], references: Sequence[str]) -> str:
    """SHA-256 of the texts of a split, wherever they were read from."""
    return hashlib.sha256(json.dumps([sources, references]).encode()).hexdigest()


def check_splits(config: DataConfig, splits: Sequence[str] = SPLITS) -> None:
    """Checks all that can be known of the data before work is put into them: names, files, their content.

    What a TFDS data set tells without a download is checked before it, the rest behind it.

    Raises:
      UserError: its message lists all problems.
    """
    raise_all(find_problems(config, splits))


def find_problems(config: DataConfig, splits: Sequence[str]) -> list[str]:
    """Why splits cannot be used: error messages, none where they can.

    A test split that is not there is no problem where the config does not name it: "" is none, and the
    default name asks for one only if it is there.
    """
    if config.source_language == config.target_language:
        return [
            "data.source_language and data.target_language are both "
            f"'{config.source_language}': a translation of a text into itself."
        ]
    names = {split: getattr(config, split) if split in SPLITS else split for split in splits}
    if "\0" in "".join((config.directory, config.cache, *names.values())):
        return ["A folder or split of the data has a NUL character in its name: correct data."]
    problems = [
        f"data.{split} is empty: name a split." for split in ("train", "validation") if names.get(split) == ""
    ]
    wanted = list(dict.fromkeys(name for name in names.values() if name))
    optional = {DataConfig.test} if names.get("test") == DataConfig.test else set()
    optional -= {name for split, name in names.items() if split != "test"}
    if PIPE in wanted and not is_dotted(config.kind):
        return [*problems, NOT_READ]
    for name in wanted if config.tags else ():
        with collect(problems if name not in optional else []):
            split_corpora(config, name)
    if _is_opened_by_function(config):
        return problems + _find_source_problems(config, wanted, optional)
    return problems + FINDERS.get(config.kind, _find_record_problems)(config, wanted, optional)


def _find_text_problems(config, names, optional):
    problems = _find_folder_problems(config)
    for name in () if problems else names:
        stem = os.path.join(config.directory, name)
        if name in optional and not text_pairs.some_file_exists(stem, config.languages):
            continue
        with collect(problems):
            for stem in _find_stems(config, name):
                problems += text_pairs.find_problems(stem, config.languages, config.cache)
    return problems


def _find_table_problems(config, names, optional):
    problems = _find_folder_problems(config)
    with collect(problems):
        check_columns(config.columns)
    for name in () if problems else names:
        if name in optional and not tables.some_table_exists(config.directory, name):
            continue
        with collect(problems):
            for path in tables.find_tables(config.directory, name):
                with collect(problems):
                    _check_rows(tables.open_table(path, _table_options(config)), path)
    return problems


def _find_dataset_problems(config, names, optional):
    problems: list[str] = []
    with collect(problems):
        check_columns(config.columns)
    for name in () if problems else names:
        found: list[str] = []
        with collect(found):
            _check_rows(_open_dataset(config, name), f"the split '{name}'")
        problems += [] if name in optional else found
    return problems


def _find_folder_problems(config):
    if not config.directory or os.path.isdir(config.directory):
        return []
    return [f"Expected a folder of text files at {config.directory}, but there is none: set data.directory."]


def _check_rows(pairs, shown_as):
    """Reads all pairs of a table, so that no error is found later, behind a long tokenisation."""
    pairs.check()
    rows = iterate(pairs)
    require_usable(rows, shown_as)
    for _ in rows:  # behind the first usable one
        pass


def _find_record_problems(config, names, optional):
    languages, builder = config.languages, tfds_records.find_builder(config.name, config.directory)
    known = tfds_records.split_names(builder)
    names = [name for name in names if name not in optional or name in known or not known]
    problems = tfds_records.feature_problems(builder, languages) + tfds_records.split_problems(builder, names)
    if problems:
        return problems
    builder = tfds_records.prepare(builder, config.name, config.directory)
    names = [name for name in names if name not in optional or name in builder.info.splits]
    return tfds_records.find_problems(builder, names, languages)


def _find_source_problems(config, names, optional):
    """What the function of the kind says to each split; it raises a UserError for one that is not there."""
    if config.kind == "treebank":  # of a file that is there and damaged the message matters
        optional = {name for name in optional if not treebank.some_file_exists(config, name)}
    problems: list[str] = []
    for name in names:
        found: list[str] = []
        with collect(found):
            pairs = _find_function(config)(config, name)
        if found:
            problems += [] if name in optional else found
            continue
        missing = [each for each in SOURCE if not hasattr(pairs, each)]
        if missing:
            problems.append(f"data.kind={config.kind} must return a source with {' and '.join(missing)}.")
        elif not len(pairs):
            problems.append(f"data.kind={config.kind} has no pairs in the split '{name}'.")
        elif not _is_pairs(pairs[:1]):
            problems.append(
                f"data.kind={config.kind} must return a source whose slices are lists of pairs of strings, "
                f"(source, target); its first is {reprlib.repr(pairs[:1])} in the split '{name}'."
            )
    return problems


def _is_pairs(found):
    """Whether a slice of a source is a list of pairs of strings."""
    return isinstance(found, tuple | list) and all(
        isinstance(pair, tuple | list) and list(map(type, pair)) == [str, str] for pair in found
    )


def _is_opened_by_function(config):
    return config.kind in OPENED_BY_FUNCTION or is_dotted(config.kind)


def _find_function(config):
    """The function that opens the splits of `data.kind`, which may be the user's."""
    return find_by_name(OPENED_BY_FUNCTION, config.kind, "config.data.kind", needs=("__call__",))


FINDERS = {
    "text": _find_text_problems,
    "table": _find_table_problems,
    "huggingface": _find_dataset_problems,
}


def _find_stems(config, name):
    endings = [f".{language}{packed}" for language in config.languages for packed in OPENERS]
    return expand_names(config.directory, name, endings)


def _table_options(config):
    return TableOptions(config.columns, config.format, config.cache, _clean)


def _open_dataset(config, name):
    return huggingface.open_dataset(config.name, config.directory, name, config.columns, _clean)


def _clean(text):
    """A side of a pair is one line, as in text files."""
    text = text.strip()
    return LINE_ENDS.sub(" ", text) if "\n" in text or "\r" in text else text
