"""Observes a model while it translates a sentence: its attention, its probabilities and the beam."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import Params, search_parameters
from tfm.decoding.translate import check_lengths, find_layer, trace_batch
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.interpret.beam import Beam, trace_steps
from tfm.interpret.observation import (
    MAX_TOKENS,
    Observation,
    check_length,
    check_probabilities,
    observe_tokens,
)
from tfm.training.task import Samples

if TYPE_CHECKING:
    from tfm.tasks.translation.task import Translation

PICTURE = "attention"
log = logging.getLogger(__name__)


def observe_sentence(
    task: "Translation", params: Params, sentence: str, max_tokens: int = MAX_TOKENS
) -> Observation:
    """Translates a sentence with the beam search that the run's config sets, and records the computation.

    Args:
      task, params: task and parameters of a model that translates.
      sentence: the source text.
      max_tokens: maximum number of source tokens. If the translation is longer, only its first
        `max_tokens` tokens are observed, and a warning says so.

    Raises:
      UserError: if the sentence is blank or too long, the attention weights do not fit into the memory, or
        the probabilities are NaN.
    """
    if not sentence.strip():
        raise UserError("Expected a sentence to translate and draw, got an empty one.")
    (encoded,) = task.form.encode_sources([sentence])
    source = [*encoded.ids, EOS_ID]
    decoding = dataclasses.replace(task.config.decoding, samples=0)
    check_length(len(source), max_tokens)
    check_lengths(task.model, [len(source) + decoding.max_extra_tokens])
    members = (search_parameters(params, decoding.dtype),)
    inputs = pad_ids([source])[:, : task.model.config.max_length]
    (forced,) = task.form.encode_beginnings([""])
    prefix = np.array([forced], np.int32) if forced else None
    (ids, scores, lengths), trace = fetch(trace_batch(task.model, members, inputs, decoding, prefix))
    check_probabilities(scores)
    hypotheses = [
        (row[:length].tolist(), float(score))
        for row, score, length in zip(ids[0], scores[0], lengths[0], strict=True)
        if length
    ]
    target, label = hypotheses[0][0], task.tokenizer.pieces
    if len(target) > max_tokens:
        log.warning(
            "Drawing the first %s of the %s tokens of a translation (--max_tokens)", max_tokens, len(target)
        )
    beam = Beam(trace_steps(trace, label)[:max_tokens], [(label(ids), score) for ids, score in hypotheses])
    observation = _observe_ids(task, params, sentence, source, target[:max_tokens])
    result = task.form.write_target(task.form.read_source(sentence), task.form.decode(target))
    return observation._replace(result=result, beam=beam)


def observe_target(task: "Translation", params: Params, sentence: str, target: Sequence[int]) -> Observation:
    """Records what the model computes for a given translation. See `tfm.interpret.observation`.

    Args:
      task, params: task and parameters of a model that translates.
      sentence: the source text.
      target: ids of the translation.
    """
    (encoded,) = task.form.encode_sources([sentence])
    return _observe_ids(task, params, sentence, [*encoded.ids, EOS_ID], list(target))


def observe_pair(
    task: "Translation", params: Params, source: str, target: str, max_tokens: int = MAX_TOKENS
) -> Observation | None:
    """Records what the model computes for a given translation, without a search.

    Sides are padded to the same width, so all pairs share one compiled program. Longer sides are cut, because
    the model has no positions for them or a picture of them would be too large to read.

    Args:
      task, params: task and parameters of a model that translates.
      source, target: the texts.
      max_tokens: maximum number of tokens of a side.

    Returns:
      An `Observation`, or None if a side has no tokens.
    """
    width = min(max_tokens, task.model.config.max_length or max_tokens)
    if not source.strip() or not target.strip():
        return None
    sides = task.form.encode_sources([source]), task.form.encode_targets([target])
    read, predicted = ([*text.ids, EOS_ID][:width] for (text,) in sides)
    if min(len(read), len(predicted)) < 2:
        return None
    return _observe_ids(task, params, source, read, predicted, width)


def _observe_ids(
    task: "Translation",
    params: Params,
    sentence: str,
    source: list[int],
    predicted: list[int],
    width: int = 0,
) -> Observation:
    """Returns the observation of the ids of both sides, padded to at least `width` tokens."""
    tokens = {
        "source": ("source piece", source),
        "read": ("target piece read", [BOS_ID, *predicted[:-1]]),
        "predicted": ("target piece predicted", predicted),
    }
    return observe_tokens(task.model, params, task.tokenizer, sentence, tokens, width)


def make_samples(
    task: "Translation", params: Params, pairs: Sequence[tuple[str, str]], hypotheses: Sequence[str]
) -> Samples:
    """Returns source, reference and hypothesis of `validation_samples` pairs, and a picture of the first.

    The picture shows the cross-attention of the pair. There is no picture if the model has no cross-attention
    or a side has no token.

    Args:
      task: a `tfm.tasks.translation.Translation`.
      params: parameters of the model.
      pairs: (source, reference) of all translated sentences.
      hypotheses: the translations of the sources.
    """
    translated = list(zip(pairs, hypotheses, strict=True))
    rows = [
        {
            "source": source,
            "reference": task.form.write_target(task.form.read_source(source), reference),
            "hypothesis": hypothesis,
        }
        for (source, reference), hypothesis in spread(translated, task.config.validation_samples)
    ]
    draw = _picture(task, params, rows[0]) if rows else None
    return Samples(rows, {PICTURE: draw} if draw else {})


def spread(values: Sequence, most: int) -> list:
    """Returns `most` evenly spaced values, or all if there are fewer, beginning with the first."""
    count = min(most, len(values))
    return [values[number * len(values) // count] for number in range(count)]


def _picture(task: "Translation", params: Params, row: dict[str, str]) -> Callable[[str], None] | None:
    """Returns a function that draws the cross-attention of a row into a file.

    Returns None if the model has no cross-attention, or a side has no token.
    """
    observation = observe_pair(task, params, row["source"], row["hypothesis"])
    if observation is None or "cross" not in observation.attention:
        return None
    return functools.partial(_draw, observation, task.config.decoding)


def _draw(observation: Observation, decoding: DecodingConfig, path: str) -> None:
    """Draws the mean over the heads of the layer that `decoding` uses for word alignment."""
    from tfm.visualize.figures import draw_attention  # imported here because it takes a second
    from tfm.visualize.panels import Selection, select

    layer = find_layer(len(observation.attention["cross"].weights), decoding)
    panels = select(observation, "cross", Selection(layer=layer, head="mean"))
    draw_attention(panels, f"cross attention: {observation.title}", path)
