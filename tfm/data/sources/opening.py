"""Opens the texts of a config, and finds what is wrong with them before work is put into them."""

import dataclasses
import functools
import json
import reprlib
from collections.abc import Callable, Sequence

from tfm.config import find_by_name
from tfm.data.config import SPLITS, DocumentsConfig, PairsConfig, split_tags
from tfm.data.data_errors import collect, raise_all
from tfm.data.source import (
    CHUNK_ROWS,
    Row,
    Source,
    clean_line,
    clean_rows,
    hash_text,
    join,
    join_neighbours,
    prefix_targets,
    tag_sources,
)
from tfm.data.sources import builtin, huggingface, tables, tfds
from tfm.data.sources.documents import open_files
from tfm.data.sources.parallel_text import open_parallel_text
from tfm.data.sources.splits import find_name, find_split_problems, list_required
from tfm.data.sources.tables import TableOptions
from tfm.data.tokenizers.learning import MAX_TEXT_BYTES
from tfm.data.tokenizers.normalization import make_normalizer
from tfm.errors import UserError
from tfm.io.remote import is_url, list_locally

SOURCE_MEMBERS = ("__len__", "__getitem__", "fingerprint")


def open_pairs(config: PairsConfig, split: str) -> Source:
    """Returns the pairs of a split, with the pairs of all its corpora; see `open_corpora`."""
    return join(open_corpora(config, split))


def open_corpora(config: PairsConfig, split: str, reference: str = "") -> list[Source]:
    """Returns the pairs of each corpus of a split. A config that neither tags nor mixes has one corpus.

    Args:
      config: the data section.
      split: "train", "validation" or "test", for the name in the config; any other text is itself the
        name, such as "pronoun" of the built-in language.
      reference: one of `data.references`, whose texts are then the targets.

    Raises:
      UserError: if a corpus is missing or cannot be opened, or the tags do not fit the corpora. A split whose
        corpora have no tag, such as real texts next to back-translations, may have fewer corpora than tags.
    """
    name = find_name(config, split)
    names = map(str.strip, name.split(",")) if config.tags or config.mixing else [name]
    corpora = [_open(config, part, clean_line, reference) for part in names]
    if split == "train":
        corpora = [join_neighbours(pairs, config.joined_share) for pairs in corpora]
    if config.source_prefix:
        corpora = [tag_sources(pairs, config.source_prefix) for pairs in corpora]
    if config.target_prefix:
        corpora = [prefix_targets(pairs, config.target_prefix) for pairs in corpora]
    if not config.tags:
        return corpora
    tags = split_tags(config.tags)
    first = tags[: len(corpora)]
    if len(tags) != len(corpora) and (len(first) < len(corpora) or any(first)):
        raise UserError(
            f"data.tags has {len(tags)} tags, but the split '{name}' has {len(corpora)} names separated by "
            "commas. Give a tag for each name, or nothing between two commas for a name without a tag. Only "
            "names without a tag may be fewer than the tags."
        )
    return [tag_sources(pairs, tag) if tag else pairs for pairs, tag in zip(corpora, first, strict=True)]


def open_documents(config: DocumentsConfig, split: str) -> Source:
    """Returns the documents of a split, as rows of one text.

    Args:
      config: the data section.
      split: see `open_corpora`.

    Raises:
      UserError: if the documents are missing, unusable or have no text.
    """
    name = find_name(config, split)
    documents = _open(config, name, str.strip)
    if not any(text for (text,) in documents):
        raise UserError(f"The split '{name}' of the data has no text: check the data.")
    return documents


def read_sides(config: PairsConfig, split: str) -> tuple[list[str], list[str]]:
    """Returns the source texts and the target texts of a split, after checking it.

    The texts are the user's, for an evaluation. They are not joined (`data.joined_share`) and have no
    prefixes (`data.source_prefix`, `data.target_prefix`). The source texts have their tags (`data.tags`), and
    the target texts are normalized (`data.normalization`).

    Raises:
      UserError: if the split cannot be used. The message lists all problems.
    """
    check_splits(config, [split])
    config = without_prefixes(dataclasses.replace(config, joined_share=0.0))
    sources, targets = zip(*open_pairs(config, split), strict=True)
    return list(sources), list(map(make_normalizer(config.normalization), targets))


def read_references(config: PairsConfig, split: str) -> list[list[str | None]]:
    """Returns the texts of each of `data.references`, normalized like the target texts of `read_sides`.

    A missing text is None, so that sacreBLEU scores the sentence with its other references. Returns [] if
    `data.references` is empty.

    Raises:
      UserError: if the texts cannot be read, or belong to other sources than the targets.
    """
    names = list(filter(None, map(str.strip, config.references.split(","))))
    if not names:
        return []
    config = dataclasses.replace(without_prefixes(config), joined_share=0.0, tags="", mixing="")
    sources = [source for source, *_ in open_pairs(config, split)]
    normalize = make_normalizer(config.normalization)
    references = []
    for name in names:
        rows = list(join(open_corpora(config, split, name)))
        if [source for source, *_ in rows] != sources:
            raise UserError(
                f"The {len(rows):,} sentences with the reference {name!r} of the split '{split}' are not the "
                f"{len(sources):,} sentences of its targets. Correct the data, or leave the name out of "
                "data.references."
            )
        references.append([normalize(text) or None for _, text, *_ in rows])
    return references


def without_prefixes(config: PairsConfig) -> PairsConfig:
    """Returns the config of the user's texts, to which no prefixes are added."""
    return dataclasses.replace(config, source_prefix="", target_prefix="")


