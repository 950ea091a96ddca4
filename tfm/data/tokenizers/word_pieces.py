"""Word pieces of SentencePiece, byte-pair encoding by default, shared by both languages (section 5.1)."""

import functools
import os
from collections.abc import Sequence

import sentencepiece

from tfm.data.tokenizers.file_tokenizer import FileTokenizer
from tfm.errors import UserError

WORD_START = "\u2581"  # SentencePiece writes a space as this character


class WordPieces(FileTokenizer):
    """Converts texts to ids of word pieces and back. Pieces have `WORD_START` in place of a space.

    Characters that are missing in the training text become bytes. Decoding therefore returns every encoded
    text, except that SentencePiece normalises texts by default (NFKC and folded white space). Files from
    elsewhere may be lossy, and their pieces may be of any type of SentencePiece.

    Args:
      serialized: content of a model file of SentencePiece.

    Raises:
      RuntimeError, UnicodeDecodeError: if `serialized` is not a model.
      UserError: if the model has no padding, BOS or EOS.
    """

    def __init__(self, serialized: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        special = {name: getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos")}
        if missing := [name for name, i in special.items() if i < 0]:
            raise UserError(
                f"The SentencePiece model has no {' and no '.join(missing)} token, but pad, bos and eos are "
                "needed. Train it again, for example with --pad_id=3 for spm_train."
            )
        size = self._processor.get_piece_size()
        pieces = [self._processor.id_to_piece(i) for i in range(size)]
        super().__init__(serialized, pieces, list(special.values()))
        # SentencePiece gives no special id to a text, so that ids that keep their places need no exchange.
        self._keeps_ids = self.file_ids == list(range(size))

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
        unknown = self._find_unknown_ids()
        return [i for i in range(len(self)) if i not in unknown and not self._processor.is_control(i)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self._processor.encode(texts, num_threads=os.cpu_count())

    def _decode(self, file_ids: list[int]) -> str:
        return self._processor.decode(file_ids)

    def _find_unknown_ids(self) -> set[int]:
        processor = self._processor
        return {i for i in range(len(self)) if processor.is_byte(i) or processor.is_unknown(i)}
