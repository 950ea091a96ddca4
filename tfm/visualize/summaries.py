"""Summaries of attention as pure NumPy functions: words, head mean, rollout, norms of values.

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
}  # the tokens that are (queries, keys) of each part of the attention
WORD_START = "\u2581"  # first character of a piece that starts a word, in SentencePiece


def merge_words(weights: np.ndarray, queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
    """Merges weights between pieces into weights between words (Clark et al. 2019, section 4.1).

    Computes the mean over the pieces of a query word, and the sum over the pieces of a key word. If all rows
    sum to 1 before, they do so afterwards.

    Args:
      weights: float [..., L, M].
      queries, keys: the number of the word of each of the L and M pieces, counted from 0 and ascending.

    Returns:
      Float [..., words of the queries, words of the keys].
    """
    rows, columns = (np.eye(max(words, default=-1) + 1)[list(words)] for words in (queries, keys))
    return np.swapaxes(rows / rows.sum(0), 0, 1) @ weights @ columns


def head_mean(weights: np.ndarray) -> np.ndarray:
    """Returns the mean over the heads: [N, H, L, M] becomes [N, L, M]."""
    return weights.mean(1)


def attention_rollout(weights: np.ndarray) -> np.ndarray:
    """Estimates how much of each input reaches each layer through attention and residual connections.

    The rollout of a layer is the product of (A + I) / 2 over all layers up to it, where A is the mean of the
    heads (Abnar and Zuidema 2020, section 3).

    Args:
      weights: weights of self-attention, float [N, H, L, L].

    Returns:
      Float [N, L, L]. Row i is position i after the layer, column j is position j of the input of the stack.
    """
    steps = (head_mean(weights) + np.eye(weights.shape[-1])) / 2
    return np.stack(list(itertools.accumulate(steps, lambda before, step: step @ before)))


def cross_rollout(cross: np.ndarray, encoder: np.ndarray) -> np.ndarray:
    """Multiplies the head mean of cross-attention by the rollout of the whole encoder.

    Args:
      cross: weights of cross-attention, float [N, H, L, M].
      encoder: weights of the encoder's self-attention, float [N', H', M, M].

    Returns:
      Float [N, L, M]. Column j is position j of the encoder's input, whereas in `head_mean` it is position j
      of the encoder's output.
    """
    return head_mean(cross) @ attention_rollout(encoder)[-1]


def value_norms(weights: np.ndarray, values: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """Computes the norm of the vector that each key adds to the output of a query.

    The norm is the weight times the norm of the value after the output projection (Kobayashi et al. 2020,
    equation 7). A large weight on a value that is almost 0 adds almost nothing.

    Args:
      weights: float [N, H, L, M].
      values: float [N, M, H, V], with biases.
      kernels: kernels of the output projection, float [N, H, V, D].

    Returns:
      Float [N, H, L, M].
    """
    transformed = np.einsum("nmhv,nhvd->nhmd", values, kernels)
    return weights * np.linalg.norm(transformed, axis=-1)[:, :, None]


def joint_value_norms(weights: np.ndarray, values: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """Computes the norm of the vector that each key adds to the output of a query, summed over the heads.

    See `value_norms` for the arguments.

    Returns:
      Float [N, L, M].
    """
    transformed = np.einsum("nmhv,nhvd->nhmd", values, kernels)
    # Dot products between heads avoid an array [N, L, M, D] of the summed vectors.
    products = np.einsum("nhmd,ngmd->nmhg", transformed, transformed)
    return np.sqrt(np.maximum(np.einsum("nhlm,nglm,nmhg->nlm", weights, weights, products), 0))


def number_words(pieces: Sequence[str]) -> list[int]:
    """Returns the number of the word of each piece, counted from 0. Special pieces are separate words."""
    starts = (
        i == 0 or piece.startswith(WORD_START) or _is_special(piece) or _is_special(pieces[i - 1])
        for i, piece in enumerate(pieces)
    )
    return [number - 1 for number in itertools.accumulate(starts)]


def word_texts(pieces: Sequence[str]) -> list[str]:
    """Returns the text of each word of `number_words`. Byte pieces such as "<0xF0>" are decoded."""
    words = [""] * (max(number_words(pieces), default=-1) + 1)
    for piece, word in zip(pieces, number_words(pieces), strict=True):
        words[word] += piece.removeprefix(WORD_START)
    return [_decode_bytes(word) or WORD_START for word in words]


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


def _is_special(piece: str) -> bool:
    """Returns whether a piece is a control symbol instead of text or a byte."""
    return piece in ("<s>", "</s>", "<pad>", "<unk>")


def _decode_bytes(word: str) -> str:
    """Replaces runs of byte pieces such as "<0xF0>" in a word by the characters that they encode."""
    parts: list[str] = []
    run = b""
    while word:
        if word.startswith("<0x") and word[5:6] == ">":
            run, word = run + bytes.fromhex(word[3:5]), word[6:]
            continue
        parts, run = [*parts, run.decode(errors="replace"), word[0]], b""
        word = word[1:]
    return "".join([*parts, run.decode(errors="replace")])
