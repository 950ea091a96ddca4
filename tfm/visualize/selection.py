"""What a figure shows of the attention of one translation: layers, heads, pieces or words."""

from typing import NamedTuple

import numpy as np

from tfm.errors import UserError
from tfm.visualize import summaries
from tfm.visualize.figures import Axis, Panels
from tfm.visualize.translation import Translated

MEASURES = ("weights", "norms")  # of the attention, or of the weighted values
MAX_DIGITS = 9  # of a number
SUMMARIES = {"mean": "mean of the heads", "rollout": "rollout"}  # of the heads, with their titles


class Selection(NamedTuple):
    """A part of the attention.

    Attributes:
      layer: counted from 0; all when None.
      head: counted from 0, or one of `SUMMARIES`; all when None.
      words: pieces are merged into words.
      measure: one of `MEASURES`.
    """

    layer: int | None = None
    head: int | str | None = None
    words: bool = False
    measure: str = "weights"


ALL = Selection()


def parse_head(text: str | None) -> int | str | None:
    """The head that a flag names.

    Raises:
      UserError: it is no number and none of `SUMMARIES`.
    """
    if text is None or text in SUMMARIES:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS):
        raise UserError(f"Expected --head to be a number from 0 on, {' or '.join(SUMMARIES)}, got {text!r}.")
    return int(text)


def check_selection(selection: Selection, parts: dict[str, tuple[int, int]]) -> None:
    """Checks that each part of the attention has what is selected.

    Args:
      selection: a `Selection`.
      parts: {part: (layers, heads)}.

    Raises:
      UserError: a part has fewer layers or heads, or rollout is asked for of norms, or where the encoder has
        no attention.
    """
    for part, (layers, heads) in parts.items():
        for name, chosen, count in (("layer", selection.layer, layers), ("head", selection.head, heads)):
            if isinstance(chosen, int) and not 0 <= chosen < count:
                raise UserError(
                    f"Expected --{name} to be from 0 to {count - 1} for {part} attention, got {chosen}."
                )
    if selection.head == "rollout" and selection.measure != "weights":
        raise UserError("Rollout is of weights: choose another --head, or leave --measure out.")
    if selection.head == "rollout" and "cross" in parts and "encoder" not in parts:
        raise UserError(
            "Rollout needs the encoder's attention, and this model has none: choose another --head."
        )


def select(translated: Translated, part: str, selection: Selection = ALL) -> Panels:
    """The `Panels` of one part of the attention.

    Raises:
      UserError: the model names no values whose norms could be drawn.
    """
    if selection.measure == "norms" and part not in translated.norms:
        raise UserError(f"The {part} attention of this model has no values with a name: leave --measure out.")
    numbers, (queries, keys) = _numbers(translated, part, selection), axes_of(translated, part)
    if selection.layer is not None:
        numbers = numbers[selection.layer : selection.layer + 1]
    if selection.words:
        pieces = [getattr(translated, side) for side in summaries.SIDES_OF[part]]
        numbers = summaries.merge_words(numbers, *map(summaries.number_words, pieces))
        queries, keys = (
            Axis(axis.title.replace("piece", "word").partition("\n")[0], summaries.word_texts(each))
            for axis, each in zip((queries, keys), pieces, strict=True)
        )
    panels = Panels(numbers, queries, keys, _titles(selection, *numbers.shape[:2]))
    if selection.measure == "norms":
        return panels._replace(unit="norm of the\nweighted value", largest=float(numbers.max()) or 1.0)
    return panels


def select_difference(first: Translated, second: Translated, part: str, selection: Selection = ALL) -> Panels:
    """The `Panels` of the first translation minus those of the second, of tokens that correspond.

    See `summaries.align_tokens`.

    Raises:
      UserError: as `select`.
    """
    one, other = (select(each, part, selection) for each in (first, second))
    sides = [
        summaries.align_tokens(*(_tokens(each, side, selection) for each in (first, second)))
        for side in summaries.SIDES_OF[part]
    ]
    rows, columns = (np.array(pairs, int).reshape(-1, 2).T for pairs in sides)  # of both
    both = (each.weights[..., rows[i][:, None], columns[i]] for i, each in enumerate((one, other)))
    numbers = np.subtract(*both)
    queries, keys = (
        Axis(axis.title, [_join(axis.labels[i], others.labels[j]) for i, j in pairs])
        for axis, others, pairs in zip(one[1:3], other[1:3], sides, strict=True)
    )
    largest = float(np.abs(numbers).max(initial=0)) or 1.0
    unit = f"{one.unit.partition('(')[0].strip()},\nfirst minus second"
    return Panels(numbers, queries, keys, one.titles, unit, -largest, largest)


def _numbers(translated, part, selection):
    """[layers, heads or 1, L, M] of the heads that are selected."""
    norms = selection.measure == "norms"
    if selection.head == "mean" and norms:
        return translated.joint_norms[part][:, None]
    if selection.head in SUMMARIES:
        return summarize(translated.weights, part, selection.head)[:, None]
    numbers = (translated.norms if norms else translated.weights)[part]
    return numbers if selection.head is None else numbers[:, selection.head : selection.head + 1]


def _tokens(translated, side, selection):
    pieces = getattr(translated, side)
    return summaries.word_texts(pieces) if selection.words else pieces


def _join(first, second):
    return first if first == second else f"{first} / {second}"


def summarize(weights: dict[str, np.ndarray], part: str, summary: str) -> np.ndarray:
    """[layers, L, M]: one of `SUMMARIES` of a part of the attention {part: [layers, H, L, M]}."""
    if summary == "mean":
        return summaries.head_mean(weights[part])
    if part == "cross":
        return summaries.cross_rollout(weights["cross"], weights["encoder"])
    return summaries.attention_rollout(weights[part])


def axes_of(translated: Translated, part: str) -> tuple[Axis, Axis]:
    """The axes (queries, keys) of a part: each says whether its pieces are read or predicted."""
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


def _titles(selection, rows, columns):
    """A title for each panel."""
    first_layer = selection.layer or 0
    first_head = selection.head if isinstance(selection.head, int) else 0
    heads = [SUMMARIES.get(selection.head) or f"head {first_head + i}" for i in range(columns)]
    return [[f"layer {first_layer + i}, {head}" for head in heads] for i in range(rows)]
