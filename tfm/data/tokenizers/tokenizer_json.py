"""Tokenizers of Hugging Face: files tokenizer.json, read by the package `tokenizers`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tfm.data.tokenizers.file_tokenizer import FileTokenizer, find_special_ids
from tfm.errors import UserError, install_extra

MAX_TOKENS = 10_000_000
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


class TokenizerJson(FileTokenizer):
    """A tokenizer of any type that Hugging Face's package reads.

    Texts become the tokens of the file without special tokens. The file's padding, truncation and BPE
    dropout are ignored. The piece of an id that the file leaves out is "".

    Args:
      serialized: content of a tokenizer.json.

    Raises:
      ValueError: if `serialized` is not a tokenizer.
      UserError: if the package is not installed.
    """

    def __init__(self, serialized: bytes):
        content = json.loads(serialized)
        self._tokenizer = _load(content)
        self._model = content["model"]
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if size > MAX_TOKENS:
            raise ValueError(f"an id is larger than {MAX_TOKENS:,}")
        pieces = [""] * size
        for piece, i in vocabulary.items():
            pieces[i] = piece
        super().__init__(serialized, pieces, find_special_ids(pieces))

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`.

        Files mark words in different ways. A word begins where the text of two neighbours has white space
        between them.
        """
        file_ids = [self.file_ids[int(i)] for i in ids]
        starts = [True] * len(file_ids)
        for i in range(1, len(file_ids)):
            before, both = self._decode(file_ids[i - 1 : i]), self._decode(file_ids[i - 1 : i + 1])
            starts[i] = both.startswith(before) and both[len(before) :][:1].isspace()
        return starts

    def _encode(self, texts: list[str]) -> list[list[int]]:
        try:
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        except TypeError:
            raise
        except Exception as error:  # the package raises no more specific class
            raise UserError(f"The tokenizer.json cannot encode a text of the data: {error}.") from None
        return [encoding.ids for encoding in encoded]

    def _decode(self, file_ids: list[int]) -> str:
        return self._tokenizer.decode(file_ids, skip_special_tokens=False)

    def _find_unknown_ids(self) -> set[int]:
        unknown = self._model.get("unk_token")
        pieces = zip(self.file_ids, self._pieces, strict=True)
        bytes_or_unknown = {i for i, piece in pieces if piece == unknown or BYTE_PIECE.fullmatch(piece)}
        return bytes_or_unknown | {self._model.get("unk_id")}


def _load(content: Any) -> Any:
    """Returns the object of the package for the content of a file, without padding, truncation and dropout.

    Raises:
      ValueError: if the content is not a tokenizer.
      UserError: if the package is not installed.
    """
    try:
        import tokenizers  # an optional package
    except ImportError:
        advice = install_extra("tokenizers")
        raise UserError(f"A tokenizer.json needs the package tokenizers: {advice}.") from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("the file is not a tokenizer")
    if content["model"].get("dropout"):
        content["model"]["dropout"] = None
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content | {"padding": None, "truncation": None}))
    except Exception as error:  # the package raises no more specific class
        raise ValueError(str(error)) from None
    tokenizer.encode_special_tokens = True  # "</s>" in a text is not the end of the text
    return tokenizer
