"""Learning of word pieces from a text, by byte-pair encoding with SentencePiece."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import sentencepiece

from tfm.data.config import AUTO
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.io.files import atomic_file

UNK_ID = 3
MAX_TEXT_BYTES = 1 << 16  # longer texts are ignored
# Parts of SentencePiece's error messages: the nearest size that a text allows, and texts without characters.
LIMIT = re.compile(r"(?:<= |required_chars\. \d+ vs )(\d+)")
NOTHING = re.compile(r"sentences_\.empty|all_chars_count")
LOSSLESS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
}


class RepeatableTexts:
    """Texts that can be read several times, without keeping them in memory.

    Args:
      read: returns an iterator over the texts.
    """

    def __init__(self, read: Callable[[], Iterator[str]]):
        self._read = read

    def __iter__(self) -> Iterator[str]:
        return self._read()


def learn_word_pieces(
    texts: Iterable[str], size: int | str, path: str, *, lossless: bool = False, symbols: Iterable[str] = ()
) -> WordPieces:
    """Learns word pieces, writes the model to a file and returns the tokenizer.

    If learning or writing fails, no partial file remains.

    Args:
      texts: training texts. Texts of more than 65,536 bytes are ignored. They are read several times if
        `size` is AUTO. The texts of an iterator are kept in memory for this.
      size: number of pieces, including special tokens and bytes. AUTO gives the result of `choose_size`, or
        the nearest size that the texts allow.
      path: path of the model file.
      lossless: whether the pieces keep every character, including white space and line ends. By default,
        texts are normalised.
      symbols: texts that always become a single piece, wherever they occur.

    Raises:
      UserError: if the texts do not allow `size` (the message has the nearest size) or have nothing to learn
        from, or if the file cannot be written.
    """
    texts = list(texts) if iter(texts) is texts else texts
    symbols = [*symbols, *("\n" if lossless else "")]
    options = (LOSSLESS if lossless else {}) | {"user_defined_symbols": symbols}
    pieces = choose_size(sum(len(text.encode("utf-8")) for text in texts)) if size == AUTO else int(size)
    with atomic_file(path) as file:
        error = _train(texts, max(pieces, UNK_ID + 1), options, file)
        if size == AUTO and (limit := LIMIT.search(error)):
            error = _train(texts, int(limit[1]), options, file)
        if error:
            raise UserError(_explain(error, pieces))
    with open(path, "rb") as model:
        return WordPieces(model.read())


def choose_size(text_bytes: int) -> int:
    """Returns a number of word pieces that suits the size of a training text, a multiple of 100.

    The number grows with the cube root of the text. The 4.5 million pairs of WMT14 (1.2 GB) get about 35,000
    pieces, close to the 37,000 of the paper. 29,000 short pairs (4 MB) get 5,200.
    """
    return 100 * max(round(0.33 * text_bytes ** (1 / 3)), 1)


def _train(texts: Iterable[str], pieces: int, options: dict[str, Any], file: IO[bytes]) -> str:
    """Trains a model and writes it to a file. Returns the error message of SentencePiece, or ""."""
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=pieces,
            model_type="bpe",
            character_coverage=1.0,
            byte_fallback=True,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            max_sentence_length=MAX_TEXT_BYTES,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        return str(error)
    return ""


def _explain(error: str, pieces: int) -> str:
    """Returns an error message for users for an error message of SentencePiece."""
    if limit := LIMIT.search(error):
        bound = "at most" if "too high" in error else "at least"
        return (
            f"data.vocabulary_size must be {bound} {int(limit[1]):,} for this training text, got {pieces:,}. "
            f"Choose such a size, or set data.vocabulary_size={AUTO}."
        )
    if NOTHING.search(error):
        return (
            "The training text has nothing to learn word pieces from. Each text is blank, has only invisible "
            f"characters, or is longer than {MAX_TEXT_BYTES:,} bytes. Check the data."
        )
    return f"SentencePiece could not learn {pieces:,} word pieces: {error.strip()}"
