"""The data section of a config."""

import dataclasses
import functools
import os
import re
from typing import Any

from tfm.config import DOTTED
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, NEVER, check_fields, field, field_like
from tfm.io.files import user_cache

LANGUAGE = re.compile(r"\w[\w.-]*")  # it becomes part of file names
LANGUAGE_FORM = "letters, digits, '.', '_' or '-'"
# Without the namespaces of TFDS's community, whose data sets are code that it would fetch and run.
TFDS_NAME = re.compile(r"\w+(/[\w.+-]+)?(:[\d.*]+)?")
HUGGINGFACE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.+-]+)?")
SPLITS = ("train", "validation", "test")
KINDS = ("text", "table", "huggingface", "tfds", "builtin", "treebank", "builtin_treebank")
FORMATS = ("tsv", "csv", "jsonl", "parquet")  # of tables
PIPE = "-"  # the name of a split that is read from standard input
NOT_READ = (
    f"The split '{PIPE}' is standard input, which tfm train reads once for data.kind=table: its config.json "
    "then names the file that keeps it."
)
VOCABULARY_FILE = "vocabulary.model"  # of translation, in the work directory
BUILTIN_DOCUMENTS = ("pydoc_topics",)
TOKENIZER_FILE = "tokenizer.model"  # of language models, in the work directory
FEATURE = re.compile(r"\w[\w.-]*")
MOST_TOKENS = 65_536  # of one side of a pair
SHARE = r"(?=[\d.]*[1-9])(\d{1,9}(\.\d{0,9})?|\.\d{1,9})"  # a number above 0
TEMPERATURE = "temperature:"  # the beginning of a `mixing` that is no list of shares
MIXING = re.compile(rf"({TEMPERATURE}{SHARE}|{SHARE}(,{SHARE})*)?", re.ASCII)
TAG = r"(?!(<s>|</s>|<pad>|<unk>|<0x..>)(,|$))(<[^\s,\0]{1,60}>|>>[^\s,\0]{1,60}<<|__[^\s,\0]{1,60}__)"
TAGS = re.compile(rf"(?!,*$)({TAG})?(,({TAG})?)*|")
OF_SEVERAL_FILES = ("text", "table")  # kinds whose splits may be several names between commas


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches."""

    kind: str = field(
        "tfds",
        "text: two files of lines. table: TSV, CSV, JSON Lines or Parquet files. huggingface: a data set of "
        "the package datasets. tfds: one of TFDS. builtin: the built-in language. treebank: bracketed files; "
        "builtin_treebank: trees of the built-in language. Or a function of your own that opens the pairs of "
        "a split: (DataConfig, split) -> a source, see `tfm.data.source`.",
        pattern=re.compile(rf"{'|'.join(KINDS)}|{DOTTED.pattern}", re.ASCII),
        form=f"one of {', '.join(KINDS)}, or package.module:function",
        asset=VOCABULARY_FILE,
    )
    name: str = field(
        "wmt14_translate/de-en",
        "Name of the TFDS data set; of Hugging Face's with its configuration, such as wmt/wmt14:de-en.",
        pattern=re.compile(f"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})?"),
        form="a name such as wmt14_translate/de-en",
        asset=VOCABULARY_FILE,
    )
    directory: str = field(
        "",
        "text, table, treebank: the folder of the files. huggingface: the folder that save_to_disk wrote, "
        "empty to load data.name. tfds: TFDS's data_dir, empty for its default. The data of a run may move; "
        "other content in the new folder is refused.",
        resume=CHANGEABLE,
        asset=VOCABULARY_FILE,
    )
    source_language: str = field(
        "en",
        "Ending of the text files, key of the TFDS features.",
        pattern=LANGUAGE,
        form=LANGUAGE_FORM,
        asset=VOCABULARY_FILE,
    )
    target_language: str = field(
        "de",
        "Ending of the text files, key of the TFDS features.",
        pattern=LANGUAGE,
        form=LANGUAGE_FORM,
        asset=VOCABULARY_FILE,
    )
    source_column: str = field(
        "",
        "table, huggingface: column of the source, empty is source_language; a number counts the columns of "
        "a TSV or CSV file without header from 1.",
        asset=VOCABULARY_FILE,
    )
    target_column: str = field(
        "", "table, huggingface: column of the target, empty is target_language.", asset=VOCABULARY_FILE
    )
    format: str = field(
        "",
        "table: tsv, csv, jsonl or parquet; empty takes it from the ending of each file.",
        choices=("", *FORMATS),
        asset=VOCABULARY_FILE,
    )
    train: str = field(
        "train",
        "text: stem of the two files (train for train.en and train.de; .gz and .xz are found too). table: "
        "the file. Both: several between commas, or a pattern (part-*). treebank: name of the file, with or "
        "without .mrg or .txt. Otherwise a split, of TFDS such as train or train[:90%].",
        asset=VOCABULARY_FILE,
    )
    validation: str = field("validation", "The same for the validation split.")
    test: str = field("test", "The same for the test split, which only eval.py reads.", resume=CHANGEABLE)
    mixing: str = field(
        "",
        "Shares of the corpora between the commas of data.train, in the pairs of an epoch, such as 3,1; or "
        "temperature:5, which raises their sizes to the power 1/5. Empty takes each pair once.",
        pattern=MIXING,
        form="numbers above 0 between commas, or temperature: and a number",
    )
    tags: str = field(
        "",
        "A text before each source, one for each name between the commas of a split, such as <de>,<fr>; "
        "each is one piece of a new vocabulary.",
        pattern=TAGS,
        form="tags such as <de>, >>de<< or __de__ between commas",
        asset=VOCABULARY_FILE,
    )
    vocabulary_size: int = field(
        37_000,
        "Word pieces, joint for both languages.",
        least=1,
        most=10_000_000,
        unit="pieces",
        resume=NEVER,
        asset=VOCABULARY_FILE,
    )
    vocabulary_pairs: int = field(
        5_000_000,
        "At most so many training pairs, evenly spaced, make the vocabulary.",
        least=1,
        most=10**12,
        unit="pairs",
        resume=NEVER,
        asset=VOCABULARY_FILE,
    )
    subword_dropout: float = field(
        0.0,
        "BPE dropout (Provilkov et al. 2020): the probability that a merge of two pieces is left out, in the "
        "training split, on both sides; the paper of it has 0.1.",
        least=0,
        below=1,
    )
    subword_samples: int = field(
        8,
        "With subword_dropout, the training split is tokenised so many times, before training; epochs read "
        "these in turn.",
        least=1,
        most=1000,
    )
    max_length: int = field(
        256,
        "Training and validation leave out pairs with more tokens on a side, EOS counted.",
        least=1,
        most=MOST_TOKENS,
        unit="tokens",
    )
    batching: str = field(
        "buckets",
        "buckets pads pairs of like length to one of a few shapes; packed puts several pairs into rows of "
        "one shape.",
        choices=("buckets", "packed"),
    )
    batch_tokens: int = field(
        25_000,
        "Tokens of a batch on each side, padding counted; section 5.1 has about 25,000.",
        least=1,
        most=10**8,
        unit="tokens",
    )
    row_length: int = field(256, "Tokens of a packed row.", least=1, most=MOST_TOKENS, unit="tokens")
    cache_dir: str = field(
        "",
        "Folder of prepared data and tokens; empty is the user's cache folder.",
        resume=CHANGEABLE,
    )

    def __post_init__(self):
        check_fields(self, "data")
        check_name(self.kind, self.name)
        if (self.mixing or self.tags) and self.kind not in OF_SEVERAL_FILES:
            raise UserError(
                f"data.mixing and data.tags are for data.kind={' and '.join(OF_SEVERAL_FILES)}, got "
                f"{self.kind!r}: write the pairs to files."
            )
        check_shares(self.mixing, len(self.train.split(",")))
        row = self.row_length if self.batching == "packed" else self.max_length
        if self.batch_tokens < row:
            raise UserError(
                f"data.batch_tokens must be at least {row}, the tokens of one row, got {self.batch_tokens}."
            )

    @property
    def cache(self) -> str:
        """Folder of prepared data and tokens."""
        return self.cache_dir or user_cache()

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source_language, self.target_language

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of source and target in a table."""
        return self.source_column or self.source_language, self.target_column or self.target_language

    @property
    def max_side_length(self) -> int:
        """Maximum tokens of a side of a pair: `max_length`, but what does not fit into a packed row."""
        return min(self.max_length, self.row_length) if self.batching == "packed" else self.max_length


