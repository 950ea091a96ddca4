"""What a run's data section says."""

import dataclasses
import re

from tfm.errors import UserError
from tfm.files import user_cache

KINDS = ("text", "tfds", "builtin")
BATCHINGS = ("buckets", "packed")
LANGUAGE = re.compile(r"\w[\w.-]*")  # it becomes part of file names
# Without the namespaces of TFDS's community, whose data sets are code that it would fetch and run.
TFDS_NAME = re.compile(r"\w+(/[\w.+-]+)?(:[\d.*]+)?")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches.

    Attributes:
      kind: "text" files, a "tfds" data set, or the "builtin" language.
      name: of the TFDS data set, such as "wmt14_translate/de-en".
      directory: text: the folder of the files. tfds: TFDS's data_dir, "" for its default.
      source_language, target_language: ending of the text files, key of the TFDS features.
      train, validation, test: text: stem of the two files ("train" for train.en and train.de; .gz and .xz are
        found too). Otherwise a TFDS split such as "train" or "train[:90%]".
      vocabulary_size: word pieces, joint for both languages.
      vocabulary_pairs: at most so many training pairs, evenly spaced, make the vocabulary.
      max_length: training and validation leave out pairs with more tokens on a side, EOS counted.
      batching: "buckets" pads pairs of like length to one of a few shapes; "packed" puts several pairs into
        rows of one shape.
      batch_tokens: tokens of a batch on each side, padding counted; section 5.1 has about 25,000.
      row_length: of packed rows.
      cache_dir: folder of prepared data and tokens; "" is the user's cache folder.
    """

    kind: str = "tfds"
    name: str = "wmt14_translate/de-en"
    directory: str = ""
    source_language: str = "en"
    target_language: str = "de"
    train: str = "train"
    validation: str = "validation"
    test: str = "test"
    vocabulary_size: int = 37_000
    vocabulary_pairs: int = 5_000_000
    max_length: int = 256
    batching: str = "buckets"
    batch_tokens: int = 25_000
    row_length: int = 256
    cache_dir: str = ""

    def __post_init__(self):
        for name, allowed in (("kind", KINDS), ("batching", BATCHINGS)):
            if getattr(self, name) not in allowed:
                raise UserError(f"data.{name} must be one of {allowed}, got {getattr(self, name)!r}.")
        for language in (self.source_language, self.target_language):
            if not LANGUAGE.fullmatch(language):
                raise UserError(f"A language must be letters, digits, '.', '_' or '-', got {language!r}.")
        if not TFDS_NAME.fullmatch(self.name):
            raise UserError(f"data.name must be such as wmt14_translate/de-en, got {self.name!r}.")
        for name in ("vocabulary_size", "vocabulary_pairs", "max_length", "batch_tokens", "row_length"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name} must be at least 1, got {getattr(self, name)}.")
        longest = self.row_length if self.batching == "packed" else self.max_length
        if self.batch_tokens < longest:
            raise UserError(f"data.batch_tokens {self.batch_tokens} holds not one row of {longest} tokens.")

    @property
    def cache(self):
        """Folder of prepared data and tokens."""
        return self.cache_dir or user_cache()

    @property
    def longest(self):
        """Tokens of the longest side a batch can hold."""
        return min(self.max_length, self.row_length) if self.batching == "packed" else self.max_length
