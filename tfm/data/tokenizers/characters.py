"""A tokenizer of bytes or characters, without word pieces. Decoding returns exactly the encoded text."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from tfm.data.tokenizers.protocol import EOS_ID, cut_at_end, require_characters
from tfm.io.files import atomic_file

FIRST_BYTE = EOS_ID + 1
BYTES = 256


class Characters:
    """A tokenizer with a token for each known character. Other characters become their UTF-8 bytes.

    The vocabulary consists of the special ids, the 256 bytes and the known characters. Without known
    characters, all texts become bytes. Implements `Tokenizer`.

    Args:
      characters: the known characters, in any order.

    Attributes:
      fingerprint: hash of the known characters.
    """

    def __init__(self, characters: str = ""):
        self._characters = sorted(set(characters))
        self._ids = {character: FIRST_BYTE + BYTES + i for i, character in enumerate(self._characters)}
        self.fingerprint = hashlib.sha256(self.serialize()).hexdigest()

    def __len__(self):
        return FIRST_BYTE + BYTES + len(self._characters)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        texts = list(texts)
        try:
            return [self._encode(text) for text in texts]
        except UnicodeEncodeError:
            require_characters(texts)
            raise

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """See `Tokenizer.unknown_characters`. The list is empty if the tokenizer has only bytes."""
        return [text for text in characters if self._characters and not self._ids.keys() >= set(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`. Bytes that are not UTF-8 become replacement characters."""
        return b"".join(map(self._bytes, cut_at_end(ids))).decode("utf-8", "replace")

    def serialize(self) -> bytes:
        """Returns the content of a tokenizer's file: the known characters, sorted, as a JSON text."""
        return json.dumps("".join(self._characters)).encode("utf-8")

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


def learn_characters(texts: Iterable[str], path: str) -> Characters:
    """Returns a tokenizer of the characters of `texts` and writes it to `path`.

    If writing fails, no partial file remains.

    Raises:
      UserError: if the file cannot be written.
    """
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    tokenizer = Characters("".join(characters))
    with atomic_file(path) as file:
        file.write(tokenizer.serialize())
    return tokenizer
