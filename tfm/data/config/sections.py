"""The common parts of the data sections of a config."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tfm.config import DOTTED, OnResume, check_fields, field
from tfm.errors import UserError
from tfm.io.files import last_part, user_cache
from tfm.io.remote import check_url, is_url

if TYPE_CHECKING:
    from tfm.data.source import Source
    from tfm.data.sources.columns import ListColumns

# The pattern excludes the namespaces of TFDS's community, because TFDS would download and run their code.
TFDS_NAME = re.compile(r"\w+(/[\w.+-]+)?(:[\d.*]+)?")
HUGGINGFACE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.+-]+)?")
SPLITS = ("train", "validation", "test")
KINDS = ("text", "table", "huggingface", "tfds", "builtin")
FORMATS = ("tsv", "csv", "jsonl", "parquet")  # of table files
VOCABULARY_FILE = "vocabulary.model"  # the tokenizer of a run, in the work directory
SOURCE_VOCABULARY_FILE = "source_vocabulary.model"  # if the source has a separate tokenizer
BUILTIN_DOCUMENTS = ("pydoc_topics",)
OWN_TOKENIZER = r".+\.(?:model|spm|json)|.*/.*"
OWN_TOKENIZER_FORM = "the path of a file that ends in .model, .spm or .json, or of a folder"
TOKENIZER_JSON = "tokenizer.json"  # of Hugging Face
AUTO = "auto"  # a `vocabulary_size` that the size of the text decides
MAX_SIDE_TOKENS = 65_536  # of one side of a pair, or of a row
vocabulary_field = functools.partial(field, asset=VOCABULARY_FILE)


def tokenizer_rules(*kinds: str) -> dict[str, Any]:
    """Returns the rules of a field that contains one of the kinds of tokenizers, or the path of a file."""
    return {
        "pattern": re.compile("|".join((*kinds, OWN_TOKENIZER)), re.DOTALL),
        "form": f"{', '.join(kinds)}, or {OWN_TOKENIZER_FORM}",
        "resume": OnResume.FIXED,
    }


def kind_rules(*kinds: str) -> dict[str, Any]:
    """Returns the rules of a field that contains a kind of data, or names a function that opens the data."""
    return {
        "pattern": re.compile("|".join((*kinds, DOTTED.pattern)), re.ASCII),
        "form": f"one of {', '.join(kinds)}, or package.module:function",
    }


def require_local(data: Any) -> None:
    """Raises a UserError if the folder of a data section is a URL. A function of the user may read a URL."""
    if is_url(data.directory) and not DOTTED.fullmatch(data.kind):
        check_url(data.directory)  # the message must not repeat a password
        raise UserError(
            f"Expected data.directory to be a local folder for data.kind={data.kind}, because only texts and "
            f"tables are read from a URL, got {data.directory}. Copy the data to this machine."
        )


class DataSection:
    """The base of all data sections of a config. Its subclasses are frozen dataclasses."""

    URL_KINDS: ClassVar[tuple[str, ...]] = ()  # kinds of data whose folder may be a URL

    kind: str
    name: str
    train: str
    validation: str

    def __post_init__(self):
        """Checks the fields.

        Raises:
          UserError: if a field is invalid, or if the data are of a kind that is not read from a URL, or if
            `kind` is "tfds" and `name` does not have the form of a TFDS name. TFDS would search the data sets
            of its community for other names.
        """
        check_fields(self, "data")
        if self.kind not in self.URL_KINDS:
            require_local(self)
        if self.kind == "tfds" and not TFDS_NAME.fullmatch(self.name):
            raise UserError(
                "data.name must be a name such as wmt14_translate/de-en or lm1b for data.kind=tfds, got "
                f"{self.name!r}."
            )


class TextSection(DataSection):
    """The base of the data sections whose texts become tokens."""

    URL_KINDS: ClassVar[tuple[str, ...]] = ("text", "table")

    batch_tokens: int
    cache_dir: str
    # {kind: function "package.module:function"} of the kinds of data that only this section has.
    own_kinds: ClassVar[Mapping[str, str]] = {}

    @property
    def cache(self) -> str:
        """Folder of prepared data and tokens: `cache_dir`, or by default the user's cache folder."""
        return self.cache_dir or user_cache()

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Those of the columns whose values may be numbers, booleans or classes instead of texts."""
        return ()

    @property
    def list_columns(self) -> "ListColumns":
        """Those of the columns whose values may be lists of texts, with the function that joins a list."""
        return {}

    def open_rows(self, name: str) -> "Source | None":
        """Returns the rows of a split by a rule of this section, or None if `kind` says how to open them."""
        del name
        return None

    @property
    def summary(self) -> str:
        """Description of the data for the model card, such as "text files, train, validated on dev"."""
        is_named = self.name in BUILTIN_DOCUMENTS
        where = {
            "text": "text files",
            "table": "tables",
            "huggingface": f"Hugging Face {self.name}" if self.name else "a saved data set",
            "tfds": f"TFDS {self.name}",
            "builtin": f"the built-in {self.name}" if is_named else "the built-in language of tfm",
        }
        source = where.get(self.kind, self.kind)
        return f"{source}, {self.train}, validated on {self.validation}"

    def check_batch(self, row_field: str) -> None:
        """Checks the size of a batch.

        Raises:
          UserError: if a batch has fewer tokens than a single row, whose tokens are the value of `row_field`.
        """
        row_tokens = getattr(self, row_field)
        if self.batch_tokens < row_tokens:
            raise UserError(
                f"data.batch_tokens must be at least data.{row_field} ({row_tokens:,}), the tokens of a "
                f"single row, got {self.batch_tokens:,}."
            )


def remove_paths(data: Any) -> Any:
    """Returns the data section without folders, also in the names of its splits, so that it can be published.

    The name of a Hugging Face data set is removed too if the data were read from a folder, because the name
    is not used then and could be the name of other data.
    """
    names = {split: remove_folders(getattr(data, split)) for split in SPLITS}
    if data.kind == "huggingface" and data.directory:
        names["name"] = ""
    tokenizer = remove_tokenizer_folder(data.tokenizer)
    return dataclasses.replace(data, directory="", cache_dir="", tokenizer=tokenizer, **names)


def remove_tokenizer_folder(tokenizer: str) -> str:
    """Returns a value of `data.tokenizer` without the folders of an absolute path.

    The path of a folder with a tokenizer.json becomes the name of this file.
    """
    name = remove_folders(tokenizer)
    is_folder = name != tokenizer and not re.fullmatch(OWN_TOKENIZER, name, re.DOTALL)
    return TOKENIZER_JSON if is_folder else name


def remove_folders(names: str) -> str:
    """Removes the folders of absolute paths from names separated by commas."""
    parts = map(str.strip, names.split(","))
    return ",".join(last_part(part) if os.path.isabs(part) else part for part in parts)
