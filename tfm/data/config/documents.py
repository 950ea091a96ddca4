"""The data section of documents."""

import dataclasses
import functools
import re

from tfm.config import OnResume, field, field_like
from tfm.data.config.pairs import PairsConfig
from tfm.data.config.sections import (
    AUTO,
    BUILTIN_DOCUMENTS,
    HUGGINGFACE_NAME,
    KINDS,
    MAX_SIDE_TOKENS,
    TFDS_NAME,
    TextSection,
    kind_rules,
    tokenizer_rules,
    vocabulary_field,
)
from tfm.errors import UserError
from tfm.io.files import last_part

FEATURE = re.compile(r"\w[\w.-]*")
shared_field = functools.partial(field_like, PairsConfig)


@dataclasses.dataclass(frozen=True)
class DocumentsConfig(TextSection):
    """The source of documents, their tokenizer, and how the tokens become rows of a batch."""

    kind: str = vocabulary_field(
        "text",
        "Kind of the data. text: text files. table: TSV, CSV, JSON Lines or Parquet files with a document in "
        "each row. huggingface: a data set of the package datasets. tfds: a TFDS data set. builtin: a "
        "built-in data set. package.module:function: your function (data section, split) -> source, see "
        "`tfm.data.source`.",
        **kind_rules(*KINDS),
    )
    name: str = vocabulary_field(
        "",
        "Name of the data set. tfds: such as lm1b. huggingface: with the configuration after a colon, such "
        "as Salesforce/wikitext:wikitext-2-v1. builtin: pydoc_topics, the texts of Python's help().",
        pattern=re.compile(rf"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})?"),
        form="a name such as lm1b or pydoc_topics",
    )
    directory: str = vocabulary_field(
        "",
        "Folder of the data. text, table: folder of the files. huggingface: folder written by save_to_disk; "
        "if empty, data.name is loaded. tfds: TFDS's data_dir; empty for its default.",
        resume=OnResume.FREE,
    )
    feature: str = vocabulary_field(
        "text",
        "table, huggingface: name of the column with the text. A number, counted from 1, selects a column of "
        "a TSV or CSV file without a header. tfds: name of the feature.",
        pattern=FEATURE,
        form="letters, digits, '.', '_' or '-'",
    )
    documents: str = vocabulary_field(
        "file",
        "Unit of a text file that is a document: the whole file, a paragraph (separated by blank lines) or a "
        "line. Blank lines are left out, except for each_line.",
        choices=("file", "paragraph", "line", "each_line"),
    )
    separator: str = vocabulary_field(
        "",
        "Text between two documents of a text file, such as <|endoftext|>. If empty, data.documents decides.",
    )
    format: str = shared_field("format")
    train: str = vocabulary_field(
        "train",
        "Training split. text, table: file name (also with .gz, .xz, .bz2 or .zst), several names separated "
        "by commas, or a pattern (part-*). Other kinds: name of a split; TFDS also has slices such as "
        "train[:90%].",
    )
    validation: str = shared_field("validation")
    test: str = shared_field("test")
    tokenizer: str = vocabulary_field(
        "bytes",
        "Unit of the tokens. bytes: UTF-8 bytes. characters: the characters of the training text; other "
        "characters become bytes. word_pieces: a vocabulary of data.vocabulary_size pieces. Otherwise the "
        "path of your own SentencePiece model or Hugging Face tokenizer.json, or of a folder with a "
        "tokenizer.json. The run keeps a copy.",
        **tokenizer_rules("bytes", "characters", "word_pieces"),
    )
    vocabulary_size: int | str = vocabulary_field(
        32_000,
        "Number of word pieces. auto: the size of the training text decides. Other tokenizers ignore this "
        "field.",
        minimum=1,
        maximum=10_000_000,
        word=AUTO,
        unit="pieces",
        resume=OnResume.FIXED,
    )
    vocabulary_bytes: int = vocabulary_field(
        100_000_000,
        "Maximum bytes of training documents, evenly spaced, that word pieces are learned on. Learning needs "
        "about 10 times as much memory.",
        minimum=1,
        maximum=10**12,
        unit="bytes",
        resume=OnResume.FIXED,
    )
    rows: str = field(
        "contiguous",
        "Rows of a batch. contiguous: the concatenated documents are cut into rows of equal length, wherever "
        "documents end. packed: each row contains whole documents or parts of documents. They do not attend "
        "to each other.",
        choices=("contiguous", "packed"),
    )
    row_length: int = field(
        1024,
        "Tokens of a row, the longest context of training.",
        minimum=2,
        maximum=MAX_SIDE_TOKENS,
        unit="tokens",
    )
    batch_tokens: int = field(
        32_768, "Tokens of a batch, including padding.", minimum=1, maximum=10**8, unit="tokens"
    )
    cache_dir: str = shared_field("cache_dir")

    def __post_init__(self):
        super().__post_init__()
        self.check_batch("row_length")
        if self.kind == "builtin" and self.name not in BUILTIN_DOCUMENTS:
            raise UserError(
                f"data.name must be one of {', '.join(BUILTIN_DOCUMENTS)} for data.kind=builtin, got "
                f"{self.name!r}."
            )

    @property
    def columns(self) -> tuple[str]:
        """The column or feature of the texts."""
        return (self.feature,)

    @property
    def summary(self) -> str:
        """Description of the data and the tokenizer for a line of the model card."""
        return f"{super().summary}, as {last_part(self.tokenizer)}"
