"""The data section of a config: sentence pairs, documents or labelled images."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tfm.config import DOTTED, OnResume, check_fields, field, field_like
from tfm.errors import UserError
from tfm.io.files import last_part, user_cache

if TYPE_CHECKING:
    from tfm.data.source import Source
    from tfm.data.sources.columns import ListColumns

LANGUAGE = re.compile(r"\w[\w.-]*")  # a language becomes part of file names
LANGUAGE_FORM = "letters, digits, '.', '_' or '-'"
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
NMT_NFKC = "nmt_nfkc"
NMT_NFKC_QUOTES = "nmt_nfkc_quotes"
NORMALIZATIONS = ("none", NMT_NFKC, NMT_NFKC_QUOTES)
TOKENIZER_JSON = "tokenizer.json"  # of Hugging Face
AUTO = "auto"  # a `vocabulary_size` that the size of the text decides
FEATURE = re.compile(r"\w[\w.-]*")
MAX_SIDE_TOKENS = 65_536  # of one side of a pair, or of a row
SHARE = r"(?=[\d.]*[1-9])(\d{1,9}(\.\d{0,9})?|\.\d{1,9})"  # a number above 0
TEMPERATURE = "temperature:"  # a `mixing` that begins like this has no list of shares
MIXING = re.compile(rf"({TEMPERATURE}{SHARE}|{SHARE}(,{SHARE})*)?", re.ASCII)
# <de>, >>de<< or __de__, but not the text of a control symbol or of a byte.
TAG = r"(?!(<s>|</s>|<pad>|<unk>|<0x..>)(,|$))(<[^\s,\0]{1,60}>|>>[^\s,\0]{1,60}<<|__[^\s,\0]{1,60}__)"
TAG_WORD = re.compile(TAG)
TAGS = re.compile(rf"(?!,*$)({TAG})?(,({TAG})?)*|")
OF_SEVERAL_NAMES = ("text", "table", "builtin")  # kinds whose splits may be names separated by commas


vocabulary_field = functools.partial(field, asset=VOCABULARY_FILE)


def _tokenizer_rules(*kinds: str) -> dict[str, Any]:
    """Returns the rules of a field that contains one of the kinds of tokenizers, or the path of a file."""
    return {
        "pattern": re.compile("|".join((*kinds, OWN_TOKENIZER)), re.DOTALL),
        "form": f"{', '.join(kinds)}, or {OWN_TOKENIZER_FORM}",
        "resume": OnResume.FIXED,
    }


def _kind_rules(*kinds: str) -> dict[str, Any]:
    """Returns the rules of a field that contains a kind of data, or names a function that opens the data."""
    return {
        "pattern": re.compile("|".join((*kinds, DOTTED.pattern)), re.ASCII),
        "form": f"one of {', '.join(kinds)}, or package.module:function",
    }


class DataSection:
    """The base of all data sections of a config. Its subclasses are frozen dataclasses."""

    kind: str
    name: str
    train: str
    validation: str

    def __post_init__(self):
        """Checks the fields.

        Raises:
          UserError: if a field is invalid, or if `kind` is "tfds" and `name` does not have the form of a TFDS
            name. TFDS would search the data sets of its community for other names.
        """
        check_fields(self, "data")
        if self.kind == "tfds" and not TFDS_NAME.fullmatch(self.name):
            raise UserError(
                "data.name must be a name such as wmt14_translate/de-en or lm1b for data.kind=tfds, got "
                f"{self.name!r}."
            )


class TextSection(DataSection):
    """The base of the data sections whose texts become tokens."""

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
        """Description of the data for a line of the model card."""
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


@dataclasses.dataclass(frozen=True)
class PairsConfig(TextSection):
    """The source of sentence pairs, their vocabulary, and how they become batches."""

    kind: str = vocabulary_field(
        "tfds",
        "Kind of the data. text: two files of lines, a translation memory (.tmx), or a test set in the XML "
        "or SGML of WMT. table: TSV, CSV, JSON Lines or Parquet files. "
        "huggingface: a data set of the package datasets. tfds: a TFDS data set. builtin: the built-in "
        "language. package.module:function: a function (PairsConfig, split) -> source, see "
        "`tfm.data.source`.",
        **_kind_rules(*KINDS),
    )
    name: str = vocabulary_field(
        "wmt14_translate/de-en",
        "Name of the data set. tfds: with the configuration after a slash, such as wmt14_translate/de-en. "
        "huggingface: with the configuration after a colon, such as wmt/wmt14:de-en.",
        pattern=re.compile(f"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})?"),
        form="a name such as wmt14_translate/de-en",
    )
    directory: str = vocabulary_field(
        "",
        "Folder of the data. text, table: folder of the files. huggingface: folder written by "
        "save_to_disk; if empty, data.name is loaded. tfds: TFDS's data_dir; empty for its default. A "
        "resumed run may read from another folder if the content of the training data is the same.",
        resume=OnResume.FREE,
    )
    source_language: str = vocabulary_field(
        "en",
        "Source language. text: extension of the files, or the code in a TMX or XML file. tfds: key of the "
        "feature.",
        pattern=LANGUAGE,
        form=LANGUAGE_FORM,
    )
    target_language: str = vocabulary_field(
        "de",
        "Target language. text: extension of the files, or the code in a TMX or XML file. tfds: key of the "
        "feature.",
        pattern=LANGUAGE,
        form=LANGUAGE_FORM,
    )
    source_column: str = vocabulary_field(
        "",
        "table, huggingface: name of the source column; if empty, source_language. A number, counted from 1, "
        "selects a column of a TSV or CSV file without a header.",
    )
    target_column: str = vocabulary_field(
        "",
        "table, huggingface: name of the target column, or its number, counted from 1; if empty, "
        "target_language.",
    )
    format: str = vocabulary_field(
        "",
        "table: format of the files. If empty, the extension of each file decides.",
        choices=("", *FORMATS),
    )
    train: str = vocabulary_field(
        "train",
        "Training split. text: common stem of the two files (train for train.en and train.de, also with "
        ".gz, .xz, .bz2 or .zst), or the name of a .tmx or .xml file. table: file name. text and table also "
        "accept several names separated by "
        "commas, or a pattern (part-*). Other kinds: name of a split; TFDS also has slices such as "
        "train[:90%].",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = field(
        "test", "Test split, in the form of data.train. Training does not read it.", resume=OnResume.FREE
    )
    references: str = field(
        "",
        "Further references for the scores of an evaluation, separated by commas. text: extensions of the "
        "files (de.1,de.2 for test.de.1 and test.de.2), or the translators in XML or SGML (B,C). Other "
        "kinds: columns or features.",
        resume=OnResume.FREE,
    )
    mixing: str = field(
        "",
        "Shares of the corpora in the pairs of an epoch, such as 3,1: a number for each name in data.train. "
        "temperature:5 makes the shares proportional to the sizes of the corpora to the power 1/5. If empty, "
        "an epoch contains each pair once.",
        pattern=MIXING,
        form="numbers above 0 separated by commas, or temperature: and a number",
    )
    tags: str = vocabulary_field(
        "",
        "Tags that are added before each source text, such as <de>,<fr>: a tag for each name in a split. "
        "Each tag becomes a single piece of a new vocabulary.",
        pattern=TAGS,
        form="tags such as <de>, >>de<< or __de__ separated by commas",
    )
    source_prefix: str = vocabulary_field(
        "", "Text before each source text, such as the tag of a language or the task of T5."
    )
    target_prefix: str = vocabulary_field(
        "",
        "Text before each target text, such as the tag of a language. Translations are forced to begin with "
        "it, and it is removed from them.",
    )
    joined_share: float = vocabulary_field(
        0.0,
        "Share of the training pairs that are joined with the next pairs to texts of two to four pairs, so "
        "that the model learns to translate texts that are longer than the training sentences.",
        minimum=0,
        maximum=1,
    )
    tokenizer: str = vocabulary_field(
        "word_pieces",
        "Tokenizer of both languages. word_pieces: data.vocabulary_size pieces, learned from the training "
        "text. Otherwise the path of your own SentencePiece model or Hugging Face tokenizer.json, or of a "
        "folder with a tokenizer.json. The run keeps a copy.",
        **_tokenizer_rules("word_pieces"),
    )
    vocabulary_size: int | str = vocabulary_field(
        37_000,
        "Number of word pieces that are learned. Both languages share this vocabulary. auto: the size of the "
        "training text decides.",
        minimum=1,
        maximum=10_000_000,
        word=AUTO,
        unit="pieces",
        resume=OnResume.FIXED,
    )
    normalization: str = vocabulary_field(
        "none",
        "Normalization of the texts by a new vocabulary, and of the references of an evaluation. none: texts "
        "stay as they are. nmt_nfkc: SentencePiece's default, Unicode's NFKC and folded white space. "
        "nmt_nfkc_quotes: also typographic quotes, apostrophes and dashes become those of a keyboard.",
        choices=NORMALIZATIONS,
        resume=OnResume.FIXED,
    )
    vocabulary_pairs: int = vocabulary_field(
        5_000_000,
        "Maximum number of training pairs, evenly spaced, that the vocabulary is learned on.",
        minimum=1,
        maximum=10**12,
        unit="pairs",
        resume=OnResume.FIXED,
    )
    subword_dropout: float = field(
        0.0,
        "Probability that a merge of two pieces is dropped (BPE dropout, Provilkov et al. 2020, who use "
        "0.1). Applies to both sides of the training split.",
        minimum=0,
        less_than=1,
    )
    subword_samples: int = field(
        8,
        "Number of random tokenisations of the training split with subword_dropout. They are computed before "
        "training, and the epochs read them in turn.",
        minimum=1,
        maximum=1000,
    )
    max_length: int = field(
        256,
        "Maximum tokens of a side, including EOS. Training and validation leave out longer pairs.",
        minimum=1,
        maximum=MAX_SIDE_TOKENS,
        unit="tokens",
    )
    batching: str = field(
        "buckets",
        "Batching of the pairs. buckets: pairs of similar length are padded to one of a few shapes. packed: "
        "each row of a single shape contains several pairs.",
        choices=("buckets", "packed"),
    )
    batch_tokens: int = field(
        25_000,
        "Tokens of a batch on each side, including padding. Section 5.1 has about 25,000.",
        minimum=1,
        maximum=10**8,
        unit="tokens",
    )
    row_length: int = field(256, "Tokens of a packed row.", minimum=1, maximum=MAX_SIDE_TOKENS, unit="tokens")
    cache_dir: str = field(
        "",
        "Folder of prepared data and tokens. If empty, the user's cache folder.",
        resume=OnResume.FREE,
    )

    def __post_init__(self):
        super().__post_init__()
        if (self.mixing or self.tags) and self.kind not in OF_SEVERAL_NAMES:
            raise UserError(
                f"data.mixing and data.tags require data.kind={', '.join(OF_SEVERAL_NAMES)}, got "
                f"{self.kind!r}. Write the pairs to text or table files, or leave these two fields empty."
            )
        if self.tags and self.source_prefix:
            raise UserError("data.tags and data.source_prefix exclude each other. Leave one of them empty.")
        shares, names = self.mixing.count(",") + 1, self.train.count(",") + 1
        if self.mixing and not self.mixing.startswith(TEMPERATURE) and shares != names:
            raise UserError(
                f"data.mixing has {shares} shares, but data.train has {names} names. Give a share for each "
                "name, separated by commas."
            )
        self.check_batch("row_length" if self.batching == "packed" else "max_length")

    @property
    def languages(self) -> tuple[str, ...]:
        """The source and the target language."""
        return self.source_language, self.target_language

    @property
    def columns(self) -> tuple[str, ...]:
        """The source and the target column, feature or ending of a file."""
        if self.kind not in ("table", "huggingface"):
            return self.languages
        return self.source_column or self.source_language, self.target_column or self.target_language

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that become tokens."""
        return self.columns

    @property
    def max_side_length(self) -> int:
        """Maximum tokens of a side of a pair: `max_length`, and with packed rows at most `row_length`."""
        return min(self.max_length, self.row_length) if self.batching == "packed" else self.max_length


