"""A tokenizer of word pieces: SentencePiece's byte-pair encoding, shared by both languages (section 5.1)."""

import functools
import hashlib
import itertools
import os
import random
import re
from collections.abc import Iterable
from typing import Any

import sentencepiece

from tfm.data.bpe_dropout import merge_with_dropout
from tfm.errors import UserError
from tfm.io.files import atomic_file, read_limited

PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
WORD_START = "\u2581"  # SentencePiece writes a space as this character
LARGEST_MODEL = 1 << 26  # bytes; 37,000 pieces take less than one million
MOST_PIECES = (1 << 31) - 1  # SentencePiece counts in 32 bits
LONGEST_TEXT = 1 << 16  # bytes; training ignores longer texts
LOSSLESS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
}
SENTENCE_ENDS = (".", "!", "?", ";", "\u3002")


class Tokenizer:
    """Converts texts to ids of word pieces and back. The model file contains the special ids.

    Characters that are missing in the training text become bytes. Decoding therefore returns every encoded
    text, except that SentencePiece normalises texts by default (NFKC and folded white space).

    Args:
      serialized: content of a model file of SentencePiece.

    Attributes:
      fingerprint: hash of the model file.
    """

    def __init__(self, serialized: bytes):
        self._serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        self.fingerprint = hashlib.sha256(serialized).hexdigest()

    @classmethod
    def load(cls, path: str) -> "Tokenizer":
        """Loads a tokenizer from a model file.

        Raises:
          UserError: if the file is missing or is not a SentencePiece model with this project's special ids.
        """
        try:
            tokenizer = cls(read_limited(path, LARGEST_MODEL))
            tokenizer.pieces(range(len(tokenizer)))  # fails for a damaged model whose pieces are not UTF-8
        except FileNotFoundError:
            raise UserError(f"Expected a vocabulary at {path}, but there is none. Train first.") from None
        except (RuntimeError, UnicodeDecodeError):
            raise UserError(f"{path} is not a SentencePiece model. It may be damaged.") from None
        special_ids = tokenizer._special_ids()
        if special_ids != (PAD_ID, BOS_ID, EOS_ID, UNK_ID):
            raise UserError(
                f"Expected the ids of pad, bos, eos and unk in {path} to be (0, 1, 2, 3), got {special_ids}. "
                "Use a vocabulary that this program trained."
            )
        return tokenizer

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        size: int,
        path: str,
        *,
        lossless: bool = False,
        symbols: Iterable[str] = (),
    ) -> "Tokenizer":
        """Learns a vocabulary of word pieces, writes the model to a file and returns the tokenizer.

        If training or writing fails, no partial file remains.

        Args:
          sentences: training texts. Texts of more than 65,536 bytes are ignored.
          size: number of pieces, including special ids and bytes.
          path: path of the model file.
          lossless: whether the pieces keep every character, including white space and line ends. By default,
            texts are normalised.
          symbols: texts that always become a single piece, wherever they occur.

        Raises:
          UserError: if `size` is too small or too large for the texts, there is no text to learn from, or
            the file cannot be written.
        """
        if size > MOST_PIECES:
            raise UserError(f"data.vocabulary_size must be at most {MOST_PIECES:,}, got {size:,}.")
        symbols = [*symbols, *("\n" if lossless else "")]
        with atomic_file(path) as file:
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(sentences),
                    model_writer=file,
                    vocab_size=size,
                    model_type="bpe",
                    character_coverage=1.0,
                    byte_fallback=True,
                    pad_id=PAD_ID,
                    bos_id=BOS_ID,
                    eos_id=EOS_ID,
                    unk_id=UNK_ID,
                    max_sentence_length=LONGEST_TEXT,
                    user_defined_symbols=symbols,
                    minloglevel=2,
                    **(LOSSLESS if lossless else {}),
                )
            except RuntimeError as error:
                raise UserError(_explain(size, str(error))) from None
        return cls.load(path)

    def __len__(self):
        return self._processor.get_piece_size()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns a list of ids, without special ids, for each text. Uses all cores.

        Raises:
          UserError: if a text has half of a character (a lone surrogate). Arguments of a command line that
            are not UTF-8 have such halves.
        """
        texts = list(texts)
        try:
            return self._processor.encode(texts, num_threads=os.cpu_count())
        except TypeError:
            _require_characters(texts)
            raise

    def sample(self, texts: Iterable[str], dropout: float, seed: int) -> list[list[int]]:
        """Encodes texts with BPE dropout, and returns a list of ids for each text.

        Equal texts, dropout and seed give equal ids on every machine.

        Args:
          texts: the texts.
          dropout: probability that a merge is dropped at each step.
          seed: seed of the random numbers.

        Raises:
          UserError: see `encode`.
        """
        rng, piece_ids = random.Random(seed), self._piece_ids
        return [
            [
                piece_ids[piece]
                for symbols in self._words_of(ids)
                for piece in merge_with_dropout(symbols, self._scores, dropout, rng)
            ]
            for ids in self.encode(texts)
        ]

    @functools.cached_property
    def _piece_ids(self) -> dict[str, int]:
        """{piece: id} of the whole vocabulary."""
        return {piece: i for i, piece in enumerate(self.pieces(range(len(self))))}

    @functools.cached_property
    def _scores(self) -> dict[str, float]:
        """{piece: score} of single characters and of the pieces that are results of merges."""
        processor = self._processor
        special = (processor.is_control, processor.is_unknown, processor.is_byte)
        ids = [i for i in range(len(self)) if not any(is_kind(i) for is_kind in special)]
        # Symbols defined by the user have the score 0, but so has the first merge. It has the next id after
        # the symbols and is therefore the last of these ids.
        symbols = [i for i in ids if processor.get_score(i) == 0][:-1]
        return {processor.id_to_piece(i): processor.get_score(i) for i in ids if i not in symbols}

    def _words_of(self, ids: Iterable[int]) -> list[list[str]]:
        """Returns the words of a text as lists of characters. Pieces that no merge creates stay whole."""
        words: list[list[str]] = []
        for i in ids:
            piece = self._processor.id_to_piece(i)
            if not words or piece.startswith(WORD_START):
                words.append([])
            words[-1] += piece if piece in self._scores else [piece]
        return words

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids before the first EOS. Skips padding and BOS."""
        ids = [int(i) for i in ids]
        if EOS_ID in ids:
            ids = ids[: ids.index(EOS_ID)]
        return self._processor.decode([i for i in ids if i not in (PAD_ID, BOS_ID)])

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Returns the characters that become bytes because the vocabulary has no piece for them."""
        characters = list(characters)
        is_byte = self._processor.is_byte
        return [
            character
            for character, ids in zip(characters, self.encode(characters), strict=True)
            if any(map(is_byte, ids))
        ]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces as written in the model, where `WORD_START` replaces a space, for display."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Returns for each id of a text the number of its word, counted from 0."""
        starts = [i == 0 or piece.startswith(WORD_START) for i, piece in enumerate(self.pieces(ids))]
        return list(itertools.accumulate(starts, initial=-1))[1:]

    def split(self, ids: list[int], longest: int) -> list[list[int]]:
        """Splits ids without EOS into parts of at most `longest` ids.

        Each part ends after the last sentence that fits, otherwise after the last word that fits, and
        otherwise within a word.
        """
        parts = []
        while len(ids) > longest:
            pieces = self.pieces(ids[: longest + 1])
            words = [i for i in range(1, longest + 1) if pieces[i].startswith(WORD_START)]
            sentences = [i for i in words if pieces[i - 1].endswith(SENTENCE_ENDS)]
            end = (sentences or words or [longest])[-1]
            parts.append(ids[:end])
            ids = ids[end:]
        return [*parts, ids]

    def _special_ids(self) -> tuple[int, int, int, int]:
        """Returns the model's ids of padding, BOS, EOS and unknown pieces."""
        processor = self._processor
        return (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())


def _require_characters(texts: Iterable[str]) -> None:
    """
    Raises:
      UserError: if a text cannot be written as UTF-8.
    """
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            part = ascii(text[max(error.start - 20, 0) : error.end + 20])
            message = f"Expected text, got half of a character in {part}. Convert it to UTF-8."
            raise UserError(message) from None


def _explain(size: int, error: str) -> str:
    """Returns an error message for users for an internal error message of SentencePiece."""
    if limit := re.search(r"<= (\d+)", error):
        return (
            f"The training text has too little variety for {size:,} word pieces. "
            f"Set data.vocabulary_size to at most {limit[1]}."
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", error):
        return (
            f"The characters of the training text need more than {size:,} word pieces. "
            f"Set data.vocabulary_size to at least {least[1]}."
        )
    if "unk_id()" in error:  # not even the special ids fit
        return f"{size} word pieces are too few. Increase data.vocabulary_size, for example to 8000."
    if "sentences_.empty()" in error or "all_chars_count" in error:
        return (
            "The training text has nothing to learn word pieces from. Each text is blank, has only invisible "
            f"characters, or is longer than {LONGEST_TEXT:,} bytes. Check the data."
        )
    return f"SentencePiece could not train a vocabulary of {size:,} pieces: {error.strip()}"
