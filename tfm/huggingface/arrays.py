"""Conversion of arrays between the layouts of PyTorch and of tfm, in both directions.

The other project is transformers or fairseq, and the other model is the model of this project that tfm
imports or exports. An `Entry` says which array of the other project a parameter of tfm comes from. The same
entries serve the import and the export.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID

Arrays = Mapping[str, np.ndarray]
EXCLUDED_LOGIT = -1e4  # bias of the logits of tokens that the other model lacks; float16 can store it
FUSED_PARTS = 3  # queries, keys and values in one array


class Entry(NamedTuple):
    """The origin of a parameter.

    Attributes:
      ours: name in an export of tfm.
      theirs: name in the other project. "" means zeros, because the other project has no such array.
      layout: "same", "linear" ([out, in] in PyTorch), "conv1d" ([in, out] in GPT-2), "convolution"
        ([out, in, height, width] in PyTorch), "patches" (a convolution that is a linear layer in tfm),
        "one_row" (a first axis of length 1), "tokens" (rows of tokens, see `TokenOrder`), or "token_row" (a
        first axis of length 1, and then tokens).
      part: index of this parameter in an array that fuses queries, keys and values, or None.
      skip: number of rows at the beginning of a table of positions that the other model never uses.
      factor: factor that the parameter has in tfm.
      optional: whether a missing array means zeros.
      reverse: whether the first axis of the other array is in reversed order.
      patch_size: height and width of the images of "patches".
    """

    ours: str
    theirs: str
    layout: str = "same"
    part: int | None = None
    skip: int = 0
    factor: float = 1.0
    optional: bool = False
    reverse: bool = False
    patch_size: int = 0


def to_ours(entry: Entry, x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Converts an array of the other project to a parameter of this shape.

    Raises:
      ValueError: if the array has a different number of elements.
    """
    if entry.part is not None:
        x = np.split(x, FUSED_PARTS, axis=-1)[entry.part]
    if entry.reverse:
        x = x[::-1]
    if entry.layout == "linear":
        x = x.T
    if entry.layout in ("convolution", "patches"):
        x = x.transpose(2, 3, 1, 0)
    return (x[entry.skip :] if entry.skip else x).reshape(shape) * np.float32(entry.factor)


def to_theirs(entry: Entry, x: np.ndarray) -> np.ndarray:
    """Converts a parameter to the array of the other project, the inverse of `to_ours`.

    The result is one of the parts if `entry.part` is not None. The skipped rows are zeros. Tokens keep the
    order of tfm.
    """
    x = x / np.float32(entry.factor)
    if entry.layout == "tokens":
        return x
    if entry.layout == "token_row":
        return x.reshape(1, -1)
    if entry.layout in ("linear", "conv1d"):
        input_axes = x.ndim - 1 if "/output/" in entry.ours else 1
        x = x.reshape(int(np.prod(x.shape[:input_axes])), -1)
        x = x.T if entry.layout == "linear" else x
        return x[::-1] if entry.reverse else x
    if entry.layout == "convolution":
        return x.transpose(3, 2, 0, 1) if x.ndim == 4 else x.T[:, :, None, None]
    if entry.layout == "patches":
        return x.reshape(entry.patch_size, entry.patch_size, -1, x.shape[-1]).transpose(3, 2, 0, 1)
    if entry.layout == "one_row":
        return x.reshape(1, -1, x.shape[-1])
    if entry.ours.endswith("/bias"):
        x = x.reshape(-1)  # [H, K] of the heads
    x = x[::-1] if entry.reverse else x
    return np.concatenate([np.zeros((entry.skip, *x.shape[1:]), x.dtype), x]) if entry.skip else x


def permute_features(name: str, x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Reorders the features of the residual stream (the axes of length d_model) of a parameter.

    If all parameters are reordered, the logits stay the same, except that the sinusoids need the same order.
    MarianMT has the sinusoids of the paper in the order of `sines_first`.
    """
    *_, module, leaf = ["", *name.split("/")]
    if leaf == "bias" and module == "embedding":  # of the logits
        return x
    if module in ("query", "key", "value", "hidden", "gate"):
        return x if leaf == "bias" else x[order]
    return x[..., order]


def sines_first(features: int) -> np.ndarray:
    """Returns the order of interleaved sinusoids in which all sines are before all cosines."""
    return np.r_[np.arange(0, features, 2), np.arange(1, features, 2)]


class TokenOrder:
    """The tokens of the other model in the order of tfm: padding, BOS, EOS, and then all others.

    The row of BOS is a copy if the decoder of the other model begins with padding or EOS.

    Args:
      size: number of ids in the other model.
      pad, start, end: ids in the other model. `pad` is None if there is no padding. `start` is the token that
        the decoder reads first.
      is_start_in_texts: whether texts also contain `start`, as in a BART whose decoder begins with "<s>". The
        row of BOS is a copy then, too.

    Attributes:
      size: see above.
      ids: for each id of tfm the id in the other model, or -1 if the other model has no such token.
      excluded: bool, True for ids that the other model lacks or that are copies. Their logits are
        `EXCLUDED_LOGIT`, so the probabilities of all other tokens stay the same.
    """

    def __init__(self, size: int, *, pad: int | None, start: int, end: int, is_start_in_texts: bool = False):
        self.size = size
        special = [-1 if pad is None else pad, start, end]
        absent = {pad, end} if is_start_in_texts else set(special)
        self.ids = np.array([*special, *(i for i in range(size) if i not in absent)])
        self.excluded = self.ids < 0
        self.excluded[BOS_ID] |= is_start_in_texts or start in (pad, end)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, x: np.ndarray) -> np.ndarray:
        """Returns the rows [V', ...] in the order of tfm of [V, ...], or values [V'] of [1, V].

        Rows that the other model lacks are zeros.
        """
        x = x[0] if x.ndim == 2 and len(x) == 1 else x
        x = np.concatenate([x, np.zeros((max(self.size - len(x), 0) + 1, *x.shape[1:]), x.dtype)])
        return x[self.ids].astype(np.float32)  # the last row, of id -1, is zeros


def convert(
    entries: Iterable[Entry], theirs: Arrays, shapes: Mapping[str, Sequence[int]], order: TokenOrder | None
) -> dict[str, np.ndarray]:
    """Returns {name in tfm: array} of all entries. `order` is None for a model without tokens.

    Raises:
      ValueError: if an array does not fit its shape. The message names the array.
    """
    arrays: dict[str, np.ndarray] = {}
    for entry in entries:
        shape = shapes[entry.ours]
        try:
            if not entry.theirs or (entry.optional and entry.theirs not in theirs):
                arrays[entry.ours] = np.zeros(shape, np.float32)
            elif entry.layout.startswith("token") and order is not None:
                arrays[entry.ours] = order.take(theirs[entry.theirs]).reshape(shape)
            else:
                arrays[entry.ours] = to_ours(entry, theirs[entry.theirs], shape)
        except ValueError:
            actual = list(theirs[entry.theirs].shape)
            raise ValueError(
                f"{entry.theirs} has the shape {actual}, which does not fit {list(shape)} of {entry.ours}"
            ) from None
    if order is not None and "embedding/bias" in shapes:
        bias = arrays.get("embedding/bias", np.zeros(shapes["embedding/bias"], np.float32))
        arrays["embedding/bias"] = np.where(order.excluded, np.float32(EXCLUDED_LOGIT), bias)
    return arrays
