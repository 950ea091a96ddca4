"""Samples of a translation model in training: some of the validation sentences, and the attention of one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tfm.training.task import Samples

PICTURE = "attention"


def make_samples(
    task: Any, params: Any, pairs: Sequence[tuple[str, str]], hypotheses: Sequence[str]
) -> Samples:
    """Source, reference and hypothesis of `validation_samples` pairs; a picture of the first attention.

    Args:
      task: a `tfm.tasks.translation.Translation`.
      params: of the model.
      pairs: (source, reference) of all that was translated.
      hypotheses: their translations.
    """
    rows = [
        {"source": source, "reference": task.show_reference(source, reference), "hypothesis": hypothesis}
        for (source, reference), hypothesis in spread(
            list(zip(pairs, hypotheses, strict=True)), task.config.validation_samples
        )
    ]
    draw = _picture(task, params, rows[0]) if rows else None
    return Samples(rows, {PICTURE: draw} if draw else {})


def spread(values: Sequence, most: int) -> list:
    """At most `most` values, at equal distances from the first on."""
    return list(values[:: -(-len(values) // most)]) if values and most else []


def _picture(task: Any, params: Any, row: dict[str, str]) -> Callable[[str], None] | None:
    """Draws the cross-attention of a row; None where the model has none, or a side has no token."""
    from tfm.visualize.translation import examine_pair  # which only this needs

    translated = examine_pair(task, params, row["source"], task.target_tokens(row["hypothesis"]))
    if translated is None or "cross" not in translated.weights:
        return None
    return functools.partial(_draw, translated, task.config.decoding)


def _draw(translated, decoding, path):
    from tfm.decoding.translate import find_layer
    from tfm.visualize.figures import draw_attention  # takes a second
    from tfm.visualize.selection import Selection, select

    layer = find_layer(len(translated.weights["cross"]), decoding)
    panels = select(translated, "cross", Selection(layer=layer, head="mean"))
    draw_attention(panels, f"cross attention: {translated.sentence}", path)
