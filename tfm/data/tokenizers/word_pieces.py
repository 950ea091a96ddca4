"""Word pieces of SentencePiece, byte-pair encoding by default, shared by both languages (section 5.1)."""

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece

from tfm.data.tokenizers.protocol import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    IdExchange,
    cut_at_end,
    require_characters,
)
from tfm.errors import UserError

WORD_START = "\u2581"  # SentencePiece writes a space as this character


class WordPieces:
    """Converts texts to ids of word pieces and back. Implements `PieceTokenizer`.

    Characters that are missing in the training text become bytes. Decoding therefore returns every encoded
    text, except that SentencePiece normalises texts by default (NFKC and folded white space). Files from
    elsewhere may be lossy, and their pieces may be of any type of SentencePiece.

    Args:
      serialized: content of a model file of SentencePiece.

    Attributes:
      fingerprint: hash of the model file.

    Raises:
      RuntimeError, UnicodeDecodeError: if `serialized` is not a model.
      UserError: if the model has no padding, BOS or EOS.
    """

    def __init__(self, serialized: bytes):
        self._serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        self.fingerprint = hashlib.sha256(serialized).hexdigest()
        special = {name: getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos")}
        if missing := [name for name, i in special.items() if i < 0]:
            raise UserError(
                f"The SentencePiece model has no {' and no '.join(missing)} token, but pad, bos and eos are "
                "needed. Train it again, for example with --pad_id=3 for spm_train."
            )
        ids = list(special.values())
        self._exchange = IdExchange(len(self), ids) if ids != [PAD_ID, BOS_ID, EOS_ID] else None
        file_ids = self._exchange.file_ids if self._exchange else range(len(self))
        self._pieces = [self._processor.id_to_piece(i) for i in file_ids]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._serialized,)  # the objects of SentencePiece cannot be pickled

    def __len__(self):
        return self._processor.get_piece_size()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer.encode`. Uses all cores."""
        texts = list(texts)
        try:
            encoded = self._processor.encode(texts, num_threads=os.cpu_count())
        except TypeError:
            require_characters(texts)
            raise
        return [self._exchange.to_model(ids) for ids in encoded] if self._exchange else encoded

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer.decode`."""
        ids = cut_at_end(ids)
        return self._processor.decode(self._exchange.to_file(ids) if self._exchange else ids)

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """See `Tokenizer.unknown_characters`."""
        characters = list(characters)
        processor = self._processor
        encoded = processor.encode(characters)
        return [
            character
            for character, ids in zip(characters, encoded, strict=True)
            if any(processor.is_byte(i) or processor.is_unknown(i) for i in ids)
        ]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces as written in the model, where `WORD_START` replaces a space, for display."""
        return [self._pieces[int(i)] for i in ids]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`."""
        return [i == 0 or piece.startswith(WORD_START) for i, piece in enumerate(self.pieces(ids))]

    @functools.cached_property
    def piece_ids(self) -> dict[str, int]:
        """{piece: id} of the whole vocabulary."""
        return {piece: i for i, piece in enumerate(self._pieces)}

    @functools.cached_property
    def merge_scores(self) -> dict[str, float]:
        """{piece: score} of single characters and of the pieces that are results of merges."""
        processor, ids = self._processor, self._ordinary_ids()
        # Symbols defined by the user have the score 0, but so has the first merge. It has the next id after
        # the symbols and is therefore the last of these ids.
        symbols = [i for i in ids if processor.get_score(i) == 0][:-1]
        return {processor.id_to_piece(i): processor.get_score(i) for i in ids if i not in symbols}

    @property
    def is_bpe(self) -> bool:
        """Whether the pieces are merges of byte-pair encoding. Other types have fractions as scores."""
        return not any(self._processor.get_score(i) % 1 for i in self._ordinary_ids())

    def _ordinary_ids(self) -> list[int]:
        """Returns the ids in the file of all pieces except special tokens and bytes."""
        processor = self._processor
        special = (processor.is_control, processor.is_unknown, processor.is_byte)
        return [i for i in range(len(self)) if not any(is_kind(i) for is_kind in special)]
