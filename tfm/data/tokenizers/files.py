"""Files of tokenizers: a run keeps one in its folder, and users bring their own."""

import json
import os
import re
from typing import Any

from tfm.data.config import AUTO, OWN_TOKENIZER, SOURCE_VOCABULARY_FILE, TOKENIZER_JSON, VOCABULARY_FILE
from tfm.data.tokenizers.characters import BYTES, FIRST_BYTE, Characters
from tfm.data.tokenizers.protocol import PieceTokenizer, Tokenizer
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.io.files import atomic_file, read_limited, spell_path

MAX_FILE_BYTES = 1 << 26  # 37,000 word pieces take less than one million


def load_word_pieces(path: str) -> PieceTokenizer:
    """Loads a tokenizer from a model file of SentencePiece or a tokenizer.json, also of a folder.

    In the folder of a run, the source may have a separate tokenizer, the attribute `source`.

    Raises:
      UserError: if the file is missing or damaged, or needs a package that is not installed.
    """
    path = find_own_file(path)
    try:
        content = read_limited(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise UserError(f"Expected a tokenizer at {path}, but there is none. Check the path.") from None
    try:
        tokenizer: Any = TokenizerJson(content) if content.lstrip()[:1] == b"{" else WordPieces(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (RuntimeError, ValueError, RecursionError):
        raise UserError(
            f"{path} is neither a SentencePiece model nor a tokenizer.json. It may be damaged."
        ) from None
    folder, name = os.path.split(path)
    source_path = os.path.join(folder, SOURCE_VOCABULARY_FILE)
    if name == VOCABULARY_FILE and os.path.exists(source_path):
        tokenizer.source = load_word_pieces(source_path)
        if len(tokenizer.source) != len(tokenizer):
            raise UserError(
                f"Expected {source_path} to have the {len(tokenizer):,} ids of {path}, got "
                f"{len(tokenizer.source):,}. Copy both files again."
            )
    return tokenizer


def load_characters(path: str) -> Characters:
    """Loads a tokenizer from a file that `learn_characters` wrote.

    Raises:
      UserError: if the file is missing or has other content.
    """
    try:
        characters = json.loads(read_limited(path, MAX_FILE_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"Expected a tokenizer at {path}, but there is none. Train first.") from None
    except (ValueError, RecursionError):
        characters = None
    if not isinstance(characters, str):
        raise UserError(f"Expected the characters of a tokenizer in {path}, but the file has other content.")
    return Characters(characters)


def load_tokenizer(path: str, kind: str) -> Tokenizer:
    """Loads the tokenizer of a run. `kind` is the value of `data.tokenizer`. Bytes need no file."""
    if kind == "bytes":
        return Characters()
    return load_characters(path) if kind == "characters" else load_word_pieces(path)


def plan_size(data: Any) -> int:
    """Returns the vocabulary size of a run that has no tokenizer yet, or a lower bound.

    The text decides the number of characters and the size for `data.vocabulary_size=auto`. In these two
    cases, the result is the number of bytes and special tokens.

    Args:
      data: a `PairsConfig` or `DocumentsConfig`.

    Raises:
      UserError: see `load_word_pieces`.
    """
    if is_own_file(data.tokenizer):
        return len(load_word_pieces(data.tokenizer))
    if data.tokenizer != "word_pieces" or data.vocabulary_size == AUTO:
        return FIRST_BYTE + BYTES
    return int(data.vocabulary_size)


def is_own_file(kind: str) -> bool:
    """Returns whether a value of `data.tokenizer` is the path of a file that the user brings."""
    return re.fullmatch(OWN_TOKENIZER, kind, re.DOTALL) is not None


def find_own_file(path: str) -> str:
    """Returns the path of the tokenizer.json of a folder, or the path itself if it is no folder."""
    path = spell_path(path)
    return os.path.join(path, TOKENIZER_JSON) if os.path.isdir(path) else path


def copy_tokenizer(source: str, path: str) -> None:
    """Copies the user's file into the folder of a run, so that the run does not depend on the original."""
    content = read_limited(find_own_file(source), MAX_FILE_BYTES)
    with atomic_file(path) as file:
        file.write(content)
