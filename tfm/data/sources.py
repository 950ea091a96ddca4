"""Sentence pairs from text files, TFDS or the built-in language, behind one interface.

A source of pairs has `len(pairs)`, `pairs[i] -> (source, target)`, slices, and `pairs.fingerprint`, which
identifies its content. None needs TensorFlow: TFDS data sets are prepared as array_record files, which can be
read at random.
"""

import os

from tfm.data.prepared import prepared
from tfm.data.text import TextPairs
from tfm.errors import UserError


def open_pairs(config, split):
    """The pairs of a split.

    Args:
      config: a `DataConfig`.
      split: "train", "validation" or "test", which the config maps to a name of its own; any other name is
        taken as it is, such as "pronoun" of the built-in language.

    Raises:
      UserError: whatever is missing or unusable, in one sentence.
    """
    name = getattr(config, split) if split in ("train", "validation", "test") else split
    languages = (config.source_language, config.target_language)
    if config.kind == "text":
        stem = os.path.join(config.directory, name) if config.directory else name
        return TextPairs(stem, languages, config.cache)
    return RecordPairs(_builder(config), name, languages)


def read_sides(config, split):
    """Both sides of a split at once: a list of source texts and one of target texts."""
    sources, targets = zip(*open_pairs(config, split)[:], strict=True)
    return list(sources), list(targets)


def read_feature(config, split, feature):
    """All values of a further text feature of a TFDS split, such as "wrong" of the split "pronoun"."""
    return [value for value, _ in RecordPairs(_builder(config), split, (feature, feature))[:]]


class RecordPairs:
    """Random access to a split of a prepared TFDS builder.

    Raises:
      UserError: no such split, no such language, or no examples.
    """

    def __init__(self, builder, split, languages):
        known = ", ".join(builder.info.splits)
        missing = [language for language in languages if language not in builder.info.features]
        if missing:
            raise UserError(
                f"The data set {builder.info.full_name} has no feature '{missing[0]}'; "
                f"it has {', '.join(builder.info.features)}."
            )
        try:
            self._records = builder.as_data_source(split=split)
        except (ValueError, KeyError, AssertionError):
            raise UserError(
                f"The data set {builder.info.full_name} has no split '{split}'; it has {known}."
            ) from None
        if not len(self._records):
            raise UserError(f"The split '{split}' of {builder.info.full_name} is empty.")
        self._languages = languages
        self.fingerprint = f"tfds-{builder.info.full_name}-{split}-{len(self)}-{'-'.join(languages)}"

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index):
        if isinstance(index, slice):  # at once: four times as fast as one by one
            records = self._records.__getitems__(list(range(*index.indices(len(self)))))
            return [self._pair(record) for record in records]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._pair(self._records[index])

    def _pair(self, record):
        return tuple(_text(record[language]) for language in self._languages)


def _text(value):
    return (value.decode("utf-8") if isinstance(value, bytes) else str(value)).strip()


def _builder(config):
    if config.kind == "builtin":
        from tfm.data.language.builder import prepare  # TFDS takes half a second to import

        return prepare(config.directory or os.path.join(config.cache, "builtin"))
    return _tfds_builder(config.name, config.directory)


def _tfds_builder(name, directory):
    """A builder by name, downloaded and prepared as array_record files where that was not done yet."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    def make():
        return tfds.builder(name, data_dir=directory or None, file_format="array_record")

    try:
        folder = make().data_dir
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        raise UserError(f"TFDS has no data set '{name}' ({_first_line(error)}); check data.name.") from None
    try:
        return prepared(make)
    except (OSError, tfds.download.DownloadError) as error:
        raise UserError(
            f"The data set '{name}' could not be prepared in {folder} ({_first_line(error)}); "
            "check the network and the disk, or prepare it elsewhere and set data.directory."
        ) from None


def _first_line(error):
    return str(error).strip().split("\n")[0]
