"""Word pieces of SentencePiece, byte-pair encoding by default, shared by both languages (section 5.1)."""

import functools
import os
from collections.abc import Sequence

import sentencepiece

from tfm.data.tokenizers.file_tokenizer import FileTokenizer, find_special_ids

WORD_START = "\u2581"  # SentencePiece writes a space as this character


PRIVATE_CHARACTERS = range(0xE000, 0xF900)  # no text that a model is trained on has all of them


def _byte_pieces(character: str) -> list[str]:
    """Returns the pieces of the UTF-8 bytes of a character."""
    return [f"<0x{byte:02X}>" for byte in character.encode()]


BYTES_OF_WORD_START = _byte_pieces(WORD_START)


class WordPieces(FileTokenizer):
    """Converts texts to ids of word pieces and back. Pieces have `WORD_START` in place of a space.

    Characters that are missing in the training text become bytes. Decoding therefore returns every encoded
    text, unless the file normalizes texts (`data.normalization`). Files from elsewhere may be lossy, and
    their pieces may be of any type of SentencePiece.

    Args:
      serialized: content of a model file of SentencePiece.

    Raises:
      RuntimeError, UnicodeDecodeError: if `serialized` is not a model.
    """

    def __init__(self, serialized: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        self._in_file = range(self._processor.get_piece_size())
        if not self._in_file:
            raise RuntimeError("the model has no pieces")
        pieces = [self._processor.id_to_piece(i) for i in self._in_file]
        set_ids = [self._processor.pad_id(), self._processor.bos_id(), self._processor.eos_id()]
        controls = [piece if self._processor.is_control(i) else "" for i, piece in enumerate(pieces)]
        named_ids = find_special_ids(controls)
        special_ids = [i if i >= 0 else named for i, named in zip(set_ids, named_ids, strict=True)]
        super().__init__(serialized, pieces, special_ids)
        # SentencePiece gives no special id to a text, so that ids that keep their places need no exchange.
        self._keeps_ids = self.file_ids == list(self._in_file)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`."""
        pieces = self.pieces(ids)
        return [
            i == 0 or (piece.startswith(WORD_START) and before != WORD_START)  # two blanks end one word
            for i, (before, piece) in enumerate(zip(["", *pieces], pieces, strict=False))
        ]

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
        unknown = self._find_unknown_ids()
        return [i for i in self._in_file if i not in unknown and not self._processor.is_control(i)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encoded = self._processor.encode(texts, num_threads=os.cpu_count())
        for i, text in enumerate(texts):
            if WORD_START in text and BYTES_OF_WORD_START[0] in self._pieces:
                encoded[i] = self._encode_word_starts(text)
        return encoded

    def _encode_word_starts(self, text: str) -> list[int]:
        """Returns the ids in the file of a text that contains `WORD_START`.

        SentencePiece would read `WORD_START` as a space. A character that the vocabulary lacks therefore
        takes its place, and the bytes of this character become the bytes of `WORD_START`.
        """
        stand_in = next(
            mark for mark in map(chr, PRIVATE_CHARACTERS) if mark not in text and self._lacks(mark)
        )
        pieces = " ".join(self._processor.encode(text.replace(WORD_START, stand_in), out_type=str))
        pieces = pieces.replace(" ".join(_byte_pieces(stand_in)), " ".join(BYTES_OF_WORD_START))
        return [self._processor.piece_to_id(piece) for piece in pieces.split(" ")]

    def _lacks(self, character: str) -> bool:
        """Returns whether the vocabulary lacks a character. The character then becomes its bytes."""
        return self._processor.encode(character, out_type=str)[-3:] == _byte_pieces(character)

    def _decode(self, file_ids: list[int]) -> str:
        return self._processor.decode(file_ids)

    def _find_unknown_ids(self) -> set[int]:
        processor = self._processor
        return {i for i in self._in_file if processor.is_byte(i) or processor.is_unknown(i)}
