"""Texts of one language: from files, Hugging Face, TFDS or the standard library, behind one interface.

A source of documents has `len(documents)`, `documents[i] -> (text,)`, slices, and `documents.fingerprint`,
which identifies its content.
"""

import dataclasses
import functools
import hashlib
import re

from tfm.data import huggingface, tables, tfds_records
from tfm.data.config import (
    HUGGINGFACE_NAME,
    MOST_TOKENS,
    NOT_READ,
    PIPE,
    SPLITS,
    TFDS_NAME,
    DataConfig,
    check_name,
)
from tfm.data.problems import collect, raise_all
from tfm.data.tables import TableOptions
from tfm.data.text_files import OPENERS, decompress, expand_names, find_file
from tfm.data.text_source import TextSource, iterate
from tfm.data.tfds_records import RecordPairs
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, NEVER, check_fields, field, field_like
from tfm.io.files import user_cache

BUILTIN = ("pydoc_topics",)
TOKENIZER_FILE = "tokenizer.model"
FEATURE = re.compile(r"\w[\w.-]*")
LARGEST_TEXT = 1 << 33  # bytes of a file
shared_field = functools.partial(field_like, DataConfig)
ADVICE = "check data.directory and the name of the split"


@dataclasses.dataclass(frozen=True)
class DocumentsConfig:
    """Where documents come from, and how they become tokens and rows of a batch."""

    kind: str = field(
        "text",
        "text files; a table, whose rows are documents (TSV, CSV, JSON Lines, Parquet); a data set of the "
        "package datasets (huggingface), of TFDS, or a builtin one.",
        choices=("text", "table", "huggingface", "tfds", "builtin"),
        asset=TOKENIZER_FILE,
    )
    name: str = field(
        "",
        "Name of the TFDS data set, such as lm1b, of Hugging Face's with its configuration, such as "
        "Salesforce/wikitext:wikitext-2-v1, or of a builtin one: pydoc_topics, the texts of Python's help().",
        pattern=re.compile(rf"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})?"),
        form="a name such as lm1b or pydoc_topics",
        asset=TOKENIZER_FILE,
    )
    directory: str = field(
        "",
        "text, table: the folder of the files. huggingface: the folder that save_to_disk wrote, empty to "
        "load data.name. tfds: TFDS's data_dir, empty for its default.",
        resume=CHANGEABLE,
        asset=TOKENIZER_FILE,
    )
    feature: str = field(
        "text",
        "table, huggingface: the column of the text, a number counts those of a TSV or CSV file without "
        "header from 1. tfds: the feature.",
        pattern=FEATURE,
        form="letters, digits, '.', '_' or '-'",
        asset=TOKENIZER_FILE,
    )
    documents: str = field(
        "file",
        "What is a document of a text file: the whole file, a paragraph (between blank lines) or a line.",
        choices=("file", "paragraph", "line"),
        asset=TOKENIZER_FILE,
    )
    format: str = shared_field("format")
    train: str = field(
        "train",
        "text, table: the name of the file (.gz and .xz are found too), of several between commas, or a "
        "pattern (part-*). Otherwise a split, of TFDS such as train[:90%].",
        asset=TOKENIZER_FILE,
    )
    validation: str = shared_field("validation")
    test: str = shared_field("test")
    tokenizer: str = field(
        "bytes",
        "bytes (UTF-8); characters of the training text, all others as bytes; or word_pieces.",
        choices=("bytes", "characters", "word_pieces"),
        resume=NEVER,
        asset=TOKENIZER_FILE,
    )
    vocabulary_size: int = field(
        32_000,
        "Number of word pieces; bytes and characters ignore it.",
        least=1,
        most=10_000_000,
        unit="pieces",
        resume=NEVER,
        asset=TOKENIZER_FILE,
    )
    rows: str = field(
        "contiguous",
        "contiguous cuts the texts, one after the other, into rows, wherever documents end; packed puts "
        "documents or parts of them side by side, and none attends to another.",
        choices=("contiguous", "packed"),
    )
    row_length: int = field(
        1024, "Tokens of a row: how much the model sees.", least=2, most=MOST_TOKENS, unit="tokens"
    )
    batch_tokens: int = field(
        32_768, "Tokens of a batch, padding counted.", least=1, most=10**8, unit="tokens"
    )
    cache_dir: str = shared_field("cache_dir")

    def __post_init__(self):
        check_fields(self, "data")
        check_name(self.kind, self.name)
        if self.batch_tokens < self.row_length:
            raise UserError(
                f"data.batch_tokens {self.batch_tokens} holds not one row of {self.row_length} tokens."
            )
        if self.kind == "builtin" and self.name not in BUILTIN:
            raise UserError(f"data.name must be one of {BUILTIN} for builtin data, got {self.name!r}.")

    @property
    def cache(self) -> str:
        """Folder of prepared data and tokens."""
        return self.cache_dir or user_cache()

    @property
    def summary(self) -> str:
        """What the data are, in a line of the model card."""
        where = {
            "text": "text files",
            "table": "tables",
            "huggingface": f"Hugging Face `{self.name}`" if self.name else "a saved data set",
            "tfds": f"TFDS `{self.name}`",
            "builtin": f"the built-in `{self.name}`",
        }
        return f"{where[self.kind]}, `{self.train}`, validated on `{self.validation}`, as {self.tokenizer}"


