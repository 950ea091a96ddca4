"""Tokenizers of Hugging Face: files tokenizer.json, read by the package `tokenizers`."""

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.file_tokenizer import FileTokenizer, find_special_ids
from tfm.errors import UserError, install_extra

MAX_TOKENS = 10_000_000
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
BACKTRACE = "RUST_BACKTRACE"
HIDDEN = "\U000f0000"  # a private character around the names that tokens get instead of their own


class TokenizerJson(FileTokenizer):
    """A tokenizer of any type that Hugging Face's package reads.

    Texts become the tokens of the file without special tokens, also if a text has the name of one. The file's
    padding, truncation and BPE dropout are ignored. The piece of an id that the file leaves out is "".

    Args:
      serialized: content of a tokenizer.json.

    Raises:
      ValueError: if `serialized` is not a tokenizer.
      UserError: if the package is not installed.
    """

    def __init__(self, serialized: bytes):
        content = json.loads(serialized)
        self._tokenizer = _load(content)
        self._model = content["model"]
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if size > MAX_TOKENS:
            raise ValueError(f"an id is larger than {MAX_TOKENS:,}")
        pieces = [""] * size
        for piece, i in vocabulary.items():
            pieces[i] = piece
        special_ids = find_special_ids(pieces, list_flagged(content))
        names = {pieces[i] for i in special_ids if i >= 0} | {_name_unknown(self._model)}
        self._encoder = _load(_hide(content, names - {""}))
        super().__init__(serialized, pieces, special_ids)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`.

        Files mark words in different ways. A word begins where the text of two neighbours has white space
        between them.
        """
        file_ids = [self.file_ids[int(i)] for i in ids]
        starts = [True] * len(file_ids)
        for i in range(1, len(file_ids)):
            before, both = self._decode(file_ids[i - 1 : i]), self._decode(file_ids[i - 1 : i + 1])
            starts[i] = both.startswith(before) and both[len(before) :][:1].isspace()
        return starts

    def _encode(self, texts: list[str]) -> list[list[int]]:
        with explain_failure("The tokenizer.json cannot encode a text"):
            encoded = self._encoder.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def _decode(self, file_ids: list[int]) -> str:
        with explain_failure("The tokenizer.json cannot decode the tokens of a text"):
            return self._tokenizer.decode(file_ids, skip_special_tokens=False)

    def _find_unknown_ids(self) -> set[int]:
        unknown = _name_unknown(self._model)
        pieces = zip(self.file_ids, self._pieces, strict=True)
        return {i for i, piece in pieces if piece and (piece == unknown or BYTE_PIECE.fullmatch(piece))}


def list_flagged(content: Mapping[str, Any]) -> set[str]:
    """Returns the tokens that a tokenizer.json flags as special."""
    return {token["content"] for token in content.get("added_tokens") or () if token.get("special")}


@contextlib.contextmanager
def explain_failure(problem: str) -> Iterator[None]:
    """Turns an error of the package, which has no more specific class, into a UserError.

    A panic of the package, for example at a regular expression that takes too long, is no `Exception`. A
    TypeError stays, because a text with half of a character causes it.
    """
    try:
        yield
    except TypeError:
        raise
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if not is_panic and not isinstance(error, Exception):
            raise  # such as KeyboardInterrupt
        advice = (
            "Simplify the regular expressions of the file, or use another tokenizer."
            if is_panic
            else "Check the file."
        )
        raise UserError(f"{problem}: {str(error).rstrip('.')}. {advice}") from None


def _name_unknown(model: Mapping[str, Any]) -> str:
    """Returns the piece of unknown words or characters, "" if the model has none."""
    if not isinstance(model["vocab"], list):
        return model.get("unk_token") or ""
    unknown_id = model.get("unk_id")
    return "" if unknown_id is None else model["vocab"][unknown_id][0]


def _hide(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the content of a file with the same ids, in which no text has the names of some tokens.

    The field `encode_special_tokens` of the package is not enough. It leaves the names in a text to the
    model, and a model that finds whole words or pieces in its vocabulary returns the special token.
    """
    hidden = {name: f"{HIDDEN}{number}{HIDDEN}" for number, name in enumerate(sorted(names))}
    model = dict(content["model"])
    if isinstance(model["vocab"], list):  # of [text, score]
        model["vocab"] = [[hidden.get(text, text), score] for text, score in model["vocab"]]
    else:
        model["vocab"] = {hidden.get(text, text): i for text, i in model["vocab"].items()}
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _involves(merge, hidden)]
    added = [
        token | {"content": hidden.get(token["content"], token["content"])}
        for token in content.get("added_tokens") or ()
    ]
    # The post-processor would add special tokens by their names.
    return {**content, "model": model, "added_tokens": added, "post_processor": None}


def _involves(merge: Any, names: Collection[str]) -> bool:
    """Returns whether a merge of byte-pair encoding has one of the names as a part or as its result."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return not {left, right, left + right}.isdisjoint(names)


def _load(content: Any) -> Any:
    """Returns the object of the package for the content of a file, without padding, truncation and dropout.

    Raises:
      ValueError: if the content is not a tokenizer.
      UserError: if the package is not installed.
    """
    try:
        import tokenizers  # an optional package
    except ImportError:
        advice = install_extra("tokenizers")
        raise UserError(f"A tokenizer.json needs the package tokenizers: {advice}.") from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("the file is not a tokenizer")
    if content["model"].get("dropout"):
        content["model"]["dropout"] = None
    if os.environ.get(BACKTRACE) != "full":  # The stack of a panic would hide the message of its UserError.
        os.environ[BACKTRACE] = "0"
    try:
        with explain_failure("The file cannot be loaded"):
            tokenizer = tokenizers.Tokenizer.from_str(
                json.dumps(content | {"padding": None, "truncation": None})
            )
    except UserError as error:
        raise ValueError(str(error)) from None
    tokenizer.encode_special_tokens = True  # "</s>" in a text is not the end of the text
    return tokenizer
