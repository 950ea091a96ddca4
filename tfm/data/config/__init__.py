"""The data section of a config: sentence pairs, documents or labelled images."""

from tfm.data.config.documents import FEATURE, DocumentsConfig
from tfm.data.config.images import ImagesConfig
from tfm.data.config.pairs import (
    NMT_NFKC,
    NMT_NFKC_QUOTES,
    TAG_WORD,
    TEMPERATURE,
    PairsConfig,
    begin_with,
    split_tags,
)
from tfm.data.config.sections import (
    AUTO,
    FORMATS,
    KINDS,
    MAX_SIDE_TOKENS,
    OWN_TOKENIZER,
    SOURCE_VOCABULARY_FILE,
    SPLITS,
    TOKENIZER_JSON,
    VOCABULARY_FILE,
    DataSection,
    TextSection,
    remove_folders,
    remove_paths,
    require_local,
    vocabulary_field,
)

__all__ = [
    "AUTO",
    "FEATURE",
    "FORMATS",
    "KINDS",
    "MAX_SIDE_TOKENS",
    "NMT_NFKC",
    "NMT_NFKC_QUOTES",
    "OWN_TOKENIZER",
    "SOURCE_VOCABULARY_FILE",
    "SPLITS",
    "TAG_WORD",
    "TEMPERATURE",
    "TOKENIZER_JSON",
    "VOCABULARY_FILE",
    "DataSection",
    "DocumentsConfig",
    "ImagesConfig",
    "PairsConfig",
    "TextSection",
    "begin_with",
    "remove_folders",
    "remove_paths",
    "require_local",
    "split_tags",
    "vocabulary_field",
]
