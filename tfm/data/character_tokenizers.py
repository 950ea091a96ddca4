"""A tokenizer of bytes or characters, without word pieces. Decoding returns exactly the encoded text."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from tfm.errors import UserError
from tfm.io.files import atomic_file, read_limited

FIRST_BYTE = 3  # the ids after PAD, BOS and EOS
BYTES = 256
LARGEST_FILE = 1 << 24  # bytes; Unicode has about a million characters


class TextTokenizer(Protocol):
    """The interface of a tokenizer for language models. `tfm.data.tokenizer.Tokenizer` has it as well.

    Ids 0, 1 and 2 are padding, BOS and EOS.

    Attributes:
      fingerprint: identifies the tokenizer. Equal tokenizers have equal fingerprints.
    """

    fingerprint: str

    def __len__(self) -> int:
        """Returns the vocabulary size, V."""

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns a list of ids, without special ids, for each text."""

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Returns the characters that become bytes because the vocabulary does not contain them."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids before the first EOS."""


class CharacterTokenizer:
    """A tokenizer with a token for each known character. Other characters become their UTF-8 bytes.

    The vocabulary consists of the special ids, the 256 bytes and the known characters. Without known
    characters, all texts become bytes.

    Args:
      characters: the known characters, in any order.
    """

    def __init__(self, characters: str = ""):
        self._characters = sorted(set(characters))
        self._ids = {character: FIRST_BYTE + BYTES + i for i, character in enumerate(self._characters)}
        self.fingerprint = hashlib.sha256(self._serialized()).hexdigest()

    @classmethod
    def train(cls, texts: Iterable[str], path: str) -> "CharacterTokenizer":
        """Returns a tokenizer of the characters of `texts` and writes it to `path`.

        If writing fails, no partial file remains.
        """
        tokenizer = cls("".join(set().union(*texts)))
        with atomic_file(path) as file:
            file.write(tokenizer._serialized())
        return tokenizer

    @classmethod
    def load(cls, path: str) -> "CharacterTokenizer":
        """Loads a tokenizer from a file that `train` wrote.

        Raises:
          UserError: if the file is missing or has other content.
        """
        try:
            characters = json.loads(read_limited(path, LARGEST_FILE).decode("utf-8"))
        except FileNotFoundError:
            raise UserError(f"Expected a tokenizer at {path}, but there is none. Train first.") from None
        except (ValueError, RecursionError):
            characters = None
        if not isinstance(characters, str):
            raise UserError(
                f"Expected the characters of a tokenizer in {path}, but the file has other content."
            )
        return cls(characters)

    def __len__(self):
        return FIRST_BYTE + BYTES + len(self._characters)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns a list of ids, without special ids, for each text.

        Raises:
          UserError: if a text has half of a character (a lone surrogate). Arguments of a command line that
            are not UTF-8 have such halves.
        """
        try:
            return [self._encode(text) for text in texts]
        except UnicodeEncodeError as error:
            part = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
            message = f"Expected text, got half of a character in {part}. Convert it to UTF-8."
            raise UserError(message) from None

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Returns the characters that become bytes. The list is empty if the tokenizer has only bytes."""
        return [character for character in characters if self._characters and character not in self._ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids before the first EOS, without padding and BOS.

        Bytes that are not UTF-8 become replacement characters.
        """
        ids = [int(i) for i in ids]
        if EOS_ID in ids:
            ids = ids[: ids.index(EOS_ID)]
        return b"".join(self._bytes(i) for i in ids if i not in (PAD_ID, BOS_ID)).decode("utf-8", "replace")

    def _encode(self, text: str) -> list[int]:
        if not self._characters:
            return [FIRST_BYTE + byte for byte in text.encode("utf-8")]
        ids: list[int] = []
        for character in text:
            known = self._ids.get(character)
            ids += [known] if known else [FIRST_BYTE + byte for byte in character.encode("utf-8")]
        return ids

    def _bytes(self, token: int) -> bytes:
        """Returns the UTF-8 bytes of a token that is not special."""
        if token < FIRST_BYTE + BYTES:
            return bytes([token - FIRST_BYTE])
        return self._characters[token - FIRST_BYTE - BYTES].encode("utf-8")

    def _serialized(self) -> bytes:
        """Returns the content of the file: the known characters, sorted, as a JSON text."""
        return json.dumps("".join(self._characters)).encode("utf-8")