_shared_field = functools.partial(field_like, DataConfig)


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
    format: str = _shared_field("format")
    train: str = field(
        "train",
        "text, table: the name of the file (.gz and .xz are found too), of several between commas, or a "
        "pattern (part-*). Otherwise a split, of TFDS such as train[:90%].",
        asset=TOKENIZER_FILE,
    )
    validation: str = _shared_field("validation")
    test: str = _shared_field("test")
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
    cache_dir: str = _shared_field("cache_dir")

    def __post_init__(self):
        check_fields(self, "data")
        check_name(self.kind, self.name)
        if self.batch_tokens < self.row_length:
            raise UserError(
                f"data.batch_tokens {self.batch_tokens} holds not one row of {self.row_length} tokens."
            )
        if self.kind == "builtin" and self.name not in BUILTIN_DOCUMENTS:
            raise UserError(
                f"data.name must be one of {BUILTIN_DOCUMENTS} for builtin data, got {self.name!r}."
            )

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


def check_name(kind: str, name: str) -> None:
    """
    Raises:
      UserError: TFDS has no data set of this name, or would look for it elsewhere.
    """
    if kind == "tfds" and not TFDS_NAME.fullmatch(name):
        raise UserError(
            "data.name must be a name such as wmt14_translate/de-en or lm1b for data.kind=tfds, got "
            f"{name!r}."
        )


def check_shares(mixing: str, corpora: int) -> None:
    """
    Raises:
      UserError: `data.mixing` gives shares to more or fewer corpora than there are.
    """
    shares = mixing.count(",") + 1
    if mixing and not mixing.startswith(TEMPERATURE) and shares != corpora:
        raise UserError(
            f"data.mixing has {shares} shares, and data.train {corpora} names between commas: give one for "
            "each."
        )


def remove_paths(data: Any) -> Any:
    """A data section without folders, and without the folders in the names of its splits.

    A data set that was saved in a folder then has no name: it would be that of another one.
    """
    names = {split: _remove_folders(getattr(data, split)) for split in SPLITS}
    if data.kind == "huggingface" and data.directory:
        names["name"] = ""
    return dataclasses.replace(data, directory="", cache_dir="", **names)


def _remove_folders(name):
    parts = (part.strip() for part in name.split(","))
    return ",".join(os.path.basename(part) if os.path.isabs(part) else part for part in parts)
