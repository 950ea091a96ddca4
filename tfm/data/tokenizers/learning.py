"""Learning of word pieces from a text, by byte-pair encoding with SentencePiece."""

import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import sentencepiece

from tfm.data.config import AUTO
from tfm.data.tokenizers.normalization import normalization_options
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, require_characters
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.io.files import atomic_file

UNK_ID = 3
MAX_TEXT_BYTES = 1 << 16  # SentencePiece skips longer texts, so they are cut
MIN_PIECES = 4 + 256  # special tokens and bytes
MAX_BOUND_PIECES = 1_000_000
MAX_BOUND_TEXTS = 100_000  # the largest size is computed from the first texts only, in about ten seconds
LIMIT = re.compile(r"(?:<= |required_chars\. \d+ vs )(\d+)")
UNREADABLE = re.compile("[\0\u2585]")  # SentencePiece skips texts with one of these characters
PART = re.compile(r".{1,16384}(?=\s|\Z)|.{1,16384}", re.DOTALL)  # at most MAX_TEXT_BYTES in UTF-8


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
    texts: Iterable[str],
    size: int | str,
    path: str,
    *,
    normalization: str = "none",
    has_lines: bool = False,
    symbols: Iterable[str] = (),
) -> WordPieces:
    """Learns word pieces, writes the model to a file and returns the tokenizer.

    If learning or writing fails, no partial file remains.

    Args:
      texts: training texts. They are read several times if `size` is AUTO or does not fit the texts. The
        texts of an iterator are kept in memory for this.
      size: number of pieces, including special tokens and bytes. AUTO gives the result of `choose_size`, or
        the nearest size that the texts allow.
      path: path of the model file.
      normalization: rule by which SentencePiece changes texts, one of `NORMALIZATIONS`. "none" keeps every
        character.
      has_lines: whether texts are documents. Then a line end is always a piece, and no blank is added before
        a text. Other texts get a blank, so that their first word has the pieces that it has elsewhere.
      symbols: texts that always become a single piece, wherever they occur.

    Raises:
      UserError: if the texts do not allow `size` (the message has both bounds), there is nothing to learn
        from, a text contains half of a character, or the file cannot be written.
    """
    texts = list(texts) if iter(texts) is texts else texts
    automatic = size == AUTO
    if automatic:
        pieces = choose_size(sum(len(text.encode("utf-8")) for text in _check_characters(texts)))
    else:
        pieces = int(size)
    model = io.BytesIO()
    with normalization_options(normalization) as options:
        options = options | {
            "add_dummy_prefix": not has_lines,
            "user_defined_symbols": [*symbols, *("\n" if has_lines else "")],
        }
        error = _train(texts, pieces, options, model)
        if automatic and (nearest := _limit(error)):
            error = _train(texts, nearest, options, model)
        if error:
            raise UserError(_explain(error, pieces, texts, options))
    with atomic_file(path) as file:
        file.write(model.getvalue())
    return WordPieces(model.getvalue())


def choose_size(text_bytes: int) -> int:
    """Returns a number of word pieces that suits the size of a training text, a multiple of 100.

    The number grows with the cube root of the text. The 4.5 million pairs of WMT14 (1.2 GB) get about 35,000
    pieces, close to the 37,000 of the paper. 29,000 short pairs (4 MB) get 5,200.
    """
    return 100 * max(round(0.33 * text_bytes ** (1 / 3)), 1)


def cut_text(text: str) -> Iterator[str]:
    """Yields the parts of a text that SentencePiece does not skip, cut at white space where possible."""
    for part in UNREADABLE.split(text):
        yield from PART.findall(part)


def _check_characters(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, or raises a UserError at a text that contains half of a character."""
    for text in texts:
        require_characters([text])
        yield text


def _train(texts: Iterable[str], pieces: int, options: dict[str, Any], file: IO[bytes]) -> str:
    """Trains a model and writes it to `file`. Returns the error message of SentencePiece, or "".

    SentencePiece reports an error of its iterator as a different error. The original error is raised
    instead, because it may be Ctrl-C or an error of the data.
    """
    errors: list[BaseException] = []

    def read() -> Iterator[str]:
        try:
            for text in _check_characters(texts):
                yield from (part for part in cut_text(text) if part.strip())
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            errors.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read(),
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
        if errors:
            raise errors[0] from None
        return str(error)
    return ""


def _limit(error: str) -> int | None:
    """Returns the smallest or the largest size that an error message of SentencePiece contains, if any."""
    limit = LIMIT.search(error)
    return int(limit[1]) if limit else None


def _explain(error: str, pieces: int, texts: Iterable[str], options: dict[str, Any]) -> str:
    """Returns an error message for users for an error message of SentencePiece.

    If the size is wrong, trains two models that fail to compute the smallest and the largest size.
    """
    least = _limit(_train(texts, MIN_PIECES + len(options["user_defined_symbols"]), options, io.BytesIO()))
    if least is None:
        return (
            "The training text has nothing to learn word pieces from. Each text is blank or has only "
            "invisible characters. Check the data."
        )
    if "too high" in error:
        bounds = f"from {least:,} to {_limit(error):,}"
    elif pieces < least:
        first = list(itertools.islice(texts, MAX_BOUND_TEXTS + 1))
        most = _limit(_train(first[:MAX_BOUND_TEXTS], MAX_BOUND_PIECES, options, io.BytesIO()))
        most = max(most or least, least)
        bounds = f"from {least:,} to {most:,}{' or more' if len(first) > MAX_BOUND_TEXTS else ''}"
    else:
        return f"SentencePiece could not learn {pieces:,} word pieces: {error.strip()}"
    return (
        f"data.vocabulary_size must be {bounds} for this training text, got {pieces:,}. Choose such a size, "
        f"or set data.vocabulary_size={AUTO}."
    )
