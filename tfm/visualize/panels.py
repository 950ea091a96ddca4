"""Selects the part of an observation's attention that a figure shows: layers, heads, pieces or words."""

from typing import NamedTuple

import numpy as np

from tfm.errors import UserError
from tfm.interpret import reductions
from tfm.interpret.observation import AttentionMap, Observation
from tfm.visualize.figures import Axis, Panels

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

    This is None without a text, the key of a summary such as "mean", or the number of a head from 0.

    Raises:
      UserError: if the text is neither a number nor a key of `SUMMARIES`.
    """
    if text is None or text in SUMMARIES:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS):
        raise UserError(f"Expected --head to be a number from 0 on, {' or '.join(SUMMARIES)}, got {text!r}.")
    return int(text)


def selectable_kinds(attention: dict[str, AttentionMap], selection: Selection) -> list[str]:
    """Returns the kinds of attention that have the selected layer and head.

    The kinds can differ, because the encoder and the decoder can have different numbers of layers, and
    because not all have a rollout. If a rollout is selected and no kind has one, returns all of them, and
    `select` raises the error.

    Raises:
      UserError: if there are kinds, but none has the selected layer and head.
    """
    kinds = list(attention)
    for axis, (name, index) in enumerate((("layer", selection.layer), ("head", selection.head))):
        if not isinstance(index, int):
            continue
        counts = {kind: attention[kind].weights.shape[axis] for kind in kinds}
        kinds = [kind for kind, count in counts.items() if 0 <= index < count]
        if counts and not kinds:
            ranges = ", ".join(f"0 to {count - 1} for {kind} attention" for kind, count in counts.items())
            raise UserError(f"Expected --{name} to be from {ranges}, got {index}.")
    if selection.head == "rollout":
        kinds = [kind for kind in kinds if summarize(attention, kind, "rollout") is not None] or kinds
    return kinds


def select(observation: Observation, kind: str, selection: Selection = ALL) -> Panels:
    """Returns the `Panels` of one kind of attention.

    Raises:
      UserError: if the kind has fewer layers or heads, or lacks the numbers that the selection needs.
    """
    attention = observation.attention[kind]
    selectable_kinds({kind: attention}, selection)
    heads = attention.weights.shape[1]
    numbers = _read_numbers(observation.attention, kind, selection)
    if selection.layer is not None:
        numbers = numbers[selection.layer : selection.layer + 1]
    if selection.words:
        words = (observation.tracks[name].words for name in (attention.queries, attention.keys))
        numbers = reductions.merge_words(numbers, *words)
    queries, keys = _make_axes(observation, attention, selection.words)
    first_layer, head = selection.layer or 0, selection.head
    first_head = head if isinstance(head, int) else 0
    names = [f"head {first_head + i}" for i in range(heads)]
    if isinstance(head, str):
        names = ["all heads" if selection.measure == "norms" else SUMMARIES[head]]
    titles = [
        [f"layer {first_layer + i}, {name}" for name in names[: numbers.shape[1]]]
        for i in range(len(numbers))
    ]
    panels = Panels(numbers, queries, keys, titles)
    if head == "rollout":
        return panels._replace(unit="rollout\n(each row sums to 1)")
    if selection.measure == "norms":
        return panels._replace(unit="norm of the\nweighted value", largest=float(numbers.max()) or 1.0)
    return panels


def summarize(attention: dict[str, AttentionMap], kind: str, summary: str) -> np.ndarray | None:
    """Summarizes the heads of one kind of attention.

    Args:
      attention: all attention of an observation, because the rollout of cross-attention continues through the
        self-attention of its keys.
      kind: the kind to summarize.
      summary: a key of `SUMMARIES`.

    Returns:
      Float [layers, L, M], or None if the model has no self-attention through which the rollout continues.
    """
    chosen = attention[kind]
    if summary == "mean":
        return chosen.weights.mean(1)
    if chosen.is_self_attention:
        return reductions.attention_rollout(chosen.weights)
    before = [each for each in attention.values() if each.queries == each.keys == chosen.keys]
    return reductions.cross_rollout(chosen.weights, before[0].weights) if before else None


def _read_numbers(attention: dict[str, AttentionMap], kind: str, selection: Selection) -> np.ndarray:
    """Returns the selected measure of the selected heads of all layers, [layers, heads or 1, L, M].

    Raises:
      UserError: if the attention lacks these numbers.
    """
    chosen, head = attention[kind], selection.head
    numbers, summary = chosen.weights, None
    if selection.measure == "norms":
        if head == "rollout":
            raise UserError(
                "--head=rollout needs attention weights. Choose another --head, or omit --measure."
            )
        if chosen.norms is None:
            raise UserError(
                f"The {kind} attention of this model has no named values, so their norms are unknown. "
                "Omit --measure."
            )
        numbers, summary = chosen.norms, chosen.joint_norms
    if isinstance(head, int):
        return numbers[:, head : head + 1]
    if head is None:
        return numbers
    if summary is None:
        summary = summarize(attention, kind, head)
    if summary is None:
        raise UserError(
            "Rollout needs the encoder's attention, but this model has none. Choose another --head."
        )
    return summary[:, None]


def _make_axes(observation: Observation, attention: AttentionMap, words: bool) -> tuple[Axis, Axis]:
    """Returns the axes of queries and keys. A predicted token is followed by the token that was read."""
    queries, keys = (observation.tracks[name] for name in (attention.queries, attention.keys))
    titles = [track.element.replace("piece", "word") if words else track.element for track in (queries, keys)]
    labels = [track.texts if words else track.labels for track in (queries, keys)]
    query = Axis(f"query: {titles[0]}", labels[0])
    if attention.queries == "predicted" and "read" in observation.tracks and not words:
        pairs = zip(queries.labels, observation.tracks["read"].labels, strict=True)
        both = [f"{predicted} ({read})" for predicted, read in pairs]
        query = Axis(f"{query.title}\n(in brackets: the piece read)", both)
    return query, Axis(f"key: {titles[1]} attended to", labels[1])