_shared_field = functools.partial(field_like, PairsConfig)


@dataclasses.dataclass(frozen=True)
class DocumentsConfig(TextSection):
    """The source of documents, their tokenizer, and how the tokens become rows of a batch."""

    kind: str = vocabulary_field(
        "text",
        "Kind of the data. text: text files. table: TSV, CSV, JSON Lines or Parquet files with a document in "
        "each row. huggingface: a data set of the package datasets. tfds: a TFDS data set. builtin: a "
        "built-in data set. package.module:function: your function (data section, split) -> source, see "
        "`tfm.data.source`.",
        **_kind_rules(*KINDS),
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
    format: str = _shared_field("format")
    train: str = vocabulary_field(
        "train",
        "Training split. text, table: file name (also with .gz, .xz, .bz2 or .zst), several names separated "
        "by commas, or a pattern (part-*). Other kinds: name of a split; TFDS also has slices such as "
        "train[:90%].",
    )
    validation: str = _shared_field("validation")
    test: str = _shared_field("test")
    tokenizer: str = vocabulary_field(
        "bytes",
        "Unit of the tokens. bytes: UTF-8 bytes. characters: the characters of the training text; other "
        "characters become bytes. word_pieces: a vocabulary of data.vocabulary_size pieces. Otherwise the "
        "path of your own SentencePiece model or Hugging Face tokenizer.json, or of a folder with a "
        "tokenizer.json. The run keeps a copy.",
        **_tokenizer_rules("bytes", "characters", "word_pieces"),
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
    cache_dir: str = _shared_field("cache_dir")

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


@dataclasses.dataclass(frozen=True)
class ImagesConfig(DataSection):
    """The source of labelled images, and how they become batches."""

    kind: str = field(
        "tfds",
        "Kind of the data. folder: a folder of pictures for each class. table: TSV, CSV, JSON Lines or "
        "Parquet files with a picture and a label in each row. huggingface: a data set of the package "
        "datasets. tfds: a TFDS data set. arrays: the arrays of an .npz file. digits: scikit-learn's 1,797 "
        "digits of 8 x 8 pixels (install the extra digits).",
        choices=("folder", "table", "huggingface", "tfds", "arrays", "digits"),
    )
    name: str = field(
        "mnist",
        "Name of the data set. tfds: it must have the features image and label. huggingface: with the "
        "configuration after a colon.",
        pattern=re.compile(f"({TFDS_NAME.pattern}|{HUGGINGFACE_NAME.pattern})"),
        form="a name such as mnist",
    )
    directory: str = field(
        "",
        "Folder of the data. folder, table: folder of the splits. huggingface: folder written by "
        "save_to_disk; if empty, data.name is loaded. tfds: TFDS's data_dir; empty for its default. A "
        "resumed run may read from another folder if the content of the training data is the same.",
        resume=OnResume.FREE,
    )
    pictures: str = field(
        "",
        "table: folder of the pictures in data.directory. If empty, the folder of the table.",
        resume=OnResume.FREE,
    )
    picture_column: str = field(
        "",
        "table, huggingface: column with the names of the files, or with the pictures. If empty, file_name "
        "of a table and image of a data set. A number, counted from 1, selects a column of a TSV or CSV file "
        "without a header.",
    )
    label_column: str = field(
        "label", "table, huggingface: column with the classes, in the form of data.picture_column."
    )
    format: str = _shared_field("format")
    channels: int = field(
        3,
        "folder, table, huggingface: 1 reads pictures in grey, 3 in RGB.",
        choices=(1, 3),
        minimum=1,
        maximum=3,
        resume=OnResume.FIXED,
    )
    file: str = field(
        "",
        "arrays: path of an .npz file. For each SPLIT it contains SPLIT_images, [N, height, width, C] or "
        "[N, height, width], uint8 or floats from 0 to 1, and SPLIT_labels, [N], integers from 0. The array "
        "label_names, a text for each label, is optional.",
    )
    mean: tuple[float, ...] = field(
        (),
        "arrays: means that were subtracted from the floats of the images, before they were divided by "
        "data.deviation: a value for each channel, or one for all. The images become floats from 0 to 1 "
        "again.",
        resume=OnResume.FIXED,
    )
    deviation: tuple[float, ...] = field(
        (),
        "arrays: standard deviations by which the floats were divided, see data.mean.",
        resume=OnResume.FIXED,
    )
    resize: int = field(
        0,
        "Height and width to which pictures are resized. arrays and digits are never resized. 0 keeps their "
        "size.",
        minimum=0,
        maximum=8192,
        unit="pixels",
        resume=OnResume.FIXED,
    )
    resizing: str = field(
        "crop",
        "How pictures of another shape become squares. crop: the longer side is cut in the middle. pad: the "
        "shorter side gets black margins. stretch: the aspect ratio changes.",
        choices=("crop", "pad", "stretch"),
        resume=OnResume.FIXED,
    )
    train: str = field(
        "train",
        "Training split. folder: a folder that contains a folder for each class. table: file name, or a "
        "folder with metadata.jsonl or metadata.csv. folder, table, tfds: also a part such as train[:90%]. "
        "arrays: the SPLIT in the names of the arrays. digits: train, validation or test.",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = _shared_field("test")
    batch_size: int = field(
        128, "Images of a batch, summed over all hosts.", minimum=1, maximum=10**7, unit="images"
    )
    max_shift: int = field(
        0,
        "Maximum random shift of each training image, vertically and horizontally. Zeros fill the margin.",
        minimum=0,
        maximum=4096,
        unit="pixels",
    )
    flip: bool = field(False, "Random mirroring of training images, left to right, with probability 1/2.")
    random_crop: float = field(
        0.0,
        "Smallest area of a random rectangle that is cut out of each training image and resized, as a share "
        "of the area of the image (Szegedy et al. 2015, who use 0.08). 0 turns this off.",
        minimum=0,
        maximum=1,
    )
    cache_dir: str = _shared_field("cache_dir")

    def __post_init__(self):
        super().__post_init__()
        if self.kind == "arrays" and not self.file:
            raise UserError("data.kind 'arrays' needs data.file, but it is empty. Set it to an .npz file.")
        if self.kind in ("folder", "table") and not self.directory:
            raise UserError(
                f"data.kind '{self.kind}' needs data.directory, but it is empty. Set it to a path."
            )

    def without_paths(self) -> "ImagesConfig":
        """Returns this section without the paths of this machine, for an export."""
        return dataclasses.replace(
            self,
            directory="." if self.kind in ("folder", "table") else "",  # these kinds need a folder
            pictures=last_part(self.pictures),
            file=os.path.basename(self.file),
            cache_dir="",
            train=remove_folders(self.train),
            validation=remove_folders(self.validation),
            test=remove_folders(self.test),
        )

    @property
    def cache(self) -> str:
        """Folder of prepared data: `cache_dir`, or by default the user's cache folder."""
        return self.cache_dir or user_cache()

    @property
    def summary(self) -> str:
        """Description of the data for a line of the model card."""
        of = {
            "folder": "folders of pictures",
            "table": "pictures in tables",
            "huggingface": f"Hugging Face {self.name}" if not self.directory else "a saved data set",
            "digits": "scikit-learn's digits",
            "arrays": self.file,
            "tfds": f"TFDS {self.name}",
        }
        return f"{of[self.kind]}, {self.train}, validated on {self.validation}"


def remove_paths(data: Any) -> Any:
    """Returns the data section without folders, also in the names of its splits, so that it can be published.

    The name of a Hugging Face data set is removed too if the data were read from a folder, because the name
    is not used then and could be the name of other data.
    """
    names = {split: remove_folders(getattr(data, split)) for split in SPLITS}
    if data.kind == "huggingface" and data.directory:
        names["name"] = ""
    tokenizer = remove_folders(data.tokenizer)
    if data.tokenizer != tokenizer and not re.fullmatch(OWN_TOKENIZER, tokenizer, re.DOTALL):
        tokenizer = TOKENIZER_JSON  # of a folder
    return dataclasses.replace(data, directory="", cache_dir="", tokenizer=tokenizer, **names)


def remove_folders(names: str) -> str:
    """Removes the folders of absolute paths from names separated by commas."""
    parts = map(str.strip, names.split(","))
    return ",".join(last_part(part) if os.path.isabs(part) else part for part in parts)


def split_tags(tags: str) -> list[str]:
    """Returns the tags between the commas of `data.tags`; "" stands for a corpus without a tag."""
    return tags.split(",")


def begin_with(prefix: str, text: str) -> str:
    """Returns a text with a prefix and a space before it, unless it is empty or begins with both already."""
    if not prefix or not text or text.startswith(f"{prefix} "):
        return text
    return f"{prefix} {text}"
