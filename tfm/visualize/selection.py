"""Selects the part of a translation's attention that a figure shows: layers, heads, pieces or words."""

from typing import NamedTuple

import numpy as np

from tfm.errors import UserError
from tfm.visualize import summaries
from tfm.visualize.figures import Axis, Panels
from tfm.visualize.translation import Translated

MEASURES = ("weights", "norms")  # attention weights, or norms of the weighted values
MAX_DIGITS = 9  # a number of a head must have fewer digits
SUMMARIES = {"mean": "mean of the heads", "rollout": "rollout"}  # summaries of the heads: titles


class Selection(NamedTuple):
    """A selection of layers and heads.

    Attributes:
      layer: number of the layer, counted from 0. None selects all.
      head: number of the head, counted from 0, or a key of `SUMMARIES`. None selects all.
      words: whether to merge pieces into words.
      measure: one of `MEASURES`.
    """

    layer: int | None = None
    head: int | str | None = None
    words: bool = False
    measure: str = "weights"


ALL = Selection()


def parse_head(text: str | None) -> int | str | None:
    """Returns the value of `Selection.head` for the text of the flag --head.

    Raises:
      UserError: if the text is neither a number nor a key of `SUMMARIES`.
    """
    if text is None or text in SUMMARIES:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS):
        raise UserError(f"Expected --head to be a number from 0 on, {' or '.join(SUMMARIES)}, got {text!r}.")
    return int(text)


def check_selection(selection: Selection, parts: dict[str, tuple[int, int]]) -> None:
    """Checks that the attention contains the selected layer and head.

    Args:
      selection: a `Selection`.
      parts: {part: (number of layers, number of heads)}.

    Raises:
      UserError: if a part has fewer layers or heads, or if the head is "rollout" and the measure is not
        "weights" or the encoder has no attention.
    """
    for part, (layers, heads) in parts.items():
        for name, chosen, count in (("layer", selection.layer, layers), ("head", selection.head, heads)):
            if isinstance(chosen, int) and not 0 <= chosen < count:
                raise UserError(
                    f"Expected --{name} to be from 0 to {count - 1} for {part} attention, got {chosen}."
                )
    if selection.head == "rollout" and selection.measure != "weights":
        raise UserError("--head=rollout needs attention weights. Choose another --head, or omit --measure.")
    if selection.head == "rollout" and "cross" in parts and "encoder" not in parts:
        raise UserError(
            "Rollout needs the encoder's attention, but this model has none. Choose another --head."
        )


def select(translated: Translated, part: str, selection: Selection = ALL) -> Panels:
    """Returns the `Panels` of one part of the attention: "encoder", "decoder" or "cross".

    Raises:
      UserError: if the selection needs the norms of values, but the model has no named values.
    """
    if selection.measure == "norms" and part not in translated.norms:
        raise UserError(
            f"The {part} attention of this model has no named values, so their norms are unknown. "
            "Omit --measure."
        )
    numbers, (queries, keys) = _numbers(translated, part, selection), axes_of(translated, part)
    if selection.layer is not None:
        numbers = numbers[selection.layer : selection.layer + 1]
    if selection.words:
        pieces = [getattr(translated, side) for side in summaries.SIDES_OF[part]]
        numbers = summaries.merge_words(numbers, *map(summaries.number_words, pieces))
        queries, keys = (
            Axis(axis.title.replace("piece", "word").partition("\n")[0], summaries.word_texts(texts))
            for axis, texts in zip((queries, keys), pieces, strict=True)
        )
    panels = Panels(numbers, queries, keys, _titles(selection, *numbers.shape[:2]))
    if selection.measure == "norms":
        return panels._replace(unit="norm of the\nweighted value", largest=float(numbers.max()) or 1.0)
    return panels