def fingerprint_texts(sources: Sequence[str], references: Sequence[str]) -> str:
    """Returns the SHA-256 of the texts of a split, wherever they were read from."""
    return hash_text(json.dumps([sources, references]))


def check_splits(config: PairsConfig | DocumentsConfig, splits: Sequence[str] = SPLITS) -> None:
    """Opens some splits and reads all rows, so that problems show before a long tokenization.

    Raises:
      UserError: if there are problems. The message lists all problems.
    """
    raise_all(find_problems(config, splits))


def find_problems(config: PairsConfig | DocumentsConfig, splits: Sequence[str]) -> list[str]:
    """Returns why splits cannot be used, one message for each problem, or [].

    Reads all rows, and downloads a TFDS data set that does not exist yet. A test split of the default name
    may be missing. A test split that exists must be usable.
    """
    if len({*config.columns}) < len(config.columns):
        return [
            f"The source and the target are both {config.columns[0]!r}, so the text would be translated into "
            "itself. Set another language or another column."
        ]
    problems: list[str] = []
    if config.kind == "tfds":  # opening each split would repeat a download that fails
        with collect(problems):
            names = list_required(config, splits)
            tfds.check_and_prepare(config.name, config.directory, names, config.columns, config.label_columns)
    return problems or find_split_problems(config, splits, _find_problems)


def _open(
    config: PairsConfig | DocumentsConfig, name: str, clean: Callable[[str], str], reference: str = ""
) -> Source:
    """Opens the rows of a name. A name may stand for several files. See `open_corpora` for `reference`."""
    if (rows := config.open_rows(name)) is not None:
        return rows
    directory = config.directory
    if config.kind in config.URL_KINDS and is_url(directory):
        directory = list_locally(directory)
    if config.kind == "text" and isinstance(config, DocumentsConfig):
        return open_files(directory, name, config.documents, config.separator)
    if config.kind == "text":
        return open_parallel_text(directory, name, config.columns, reference)
    columns = (config.columns[0], reference) if reference else config.columns
    if config.kind == "table":
        options = TableOptions(columns, config.format, clean, config.label_columns, config.list_columns)
        return tables.open_tables(directory, name, options)
    if config.kind == "huggingface":
        return huggingface.open_dataset(
            config.name, config.directory, name, columns, clean, config.label_columns, config.list_columns
        )
    if config.kind == "tfds":
        records = tfds.open_records(config.name, config.directory, name, columns, config.label_columns)
        return clean_rows(records, clean)
    if reference:
        raise UserError(
            f"data.references needs data.kind=text, table, huggingface or tfds, got {config.kind!r}. Leave "
            "data.references empty."
        )
    if config.kind == "builtin":
        return builtin.open_texts(config, name)
    return clean_rows(_open_by_function(config, name), clean)


def _open_by_function(config: PairsConfig | DocumentsConfig, name: str) -> Source:
    """Calls the function that `data.kind` names, and checks the source that it returns."""
    kind = config.own_kinds.get(config.kind, config.kind)
    function = find_by_name({}, kind, "config.data.kind", needs=("__call__",))
    source = function(config, name)
    missing = [member for member in SOURCE_MEMBERS if not hasattr(source, member)]
    if missing:
        raise UserError(f"data.kind={config.kind} must return a source with {' and '.join(missing)}.")
    is_row = functools.partial(_is_row, len(config.columns))
    form = f"{len(config.columns)} strings, ({', '.join(config.columns)})"
    first = source[:1]
    if not isinstance(first, tuple | list) or not all(map(is_row, first)):
        raise UserError(
            f"data.kind={config.kind} must return a source whose slices are lists of rows of {form}. The "
            f"first slice of the split '{name}' is {reprlib.repr(first)}."
        )
    if not first:
        raise UserError(f"data.kind={config.kind} has no rows in the split '{name}'.")
    if isinstance(source, Source):
        return source

    def read():
        for first in range(0, len(source), CHUNK_ROWS):
            rows = source[first : first + CHUNK_ROWS]
            for number, row in enumerate(rows, first + 1):
                if not is_row(row):
                    raise UserError(
                        f"Row {number:,} of the split '{name}' of data.kind={config.kind} must have {form}, "
                        f"got {reprlib.repr(row)}."
                    )
            yield from rows

    return Source(read, lambda: source.fingerprint, lambda: len(source))


def _is_row(columns: int, row: object) -> bool:
    """Returns whether a row consists of a string for each column."""
    return isinstance(row, tuple | list) and list(map(type, row)) == [str] * columns


def _find_problems(config: PairsConfig | DocumentsConfig, split: str) -> list[str]:
    """Returns the problems of the rows of a split.

    Raises:
      UserError: if the split cannot be opened, or no row can be trained on.
    """
    if isinstance(config, DocumentsConfig):
        return open_documents(config, split).find_problems()
    pairs = open_pairs(config, split)
    problems = pairs.find_problems()
    if not problems and config.references and split == "test":
        read_references(config, split)
    if not problems and not any(map(_is_usable, pairs)):
        problems = [
            f"No pair of the split '{find_name(config, split)}' has text of at most {MAX_TEXT_BYTES:,} bytes "
            "on both sides. Expected one sentence in each line."
        ]
    return problems


def _is_usable(row: Row) -> bool:
    return all(row) and max(len(text.encode()) for text in row) <= MAX_TEXT_BYTES