class Documents:
    """Documents that are held in memory."""

    def __init__(self, texts: list[str]):
        self._texts = texts

    def __len__(self):
        return len(self._texts)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [(text,) for text in self._texts[index]]
        return (self._texts[index],)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content."""
        digest = hashlib.sha256()
        for text in self._texts:
            content = text.encode("utf-8")
            digest.update(len(content).to_bytes(8, "little") + content)
        return f"documents-{digest.hexdigest()}"


def open_documents(config: DocumentsConfig, split: str) -> Documents | TextSource | RecordPairs:
    """The documents of a split.

    Args:
      config: where they are.
      split: "train", "validation" or "test", which the config maps to a name of its own; any other name is
        taken as it is.

    Raises:
      UserError: whatever is missing or unusable.
    """
    name = getattr(config, split) if split in SPLITS else split
    if not name:
        raise UserError(f"There is no split to read: data.{split} is empty; name one, or choose another.")
    if name == PIPE:
        raise UserError(NOT_READ)
    documents: Documents | TextSource | RecordPairs
    if config.kind == "table":
        options = TableOptions((config.feature,), config.format, config.cache, str.strip)
        documents = tables.open_tables(config.directory, name, options)
    elif config.kind == "huggingface":
        columns = (config.feature,)
        documents = huggingface.open_dataset(config.name, config.directory, name, columns, str.strip)
    elif config.kind == "tfds":
        builder = tfds_records.prepare(
            tfds_records.find_builder(config.name, config.directory), config.name, config.directory
        )
        documents = RecordPairs(builder, name, (config.feature,))
    elif config.kind == "builtin":
        documents = Documents(_read_builtin(config.name, name))
    else:
        documents = Documents(_read_files(config, name))
    if not any(text for (text,) in iterate(documents)):
        raise UserError(f"The split '{name}' of the data has no text: check the data.")
    return documents


def check_documents(config: DocumentsConfig, splits: tuple[str, ...] = SPLITS) -> None:
    """Opens all splits, before work is put into one; a test split by its default name may be missing.

    Raises:
      UserError: its message lists all problems.
    """
    problems = []
    if config.kind == "builtin" and config.directory:
        problems.append(
            "data.kind is 'builtin', whose texts come with Python, and data.directory is "
            f"{config.directory}: set data.kind=text or another to read it, or leave data.directory out."
        )
    for split in splits:
        found: list[str] = []
        with collect(found):
            open_documents(config, split)
        if split != "test" or getattr(config, split) not in ("", DocumentsConfig.test):
            problems += found
    raise_all(problems)


def _read_builtin(name, split):
    from tfm.datasets.pydoc_topics import SPLITS, documents

    if split not in SPLITS:
        raise UserError(f"The builtin data set {name} has the splits {', '.join(SPLITS)}, got {split!r}.")
    return documents(split)


def _read_files(config, name):
    """The documents of one file after the other."""
    paths = expand_names(config.directory, name, list(OPENERS))
    return [text for path in paths for text in _split(_read_text(path, config.cache), config.documents)]


def _read_text(path, cache_dir):
    found = find_file(path, ADVICE)
    with open(decompress(found, cache_dir), "rb") as file:
        content = file.read(LARGEST_TEXT)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{found} is not UTF-8 ({error.reason} at byte {error.start:,}): convert it to UTF-8."
        ) from None


def _split(text, kind):
    """The documents of a file; blank ones are none."""
    if kind == "file":
        return [text] if text.strip() else []
    parts = text.split("\n") if kind == "line" else re.split(r"\n\s*\n", text)
    return [part.strip("\r\n") for part in parts if part.strip()]
