"""Attention in fewer numbers: words, head mean, rollout, norms of values. Pure NumPy functions.

Shape letters: N layers, H heads, L queries, M keys, V value features, D model features.
"""

import difflib
import itertools
from collections.abc import Sequence

import numpy as np

SIDES_OF = {
    "encoder": ("source", "source"),
    "decoder": ("predicted", "read"),
    "cross": ("predicted", "source"),
}  # the tokens that are queries and keys of each part of the attention
WORD_START = "\u2581"  # of a piece, as SentencePiece writes it


def merge_words(weights: np.ndarray, queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
    """Weights between words: the mean over the pieces of a query word, the sum over those of a key word.

    Rows that summed to 1 still do (Clark et al. 2019, section 4.1).

    Args:
      weights: [..., L, M].
      queries, keys: the word, counted from 0 and ascending, of each of the L and M pieces.

    Returns:
      [..., words of the queries, words of the keys].
    """
    rows, columns = (np.eye(max(words, default=-1) + 1)[list(words)] for words in (queries, keys))
    return np.swapaxes(rows / rows.sum(0), 0, 1) @ weights @ columns


def head_mean(weights: np.ndarray) -> np.ndarray:
    """[N, H, L, M] -> [N, L, M]."""
    return weights.mean(1)


def attention_rollout(weights: np.ndarray) -> np.ndarray:
    """How much of each input reaches each layer through attention and the residual connections around it.

    The product of (A + I) / 2 of all layers up to this one, where A is the head mean (Abnar and Zuidema 2020,
    section 3).

    Args:
      weights: of self-attention, [N, H, L, L].

    Returns:
      [N, L, L]: row i is position i after the layer, column j the input of the first layer.
    """
    steps = (head_mean(weights) + np.eye(weights.shape[-1])) / 2
    return np.stack(list(itertools.accumulate(steps, lambda before, step: step @ before)))


def cross_rollout(cross: np.ndarray, encoder: np.ndarray) -> np.ndarray:
    """The head mean of cross-attention, led back through the encoder to its input.

    Args:
      cross: weights [N, H, L, M].
      encoder: the encoder's self-attention, [N', H', M, M].

    Returns:
      [N, L, M]: column j is the input j of the encoder, where `head_mean` has its output j.
    """
    return head_mean(cross) @ attention_rollout(encoder)[-1]


def value_norms(weights: np.ndarray, values: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """Norms of what each key adds to the output: the weight times the norm of the transformed value.

    Kobayashi et al. 2020, equation 7: a large weight on a value that is almost 0 adds nothing.

    Args:
      weights: [N, H, L, M].
      values: [N, M, H, V], biases added.
      kernels: of the output projection, [N, H, V, D].

    Returns:
      [N, H, L, M].
    """
    transformed = np.einsum("nmhv,nhvd->nhmd", values, kernels)
    return weights * np.linalg.norm(transformed, axis=-1)[:, :, None]


def joint_value_norms(weights: np.ndarray, values: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """As `value_norms`, of the sum over the heads: [N, L, M], in the units of the residual stream."""
    transformed = np.einsum("nmhv,nhvd->nhmd", values, kernels)
    products = np.einsum("nhmd,ngmd->nmhg", transformed, transformed)  # without an array of N L M D
    return np.sqrt(np.maximum(np.einsum("nhlm,nglm,nmhg->nlm", weights, weights, products), 0))


def number_words(pieces: Sequence[str]) -> list[int]:
    """The word of each piece, counted from 0; a special piece such as "</s>" is a word of its own."""
    starts = (
        i == 0 or piece.startswith(WORD_START) or _is_special(piece) or _is_special(pieces[i - 1])
        for i, piece in enumerate(pieces)
    )
    return [number - 1 for number in itertools.accumulate(starts)]


def word_texts(pieces: Sequence[str]) -> list[str]:
    """The text of each word of `number_words`; pieces of bytes are decoded."""
    words = [""] * (max(number_words(pieces), default=-1) + 1)
    for piece, word in zip(pieces, number_words(pieces), strict=True):
        words[word] += piece.removeprefix(WORD_START)
    return [_decode_bytes(word) or WORD_START for word in words]


def align_tokens(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs (i, j) of tokens of two texts that correspond: equal ones in order, and others in equal places.

    Where as many tokens of the first stand as other ones of the second, they correspond one by one.
    """
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [
        (i, j)
        for _, first_start, first_end, second_start, second_end in matcher.get_opcodes()
        if first_end - first_start == second_end - second_start
        for i, j in zip(range(first_start, first_end), range(second_start, second_end), strict=True)
    ]


def _is_special(piece):
    """Whether a piece is a control symbol, not text or a byte."""
    return piece in ("<s>", "</s>", "<pad>", "<unk>")


def _decode_bytes(word):
    """The word with runs of pieces such as <0xF0> as the characters that they encode."""
    parts: list[str] = []
    run = b""
    while word:
        if word.startswith("<0x") and word[5:6] == ">":
            run, word = run + bytes.fromhex(word[3:5]), word[6:]
            continue
        parts, run = [*parts, run.decode(errors="replace"), word[0]], b""
        word = word[1:]
    return "".join([*parts, run.decode(errors="replace")])