def select_difference(first: Translated, second: Translated, part: str, selection: Selection = ALL) -> Panels:
    """Returns the `Panels` of the attention of the first translation minus that of the second.

    The panels contain only tokens that correspond, see `summaries.align_tokens`.

    Raises:
      UserError: see `select`.
    """
    minuend, subtrahend = (select(translated, part, selection) for translated in (first, second))
    sides = [
        summaries.align_tokens(*(_tokens(translated, side, selection) for translated in (first, second)))
        for side in summaries.SIDES_OF[part]
    ]
    rows, columns = (np.array(pairs, int).reshape(-1, 2).T for pairs in sides)  # [2, tokens] for both panels
    both = (
        panels.weights[..., rows[i][:, None], columns[i]] for i, panels in enumerate((minuend, subtrahend))
    )
    numbers = np.subtract(*both)
    queries, keys = (
        Axis(axis.title, [_join(axis.labels[i], others.labels[j]) for i, j in pairs])
        for axis, others, pairs in zip(minuend[1:3], subtrahend[1:3], sides, strict=True)
    )
    largest = float(np.abs(numbers).max(initial=0)) or 1.0
    unit = f"{minuend.unit.partition('(')[0].strip()},\nfirst minus second"
    return Panels(numbers, queries, keys, minuend.titles, unit, -largest, largest)


def _numbers(translated: Translated, part: str, selection: Selection) -> np.ndarray:
    """Returns the selected measure of the selected heads of all layers, [layers, heads or 1, L, M]."""
    norms = selection.measure == "norms"
    if selection.head == "mean" and norms:
        return translated.joint_norms[part][:, None]
    if selection.head in SUMMARIES:
        return summarize(translated.weights, part, selection.head)[:, None]
    numbers = (translated.norms if norms else translated.weights)[part]
    head = selection.head
    return numbers[:, head : head + 1] if isinstance(head, int) else numbers


def _tokens(translated: Translated, side: str, selection: Selection) -> list[str]:
    """Returns the pieces or the words of a side of `explorer.SIDES`."""
    pieces = getattr(translated, side)
    return summaries.word_texts(pieces) if selection.words else pieces


def _join(first: str, second: str) -> str:
    """Returns the label of two tokens that correspond."""
    return first if first == second else f"{first} / {second}"


def summarize(weights: dict[str, np.ndarray], part: str, summary: str) -> np.ndarray:
    """Summarizes the heads of a part of the attention.

    Args:
      weights: {part: float [layers, H, L, M]}. The rollout of "cross" needs "encoder", too.
      part: the part to summarize.
      summary: a key of `SUMMARIES`.

    Returns:
      Float [layers, L, M].
    """
    if summary == "mean":
        return summaries.head_mean(weights[part])
    if part == "cross":
        return summaries.cross_rollout(weights["cross"], weights["encoder"])
    return summaries.attention_rollout(weights[part])


def axes_of(translated: Translated, part: str) -> tuple[Axis, Axis]:
    """Returns the axes (queries, keys) of a part. The titles explain which pieces are read or predicted."""
    source = Axis("key: source piece attended to", translated.source)
    if part == "encoder":
        return Axis("query: source piece encoded", translated.source), source
    pairs = zip(translated.predicted, translated.read, strict=True)
    predicted = Axis(
        "query: target piece predicted\n(in brackets: the piece read)",
        [f"{piece} ({before})" for piece, before in pairs],
    )
    read = Axis("key: target piece read and attended to", translated.read)
    return predicted, read if part == "decoder" else source


def _titles(selection: Selection, rows: int, columns: int) -> list[list[str]]:
    """Returns the titles of the panels of each row."""
    first_layer = selection.layer or 0
    first_head = selection.head if isinstance(selection.head, int) else 0
    summary = SUMMARIES.get(selection.head) if isinstance(selection.head, str) else None
    heads = [summary or f"head {first_head + i}" for i in range(columns)]
    return [[f"layer {first_layer + i}, {head}" for head in heads] for i in range(rows)]
