"""Records the attention, the probabilities and the beam of a model while it translates one sentence."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.decoding.parameters import search_parameters
from tfm.decoding.translate import check_lengths, trace_batch
from tfm.errors import UserError
from tfm.interpret.recorder import Recorder
from tfm.layers.observe import activate, read_attention
from tfm.memory import check_estimate, format_bytes, host_memory
from tfm.search import BeamTrace, Hypotheses
from tfm.sharding import fetch
from tfm.visualize import summaries

PARTS = ("encoder", "decoder", "cross")  # parts of the attention, in the order of the figures
BLOCKS = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}  # part: (stack, attention module of its layers)
MAX_TOKENS = 64
CHOICES = 8  # number of most probable tokens kept for each position
ATTENTION_COPIES = 3  # in memory: of the layers, stacked, and on the host
log = logging.getLogger(__name__)


class Extension(NamedTuple):
    """A hypothesis of a beam that extends a hypothesis of the previous step by one token.

    Attributes:
      token: id of the last token.
      log_probability: log-probability of all tokens of a hypothesis that has not ended, otherwise None.
      score: score of a hypothesis that has ended, with length and coverage penalties, otherwise None.
      parent: index of the extended hypothesis among the unfinished hypotheses of the previous step.
      best: whether the best finished hypothesis begins with these tokens.
    """

    token: int
    log_probability: float | None
    score: float | None
    parent: int
    best: bool


class Translated(NamedTuple):
    """The translation of a sentence, with the attention, probabilities and beam of the model.

    Attributes:
      sentence, translation: the texts.
      weights: {part: float [layers, H, L, M]} for the keys of `PARTS` that the model has.
      norms: {part: float [layers, H, L, M]}, see `summaries.value_norms`. Only for parts with named values.
      joint_norms: {part: float [layers, L, M]}, see `summaries.joint_value_norms`.
      source: pieces of the source, including its EOS.
      read, predicted: for each target position, the piece that the decoder reads and the piece it predicts.
      probabilities: float [L], probabilities of the predicted pieces.
      choices: for each target position, the most probable pieces with their probabilities, best first.
      beam: the `Extension`s of each step of the search. Hypotheses that have ended come last. Empty without a
        search.
      finished: (pieces, score) of the finished hypotheses, best first. The first is the translation. Empty
        without a search.
      pieces: function from ids to pieces.
    """

    sentence: str
    translation: str
    weights: dict[str, np.ndarray]
    norms: dict[str, np.ndarray]
    joint_norms: dict[str, np.ndarray]
    source: list[str]
    read: list[str]
    predicted: list[str]
    probabilities: np.ndarray
    choices: list[list[tuple[str, float]]]
    beam: list[list[Extension]]
    finished: list[tuple[list[str], float]]
    pieces: Callable[[Sequence[int]], list[str]]


class _Choices(NamedTuple):
    """The probabilities and ids of the most probable tokens, both [B, L, `CHOICES`]."""

    probabilities: jax.Array
    ids: jax.Array


def examine(task: Any, params: Any, sentence: str, max_tokens: int = MAX_TOKENS) -> Translated:
    """Translates a sentence by the beam search of the run's config, and records what the model computes.

    Args:
      task, params: task and parameters of a model that translates.
      sentence: the source text.
      max_tokens: maximum number of source tokens. Of a longer translation, only the first `max_tokens` tokens
        are examined.

    Raises:
      UserError: if the sentence is blank or too long, the attention weights do not fit into the memory, or
        the probabilities are NaN.
    """
    source, _ = check_sentence(task, params, sentence, max_tokens)
    hypotheses, trace = _search(task, params, source)
    target, pieces = hypotheses[0][0], task.tokenizer.pieces
    if len(target) > max_tokens:
        log.warning(
            "Drawing the first %s of the %s tokens of a translation (--max_tokens)", max_tokens, len(target)
        )
    translated = _examine_ids(task, params, sentence, (source, target[:max_tokens]), pad_ids)
    return translated._replace(
        translation=task.tokenizer.decode(target),
        beam=trace_steps(trace)[:max_tokens],
        finished=[(pieces(ids), score) for ids, score in hypotheses],
    )


def examine_pair(
    task: Any, params: Any, source: str, target: str, max_tokens: int = MAX_TOKENS
) -> Translated | None:
    """Records what the model computes for a given translation, without a search.

    Sides are padded to the same width, so all pairs share one compiled program. Longer sides are cut, because
    the model has no positions for them or a picture of them would be too large to read.

    Args:
      task, params: task and parameters of a model that translates.
      source, target: the texts.
      max_tokens: maximum number of tokens of a side.

    Returns:
      A `Translated`, or None if a side has no tokens.
    """
    width = min(max_tokens, task.model.config.max_length or max_tokens)
    sides = [[*ids, EOS_ID][:width] for ids in task.tokenizer.encode([source, target])]
    if min(map(len, sides)) < 2:
        return None

    def pad(sentences):
        return np.stack([np.pad(ids, (0, width - len(ids))) for ids in sentences]).astype(np.int32)

    return _examine_ids(task, params, source, sides, pad)


def _examine_ids(
    task: Any,
    params: Any,
    sentence: str,
    ids_of_sides: Sequence[list[int]],
    pad: Callable[[list[list[int]]], np.ndarray],
) -> Translated:
    """Returns the `Translated` of the ids of both sides, without a search. `pad` makes a batch of them."""
    source, kept = ids_of_sides
    read = [BOS_ID, *kept[:-1]]
    sides = (pad([ids])[:, : task.model.config.max_length] for ids in (source, read, kept))
    attention, values, probabilities, best = fetch(_forward(task.model, params, *sides))
    lengths = {"encoder": (len(source),) * 2, "decoder": (len(kept),) * 2, "cross": (len(kept), len(source))}
    weights = {part: _cut(attention[part][:, 0], *lengths[part]) for part in PARTS if part in attention}
    norms, joint_norms = _value_norms(weights, values, params)
    pieces = task.tokenizer.pieces
    return Translated(
        sentence=sentence,
        translation=task.tokenizer.decode(kept),
        weights=weights,
        norms=norms,
        joint_norms=joint_norms,
        source=pieces(source),
        read=pieces(read),
        predicted=pieces(kept),
        probabilities=probabilities[0, : len(kept)],
        choices=[
            list(zip(pieces(best.ids[0, i]), best.probabilities[0, i].tolist(), strict=True))
            for i in range(len(kept))
        ],
        beam=[],
        finished=[],
        pieces=pieces,
    )


def check_sentence(task: Any, params: Any, sentence: str, max_tokens: int) -> tuple[list[int], dict]:
    """Returns the ids of a source text, and {part: shape and dtype} of its attention.

    Raises:
      UserError: if the text is blank or too long, or its attention does not fit into the memory.
    """
    if not sentence.strip():
        raise UserError("Expected a sentence to translate and draw, got an empty one.")
    ids = [*task.tokenizer.encode([sentence])[0], EOS_ID]
    check_lengths(task.model, [len(ids)])
    target = min(len(ids) + task.config.decoding.max_extra_tokens, max(len(ids), max_tokens))
    target = min(target, task.model.config.max_length or target)
    sides = (jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (len(ids), target, target))
    shapes, *_ = jax.eval_shape(functools.partial(_forward, task.model), params, *sides)
    needed = ATTENTION_COPIES * sum(math.prod(x.shape) * x.dtype.itemsize for x in shapes.values())
    if len(ids) > max_tokens:
        raise UserError(
            f"Expected a sentence of at most {max_tokens:,} tokens, got {len(ids):,}. Shorten it, or "
            f"increase --max_tokens. Its attention would need about {format_bytes(needed)}."
        )
    check_estimate(f"The attention of {len(ids):,} tokens", needed, host_memory(), "shorten the sentence")
    return ids, shapes


def stack_values(
    values: dict[str, np.ndarray], params: Any, part: str, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the values and the output kernels of all layers of a part of the attention.

    Args:
      values: {name of the activation: [1, M', H, V]} with M' >= M, or [1, M', G, V] if H / G neighbouring
        heads share their values.
      params: parameters of the model.
      part: one of `PARTS`.
      shape: shape of the attention weights, [layers, H, L, M].

    Returns:
      Values [layers, M, H, V] and kernels [layers, H, V, D] in float32. None if a layer lacks the activation
      or the kernel, for example because its attention is a module from outside tfm.
    """
    (stack, block), (layers, heads, _, keys) = BLOCKS[part], shape
    of_layers = []
    for layer in (f"layers_{i}" for i in range(layers)):
        value = values.get(f"{stack}.{layer}.{block}.value")
        kernel = params.get(stack, {}).get(layer, {}).get(block, {}).get("output", {}).get("kernel")
        if value is None or kernel is None or kernel.shape[:2] != (heads, value.shape[-1]):
            return None
        of_layers.append((np.repeat(value[0, :keys], heads // value.shape[2], axis=1), fetch(kernel)))
    stacked, kernels = (np.stack(arrays).astype(np.float32) for arrays in zip(*of_layers, strict=True))
    return stacked, kernels


def trace_steps(trace: BeamTrace) -> list[list[Extension]]:
    """Returns the `Extension`s of each step of the search for one sentence.

    Args:
      trace: the trace of a batch of one row, as NumPy arrays.
    """
    steps, parents = [], {(): 0}
    best = tuple(trace.finished.tokens[-1, 0, 0].tolist())
    for step, (tokens, scores) in enumerate(zip(trace.tokens[:, 0], trace.scores[:, 0], strict=True)):
        live = [
            (tuple(prefix[: step + 1].tolist()), float(score), None)
            for prefix, score in zip(tokens, scores, strict=True)
            if score > -np.inf
        ]
        ended = [
            (tuple(prefix[:length].tolist()), None, float(score))
            for prefix, score, length in zip(*(array[step, 0] for array in trace.finished), strict=True)
            if length == step + 1
        ]
        if not live + ended:
            break
        steps.append(
            [
                Extension(ids[-1], log, score, parents[ids[:-1]], ids == best[: len(ids)])
                for ids, log, score in live + ended
            ]
        )
        parents = {ids: number for number, (ids, *_) in enumerate(live)}
    return steps


def _search(task: Any, params: Any, source: list[int]) -> tuple[list[tuple[list[int], float]], BeamTrace]:
    """Returns the hypotheses [(ids, score)], best first, and the `BeamTrace` of a source."""
    config = dataclasses.replace(task.config.decoding, samples=0)
    check_lengths(task.model, [len(source) + config.max_extra_tokens])
    members = (search_parameters(params, config.dtype),)
    inputs = pad_ids([source])[:, : task.model.config.max_length]
    hypotheses, trace = fetch(trace_batch(task.model, members, inputs, config))
    return _hypotheses(hypotheses), trace


def _hypotheses(hypotheses: Hypotheses) -> list[tuple[list[int], float]]:
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


@functools.partial(jax.jit, static_argnums=0)
def _forward(model, params, inputs, targets, labels):
    """Runs the model once on inputs [B, M] and decoder inputs and labels [B, L].

    Returns:
      The attention {part: [layers, B, H, L, M]}, the values {name: [B, M, H, V]}, the probabilities [B, L] of
      the labels, and the `_Choices`.
    """
    compute = functools.partial(model.apply, {"params": params}, inputs, targets, train=False)
    attention: dict[str, jax.Array] = {}
    for part, point in model.attention_points.items():
        compute = functools.partial(_read_into, attention, part, point, compute)
    values = Recorder("*.value")
    with activate(values):
        logits = compute()
    probabilities = jax.nn.softmax(logits.astype(jnp.float32))
    of_labels = jnp.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0]
    best = _Choices(*jax.lax.top_k(probabilities, min(CHOICES, logits.shape[-1])))
    return attention, values.reads, of_labels, best


def _read_into(attention: dict[str, jax.Array], part: str, point: Any, compute: Callable[[], Any]) -> Any:
    """Returns the result of `compute`, and stores the attention weights of a point in `attention`."""
    result, attention[part] = read_attention(point, compute)
    return result


def _value_norms(
    weights: dict[str, np.ndarray], values: dict[str, np.ndarray], params: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns `Translated.norms` and `Translated.joint_norms`."""
    stacked = {part: stack_values(values, params, part, array.shape) for part, array in weights.items()}
    arguments = {part: (weights[part], *arrays) for part, arrays in stacked.items() if arrays is not None}
    return (
        {part: summaries.value_norms(*arrays) for part, arrays in arguments.items()},
        {part: summaries.joint_value_norms(*arrays) for part, arrays in arguments.items()},
    )


def _cut(weights: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """Cuts the padding off weights [layers, H, L', M']. Returns float32 [layers, H, queries, keys]."""
    return weights[..., :queries, :keys].astype(np.float32)
