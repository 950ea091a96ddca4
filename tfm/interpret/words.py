"""Words of tokenized texts, and corresponding tokens of two texts."""

import difflib
import itertools
from collections.abc import Sequence
from typing import Any

from tfm.data.tokenizers.protocol import UNKNOWN_PIECE, PieceTokenizer

BLANK = "\u2581"  # label of white space, as in SentencePiece
LINE_END = "\u21b5"  # label of the end of a line within a piece
SPECIAL_LABELS = {0: "<pad>", 1: "<s>", 2: "</s>"}  # of the special ids of a tokenizer without pieces
SEPARATE = ("", UNKNOWN_PIECE)  # labels of separate words, without the ends of lines


def label_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Returns a label for each id: its piece, or its character if the tokens are characters.

    A character of white space has the label `BLANK`. A line end within a piece has the label `LINE_END`.

    Args:
      tokenizer: a `tfm.data.tokenizers.protocol.Tokenizer`, or a `PieceTokenizer`.
      ids: ids of tokens, special ids included.
    """
    if isinstance(tokenizer, PieceTokenizer):
        return [piece.replace("\n", LINE_END) for piece in tokenizer.pieces(ids)]
    labels = (SPECIAL_LABELS.get(i) or tokenizer.decode([i]) for i in map(int, ids))
    return [BLANK if label.isspace() else label for label in labels]


def split_words(tokenizer: Any, ids: Sequence[int]) -> tuple[list[str], list[int], list[str]]:
    """Divides tokens into words. Special tokens and ends of lines are separate words.

    Returns:
      The labels of the tokens, the number of the word of each token, counted from 0, and the text of each
      word. A word without text is named by its labels.
    """
    labels, ids = label_tokens(tokenizer, ids), [int(i) for i in ids]
    has_pieces = isinstance(tokenizer, PieceTokenizer)
    starts = tokenizer.word_starts(ids) if has_pieces else [label == BLANK for label in labels]
    separate = [ids[i] in SPECIAL_LABELS or x.strip(LINE_END) in SEPARATE for i, x in enumerate(labels)]
    begins = (i == 0 or starts[i] or separate[i] or separate[i - 1] for i in range(len(labels)))
    words = [number - 1 for number in itertools.accumulate(begins)]
    texts = []
    for _, group in itertools.groupby(range(len(ids)), key=words.__getitem__):
        places = list(group)
        text = tokenizer.decode([ids[i] for i in places]).strip()
        texts.append(text or "".join(labels[i] for i in places))
    return labels, words, texts


def align_tokens(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Returns pairs (i, j) of indices of tokens that correspond in two texts.

    Equal tokens in the same order correspond. Between them, different tokens correspond one by one if both
    texts have the same number of them.
    """
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [
        (i, j)
        for _, first_start, first_end, second_start, second_end in matcher.get_opcodes()
        if first_end - first_start == second_end - second_start
        for i, j in zip(range(first_start, first_end), range(second_start, second_end), strict=True)
    ]
