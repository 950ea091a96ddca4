"""The observation of a model that translates one sentence: attention, probabilities and the beam."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.decoding.parameters import search_parameters
from tfm.decoding.translate import check_lengths, trace_batch
from tfm.errors import UserError
from tfm.search import BeamTrace, Hypotheses
from tfm.sharding import fetch
from tfm.visualize.beam import Beam, trace_steps
from tfm.visualize.observation import (
    MAX_TOKENS,
    Observation,
    check_length,
    check_memory,
    list_predictions,
    observe,
    text_track,
)

log = logging.getLogger(__name__)


def observe_sentence(task: Any, params: Any, sentence: str, max_tokens: int = MAX_TOKENS) -> Observation:
    """Translates a sentence by the beam search of the run's config, and records what the model computes.

    Args:
      task, params: task and parameters of a model that translates.
      sentence: the source text.
      max_tokens: maximum number of source tokens. If the translation is longer, only its first
        `max_tokens` tokens are observed.

    Raises:
      UserError: if the sentence is blank or too long, the attention weights do not fit into the memory, or
        the probabilities are NaN.
    """
    source = _encode(task, params, sentence, max_tokens)
    hypotheses, trace = _search(task, params, source)
    target, label = hypotheses[0][0], task.tokenizer.pieces
    if len(target) > max_tokens:
        log.warning(
            "Drawing the first %s of the %s tokens of a translation (--max_tokens)", max_tokens, len(target)
        )
    observation = _observe_ids(task, params, sentence, (source, target[:max_tokens]), pad_ids)
    finished = [(label(ids), score) for ids, score in hypotheses]
    return observation._replace(
        result=task.tokenizer.decode(target), beam=Beam(trace_steps(trace, label)[:max_tokens], finished)
    )


def observe_pair(
    task: Any, params: Any, source: str, target: str, max_tokens: int = MAX_TOKENS
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
    sides = [[*ids, EOS_ID][:width] for ids in task.tokenizer.encode([source, target])]
    if min(map(len, sides)) < 2:
        return None

    def pad(rows: list[list[int]]) -> np.ndarray:
        return np.stack([np.pad(ids, (0, width - len(ids))) for ids in rows]).astype(np.int32)

    return _observe_ids(task, params, source, sides, pad)


def _observe_ids(
    task: Any,
    params: Any,
    sentence: str,
    ids_of_sides: Sequence[list[int]],
    pad: Callable[[list[list[int]]], np.ndarray],
) -> Observation:
    """Returns the observation of the ids of both sides, without a search. `pad` makes a batch of them."""
    source, predicted = ids_of_sides
    read = [BOS_ID, *predicted[:-1]]
    inputs, targets, labels = (
        pad([ids])[:, : task.model.config.max_length] for ids in (source, read, predicted)
    )
    lengths = {"source": len(source), "read": len(read), "predicted": len(predicted)}
    probabilities, attention = observe(
        task.model, {"params": params}, inputs, targets, labels=labels, lengths=lengths
    )
    tracks = {
        "source": text_track("source piece", task.tokenizer, source),
        "read": text_track("target piece read", task.tokenizer, read),
        "predicted": text_track("target piece predicted", task.tokenizer, predicted),
    }
    predictions = list_predictions(probabilities, len(predicted), task.tokenizer.pieces)
    return Observation(sentence, task.tokenizer.decode(predicted), tracks, attention, predictions)


def _encode(task: Any, params: Any, sentence: str, max_tokens: int) -> list[int]:
    """Returns the ids of a source text. Raises a UserError if it is blank or too long."""
    if not sentence.strip():
        raise UserError("Expected a sentence to translate and draw, got an empty one.")
    ids = [*task.tokenizer.encode([sentence])[0], EOS_ID]
    check_lengths(task.model, [len(ids)])
    check_length(len(ids), max_tokens)
    target = min(len(ids) + task.config.decoding.max_extra_tokens, max(len(ids), max_tokens))
    target = min(target, task.model.config.max_length or target)
    sides = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (len(ids), target)]
    check_memory(task.model, {"params": params}, *sides, labels=sides[1])
    return ids


def _search(task: Any, params: Any, source: list[int]) -> tuple[list[tuple[list[int], float]], BeamTrace]:
    """Returns the hypotheses [(ids, score)], best first, and the `BeamTrace` of a source."""
    config = dataclasses.replace(task.config.decoding, samples=0)
    check_lengths(task.model, [len(source) + config.max_extra_tokens])
    members = (search_parameters(params, config.dtype),)
    inputs = pad_ids([source])[:, : task.model.config.max_length]
    hypotheses, trace = fetch(trace_batch(task.model, members, inputs, config))
    return _list_hypotheses(hypotheses), trace


def _list_hypotheses(hypotheses: Hypotheses) -> list[tuple[list[int], float]]:
    """Returns (ids, score) of the hypotheses of the first row.

    Raises:
      UserError: if a score is NaN.
    """
    tokens, scores, lengths = (array[0] for array in hypotheses)
    if np.isnan(scores).any():
        raise UserError(
            "Expected probabilities that are numbers, got NaN. The parameters are damaged, or training "
            "diverged. Use another checkpoint."
        )
    return [
        (ids[:length].tolist(), float(score))
        for ids, score, length in zip(tokens, scores, lengths, strict=True)
        if length
    ]
