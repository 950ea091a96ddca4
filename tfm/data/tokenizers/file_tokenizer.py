"""The common parts of tokenizers that are read from a file of another project."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.protocol import EOS_ID, PieceTokenizer, cut_at_end, require_characters

# The names of padding, BOS and EOS between brackets or bars, in lower case.
SPECIAL_NAMES = (
    ("pad", "padding"),
    ("s", "bos", "cls", "startoftext", "begin_of_text"),
    ("/s", "eos", "sep", "endoftext", "end_of_text"),
)
ADDED_TOKENS = ("<pad>", "<s>", "</s>")
BRACKETED = re.compile(r"[<\[]\|?(/?\w+)\|?[>\]]")  # <pad>, [PAD], <|endoftext|>


def find_special_ids(pieces: Sequence[str], flagged: Collection[str] = ()) -> list[int]:
    """Returns the ids of padding, BOS and EOS in a list of pieces. The id of a missing token is -1.

    Args:
      pieces: the piece of each id.
      flagged: pieces that the file flags as special. Another piece has a role only if its name fits and the
        name of no flagged piece does, because it may be an ordinary word.
    """
    names = _number_names(pieces)
    flagged_names = _number_names([piece if piece in flagged else "" for piece in pieces])
    return [
        _find_special_id(model_id, role, pieces, flagged, (flagged_names, names))
        for model_id, role in enumerate(SPECIAL_NAMES)
    ]


def _find_special_id(
    model_id: int,
    role: Collection[str],
    pieces: Sequence[str],
    flagged: Collection[str],
    numbered_names: Iterable[Mapping[str, int]],
) -> int:
    """Returns the id of a special token in a list of pieces, or -1 if it is missing.

    Args:
      model_id: id of the token in tfm. A flagged piece that has this id already stays, although a piece with
        a more usual name may follow.
      role: names of the token, the most usual first.
      pieces, flagged: see `find_special_ids`.
      numbered_names: {name: id} of the flagged pieces, and of all pieces.
    """
    piece = pieces[model_id] if model_id < len(pieces) else ""
    if piece in flagged and name_in_brackets(piece) in role:
        return model_id
    return next((ids[name] for ids in numbered_names for name in role if name in ids), -1)


def name_in_brackets(piece: str) -> str:
    """Returns the name between the brackets of a special token in lower case, "" for another piece."""
    bracketed = BRACKETED.fullmatch(piece)
    return bracketed[1].lower() if bracketed else ""


def _number_names(pieces: Sequence[str]) -> dict[str, int]:
    """Returns {name between brackets, in lower case: first id}."""
    names: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if name := name_in_brackets(piece):
            names.setdefault(name, i)
    return names


class FileTokenizer(PieceTokenizer):
    """A tokenizer whose special ids in its file may differ from 0, 1 and 2.

    The special tokens of the file change places with the tokens that have these ids in the file. All other
    tokens keep their ids. A special token that the file lacks is added after all others. Subclasses encode
    and decode with the ids of the file, and define `word_starts`.

    Args:
      serialized: content of the file.
      pieces: the piece of each id in the file.
      special_ids: the ids of padding, BOS and EOS in the file; -1 for a token that the file lacks.

    Attributes:
      fingerprint: hash of the file.
      file_ids: the id in the file of each token.
    """

    def __init__(self, serialized: bytes, pieces: Sequence[str], special_ids: Sequence[int]):
        self._serialized = serialized
        self.fingerprint = hashlib.sha256(serialized).hexdigest()
        pieces = list(pieces)
        special_ids = list(special_ids)
        for role, file_id in enumerate(special_ids):
            if file_id < 0:
                special_ids[role] = len(pieces)
                pieces.append(ADDED_TOKENS[role])
        self.file_ids = list(range(len(pieces)))
        for model_id, file_id in enumerate(special_ids):
            place = self.file_ids.index(file_id)
            self.file_ids[model_id], self.file_ids[place] = self.file_ids[place], self.file_ids[model_id]
        self._model_ids = sorted(range(len(pieces)), key=self.file_ids.__getitem__)
        self._keeps_ids = False
        self._pieces = [pieces[i] for i in self.file_ids]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._serialized,)  # the objects of the libraries cannot be pickled

    def __len__(self) -> int:
        return len(self.file_ids)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer.encode`. Uses all cores."""
        encoded = self._encode_whole_characters(list(texts))
        if self._keeps_ids:
            return encoded
        return [[i for i in map(self._model_ids.__getitem__, ids) if i > EOS_ID] for ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer.decode`."""
        return self._decode([self.file_ids[i] for i in cut_at_end(ids)])

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """See `Tokenizer.unknown_characters`."""
        characters = list(characters)
        unknown, encoded = self._find_unknown_ids(), self._encode_whole_characters(characters)
        return [
            character
            for character, ids in zip(characters, encoded, strict=True)
            if not unknown.isdisjoint(ids) or (not ids and character.strip())
        ]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """See `PieceTokenizer.pieces`."""
        return [self._pieces[int(i)] for i in ids]

    def _encode_whole_characters(self, texts: list[str]) -> list[list[int]]:
        """Returns the result of `_encode`, and raises a UserError for half of a character."""
        try:
            return self._encode(texts)
        except TypeError:
            require_characters(texts)
            raise

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Returns a list of ids in the file for each text, and raises a TypeError for half of a character."""
        raise NotImplementedError

    def _decode(self, file_ids: list[int]) -> str:
        """Returns the text of ids in the file."""
        raise NotImplementedError

    def _find_unknown_ids(self) -> set[int]:
        """Returns the ids in the file of bytes and unknown pieces."""
        raise NotImplementedError
