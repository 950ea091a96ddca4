"""Sentence pairs from text files, TFDS, the built-in language, treebanks or a function of the user.

A source of pairs has `len(pairs)`, `pairs[i] -> (source, target)`, slices, and `pairs.fingerprint`, which
identifies its content. None needs TensorFlow: TFDS data sets are prepared as array_record files, which can be
read at random.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from tfm.config import find_by_name, is_dotted
from tfm.data import text_pairs, tfds_records, treebank
from tfm.data.config import SPLITS, DataConfig
from tfm.data.problems import collect, raise_all
from tfm.data.text_pairs import TextPairs
from tfm.data.tfds_records import RecordPairs
from tfm.errors import UserError

SOURCE = ("__len__", "__getitem__", "fingerprint")
# Kinds that one function opens, as it does a kind of the user's own: (DataConfig, name of a split) -> source.
OPENED_BY_FUNCTION = {
    "treebank": treebank.open_treebank,
    "builtin_treebank": treebank.open_builtin_treebank,
}


def open_pairs(config: DataConfig, split: str) -> Any:
    """The pairs of a split.

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
    languages = (config.source_language, config.target_language)
    if _is_opened_by_function(config):
        return _find_function(config)(config, name)
    if config.kind == "text":
        return TextPairs(_stem(config, name), languages, config.cache)
    return RecordPairs(_prepare(config, _find_builder(config)), name, languages)


def read_sides(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """Both sides of a split at once: a list of source texts and one of target texts."""
    check_splits(config, [split])
    sources, targets = zip(*open_pairs(config, split)[:], strict=True)
    return list(sources), list(targets)


def fingerprint_texts(sources: Sequence[str], references: Sequence[str]) -> str:
    """SHA-256 of the texts of a split, wherever they were read from."""
    return hashlib.sha256(json.dumps([sources, references]).encode()).hexdigest()


def read_feature(config: DataConfig, split: str, feature: str) -> list[str]:
    """All values of a further text feature of a TFDS split, such as "wrong" of the split "pronoun"."""
    builder = _prepare(config, _find_builder(config))
    return [value for value, _ in RecordPairs(builder, split, (feature, feature))[:]]


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
    if _is_opened_by_function(config):
        find = _find_source_problems
    else:
        find = _find_text_problems if config.kind == "text" else _find_record_problems
    return problems + find(config, wanted, optional)


def _find_text_problems(config, names, optional):
    if config.directory and not os.path.isdir(config.directory):
        return [
            f"Expected a folder of text files at {config.directory}, but there is none: set data.directory."
        ]
    languages, problems = (config.source_language, config.target_language), []
    for name in names:
        stem = _stem(config, name)
        if name not in optional or text_pairs.some_file_exists(stem, languages):
            problems += text_pairs.find_problems(stem, languages, config.cache)
    return problems


def _find_record_problems(config, names, optional):
    languages, builder = (config.source_language, config.target_language), _find_builder(config)
    known = tfds_records.split_names(builder)
    names = [name for name in names if name not in optional or name in known or not known]
    problems = tfds_records.feature_problems(builder, languages) + tfds_records.split_problems(builder, names)
    if problems:
        return problems
    builder = _prepare(config, builder)
    names = [name for name in names if name not in optional or name in builder.info.splits]
    return tfds_records.find_problems(builder, names, languages)


def _find_source_problems(config, names, optional):
    """What the function of the kind says to each split; it raises a UserError for one that is not there."""
    if config.kind == "treebank":  # of a file that is there and damaged the message matters
        optional = {name for name in optional if not treebank.some_file_exists(config, name)}
    problems = []
    for name in names:
        found = []
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
    return problems


def _is_opened_by_function(config):
    return config.kind in OPENED_BY_FUNCTION or is_dotted(config.kind)


def _find_function(config):
    """The function that opens the splits of `data.kind`, which may be the user's."""
    return find_by_name(OPENED_BY_FUNCTION, config.kind, "config.data.kind", needs=("__call__",))


def _stem(config, name):
    return os.path.join(config.directory, name) if config.directory else name


def _find_builder(config):
    """The builder of the config's data set, whose files may not be there yet."""
    if config.kind == "builtin":
        from tfm.data.toy_translation import TfmLanguage  # TFDS takes half a second to import

        folder = _builtin_folder(config)
        with tfds_records.opening(TfmLanguage.name, folder):
            return TfmLanguage(data_dir=folder, file_format="array_record")
    return tfds_records.find_builder(config.name, config.directory)


def _prepare(config, builder):
    """The builder with its files on disk."""
    if config.kind == "builtin":
        from tfm.data.toy_translation import prepare

        return tfds_records.require_splits(prepare(_builtin_folder(config)))
    return tfds_records.prepare(builder, config.name, config.directory)


def _builtin_folder(config):
    return os.path.expanduser(config.directory or os.path.join(config.cache, "builtin"))
