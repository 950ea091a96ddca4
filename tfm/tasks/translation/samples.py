"""Samples of a translation model during training: validation sentences, and the attention of the first."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tfm.decoding.translate import find_layer
from tfm.tasks.translation.observe import observe_pair
from tfm.training.task import Samples
from tfm.visualize.observation import Observation

PICTURE = "attention"


def make_samples(
    task: Any, params: Any, pairs: Sequence[tuple[str, str]], hypotheses: Sequence[str]
) -> Samples:
    """Returns source, reference and hypothesis of `validation_samples` pairs, and a picture of the first.

    The picture shows the cross-attention of the pair. It is missing if the model has no cross-attention.

    Args:
      task: a `tfm.tasks.translation.Translation`.
      params: parameters of the model.
      pairs: (source, reference) of all translated sentences.
      hypotheses: the translations of the sources.
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
    """Returns at most `most` values at equal distances, beginning with the first."""
    return list(values[:: -(-len(values) // most)]) if values and most else []


def _picture(task: Any, params: Any, row: dict[str, str]) -> Callable[[str], None] | None:
    """Returns a function that draws the cross-attention of a row into a file.

    Returns None if the model has no cross-attention, or a side has no token.
    """
    observation = observe_pair(task, params, row["source"], task.target_tokens(row["hypothesis"]))
    if observation is None or "cross" not in observation.attention:
        return None
    return functools.partial(_draw, observation, task.config.decoding)


def _draw(observation: Observation, decoding: Any, path: str) -> None:
    """Draws the mean of the heads of the layer that `decoding` aligns words with."""
    from tfm.visualize.figures import draw_attention  # imported here because it takes a second
    from tfm.visualize.panels import Selection, select

    layer = find_layer(len(observation.attention["cross"].weights), decoding)
    panels = select(observation, "cross", Selection(layer=layer, head="mean"))
    draw_attention(panels, f"cross attention: {observation.title}", path)
