"""The data section of sentence pairs."""

import dataclasses
import re

from tfm.config import OnResume, field
from tfm.data.config.sections import (
    AUTO,
    FORMATS,
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

LANGUAGE = re.compile(r"\w[\w.-]*")  # a language becomes part of file names
LANGUAGE_FORM = "letters, digits, '.', '_' or '-'"
NMT_NFKC = "nmt_nfkc"
NMT_NFKC_QUOTES = "nmt_nfkc_quotes"
NORMALIZATIONS = ("none", NMT_NFKC, NMT_NFKC_QUOTES)
SHARE = r"(?=[\d.]*[1-9])(\d{1,9}(\.\d{0,9})?|\.\d{1,9})"  # a number above 0
TEMPERATURE = "temperature:"  # a `mixing` that begins like this has no list of shares
MIXING = re.compile(rf"({TEMPERATURE}{SHARE}|{SHARE}(,{SHARE})*)?", re.ASCII)
# <de>, >>de<< or __de__, but not the text of a control symbol or of a byte.
TAG = r"(?!(<s>|</s>|<pad>|<unk>|<0x..>)(,|$))(<[^\s,\0]{1,60}>|>>[^\s,\0]{1,60}<<|__[^\s,\0]{1,60}__)"
TAG_WORD = re.compile(TAG)
TAGS = re.compile(rf"(?!,*$)({TAG})?(,({TAG})?)*|")
OF_SEVERAL_NAMES = ("text", "table", "builtin")  # kinds whose splits may be names separated by commas


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
        **kind_rules(*KINDS),
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
        **tokenizer_rules("word_pieces"),
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
        "nmt_nfkc_quotes: typographic quotes, apostrophes and dashes also become the characters of a "
        "keyboard.",
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


def split_tags(tags: str) -> list[str]:
    """Returns the tags between the commas of `data.tags`; "" stands for a corpus without a tag."""
    return tags.split(",")


def begin_with(prefix: str, text: str) -> str:
    """Returns a text with a prefix and a space before it, unless it is empty or begins with both already."""
    if not prefix or not text or text.startswith(f"{prefix} "):
        return text
    return f"{prefix} {text}"
