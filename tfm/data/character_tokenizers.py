"""Texts as bytes or as characters: tokenizers without word pieces. Both keep every text exactly."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from tfm.errors import UserError
from tfm.io.files import atomic_file, read_limited

FIRST_BYTE = 3  # behind PAD, BOS and EOS
BYTES = 256
LARGEST_FILE = 1 << 24  # bytes; Unicode has about a million characters


class TextTokenizer(Protocol):
    """What a language model needs of a tokenizer; `tfm.data.tokenizer.Tokenizer` is one.

    Ids 0, 1 and 2 are padding, BOS and EOS.

    Attributes:
      fingerprint: identifies it.
    """

    fingerprint: str

    def __len__(self) -> int:
        """V."""

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Texts -> lists of ids, without special ids."""

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Those of some characters that it knows only as bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        """Ids up to the first EOS -> text."""


class CharacterTokenizer:
    """A token for each known character, and one for each UTF-8 byte of all others.

    Without characters it is a tokenizer of bytes.

    Args:
      characters: the known ones.
    """

    def __init__(self, characters: str = ""):
        self._characters = sorted(set(characters))
        self._ids = {character: FIRST_BYTE + BYTES + i for i, character in enumerate(self._characters)}
        self.fingerprint = hashlib.sha256(self._serialized()).hexdigest()

    @classmethod
    def train(cls, texts: Iterable[str], path: str) -> "CharacterTokenizer":
        """Knows the characters of `texts`; written to `path`, whole or not at all."""
        tokenizer = cls("".join(set().union(*texts)))
        with atomic_file(path) as file:
            file.write(tokenizer._serialized())
        return tokenizer

    @classmethod
    def load(cls, path: str) -> "CharacterTokenizer":
        """
        Raises:
          UserError: no such file, or not what `train` wrote.
        """
        try:
            characters = json.loads(read_limited(path, LARGEST_FILE).decode("utf-8"))
        except FileNotFoundError:
            raise UserError(f"Expected a tokenizer at {path}, but there is none: train first.") from None
        except (ValueError, RecursionError):
            characters = None
        if not isinstance(characters, str):
            raise UserError(f"Expected the characters of a tokenizer in {path}, but it is something else.")
        return cls(characters)

    def __len__(self):
        return FIRST_BYTE + BYTES + len(self._characters)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Texts -> lists of ids, without special ids.

        Raises:
          UserError: a text has half a character, as what is read from a command line that is not UTF-8.
        """
        try:
            return [self._encode(text) for text in texts]
        except UnicodeEncodeError as error:
            part = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
            message = f"Expected text, got half of a character in {part}: convert it to UTF-8."
            raise UserError(message) from None

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Those of some characters that become bytes; none of a tokenizer of bytes, which knows all alike."""
        return [each for each in characters if self._characters and each not in self._ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Ids up to the first EOS -> text; bytes that are no UTF-8 become replacement characters."""
        ids = [int(i) for i in ids]
        if EOS_ID in ids:
            ids = ids[: ids.index(EOS_ID)]
        return b"".join(self._bytes(i) for i in ids if i not in (PAD_ID, BOS_ID)).decode("utf-8", "replace")

    def _encode(self, text):
        if not self._characters:
            return [FIRST_BYTE + byte for byte in text.encode("utf-8")]
        ids = []
        for character in text:
            known = self._ids.get(character)
            ids += [known] if known else [FIRST_BYTE + byte for byte in character.encode("utf-8")]
        return ids

    def _bytes(self, token):
        if token < FIRST_BYTE + BYTES:
            return bytes([token - FIRST_BYTE])
        return self._characters[token - FIRST_BYTE - BYTES].encode("utf-8")

    def _serialized(self):
        return json.dumps("".join(self._characters)).encode("utf-8")
