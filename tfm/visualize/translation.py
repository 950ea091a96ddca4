"""What a model computes while it translates one sentence: attention, probabilities, and the beam."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.decoding.parameters import search_parameters
from tfm.decoding.translate import check_lengths, trace_batch
from tfm.errors import UserError
from tfm.interpret.recorder import Recorder
from tfm.layers.observe import activate, read_attention
from tfm.memory import check_estimate, format_bytes, host_memory
from tfm.search import BeamTrace, Hypotheses
from tfm.visualize import summaries

PARTS = ("encoder", "decoder", "cross")  # of attention, in the order of the figures
BLOCKS = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}  # stack, and module of its layers
MAX_TOKENS = 64
CHOICES = 8  # most probable tokens of a position
ATTENTION_COPIES = 3  # as the layers leave them, stacked, and on the host
log = logging.getLogger(__name__)


class Extension(NamedTuple):
    """A hypothesis of a beam, one token longer than its parent.

    Attributes:
      token: its last id.
      log_probability: of all its tokens; None once it has ended.
      score: under the length and coverage penalties, of one that has ended; else None.
      parent: number of the hypothesis in the step before that it extends.
      best: whether the best finished hypothesis begins so.
    """

    token: int
    log_probability: float | None
    score: float | None
    parent: int
    best: bool


class Translated(NamedTuple):
    """The translation of one sentence, and what the model computed for it.

    Attributes:
      sentence, translation: texts.
      weights: {part: float array [layers, H, L, M]}; a model has "encoder", "decoder" and "cross", or some.
      norms: {part: [layers, H, L, M]}, see `summaries.value_norms`; of the parts that have named values.
      joint_norms: {part: [layers, L, M]}, see `summaries.joint_value_norms`.
      source: pieces of the source, its end among them.
      read, predicted: for each target position, the piece that the decoder reads and the one it predicts.
      probabilities: float [L], of the predicted pieces.
      choices: for each target position the most probable pieces with their probabilities, best first.
      beam: the `Extension`s of each step of the search, those that have ended last.
      finished: (pieces, score) of the hypotheses found, best first; the first is the translation.
      pieces: id -> piece.
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
    """The most probable tokens: probabilities and ids, both [B, L, `CHOICES`]."""

    probabilities: jax.Array
    ids: jax.Array


def examine(task: Any, params: Any, sentence: str, max_tokens: int = MAX_TOKENS) -> Translated:
    """Translates a sentence by the beam search of the run's config, and keeps what the model computed.

    Args:
      task, params: of one model.
      sentence: its source text.
      max_tokens: so many at most has the source; of a longer translation only the first ones are kept.

    Raises:
      UserError: the sentence is blank or longer, the weights do not fit into the memory, or the
        probabilities are NaN.
    """
    source, _ = check_sentence(task, params, sentence, max_tokens)
    found, trace = _search(task, params, source)
    target, pieces = found[0][0], task.tokenizer.pieces
    if len(target) > max_tokens:
        log.warning(
            "Drawing the first %s of the %s tokens of a translation (--max_tokens)", max_tokens, len(target)
        )
    translated = _examine_ids(task, params, sentence, (source, target[:max_tokens]), pad_ids)
    return translated._replace(
        translation=task.tokenizer.decode(target),
        beam=trace_steps(trace)[:max_tokens],
        finished=[(pieces(ids), score) for ids, score in found],
    )


def examine_pair(
    task: Any, params: Any, source: str, target: str, max_tokens: int = MAX_TOKENS
) -> Translated | None:
    """What the model computes for a translation that is known: `Translated` without a search.

    All pairs take one program. Sides of more tokens are cut: the model has no positions for them, or a
    picture of them would be too large to read.

    Args:
      task, params: of one model.
      source, target: texts.
      max_tokens: of a side.

    Returns:
      None where a side has no token.
    """
    width = min(max_tokens, task.model.config.max_length or max_tokens)
    sides = [[*ids, EOS_ID][:width] for ids in task.tokenizer.encode([source, target])]
    if min(map(len, sides)) < 2:
        return None

    def pad(sentences):
        return np.stack([np.pad(ids, (0, width - len(ids))) for ids in sentences]).astype(np.int32)

    return _examine_ids(task, params, source, sides, pad)


def _examine_ids(task, params, sentence, ids_of_sides, pad):
    """`Translated` of the ids of both sides, which `pad` makes rows of a batch, without a search."""
    source, kept = ids_of_sides
    read = [BOS_ID, *kept[:-1]]
    sides = (pad([ids])[:, : task.model.config.max_length] for ids in (source, read, kept))
    attention, values, probabilities, best = jax.device_get(_forward(task.model, params, *sides))
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
    """The ids of a source text, and the shapes of its attention by part.

    Raises:
      UserError: it is blank or too long, or its attention too large.
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
            f"The sentence has {len(ids):,} tokens and at most {max_tokens:,} are drawn: shorten it, or "
            f"raise --max_tokens; the attention of all would take about {format_bytes(needed)}."
        )
    check_estimate(f"The attention of {len(ids):,} tokens", needed, host_memory(), "shorten the sentence")
    return ids, shapes


def stack_values(
    values: dict[str, np.ndarray], params: Any, part: str, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The values and the output kernels of all layers of a part of the attention.

    Args:
      values: {name: [1, M', H, V]} of the activations of that name, M' >= M; or [1, M', G, V], each for H / G
        neighbouring heads.
      params: of the model.
      part: one of `PARTS`.
      shape: of its weights, [layers, H, L, M].

    Returns:
      Values [layers, M, H, V] and kernels [layers, H, V, D] in float32; None where a layer has no such
      activation, or no such kernel, as one whose attention is another module than that of tfm.
    """
    (stack, block), (layers, heads, _, keys) = BLOCKS[part], shape
    found = []
    for layer in (f"layers_{i}" for i in range(layers)):
        value = values.get(f"{stack}.{layer}.{block}.value")
        kernel = params.get(stack, {}).get(layer, {}).get(block, {}).get("output", {}).get("kernel")
        if value is None or kernel is None or kernel.shape[:2] != (heads, value.shape[-1]):
            return None
        found.append((np.repeat(value[0, :keys], heads // value.shape[2], axis=1), kernel))
    stacked, kernels = (np.stack(each).astype(np.float32) for each in zip(*found, strict=True))
    return stacked, kernels


def trace_steps(trace: BeamTrace) -> list[list[Extension]]:
    """The `Extension`s of each step, of one sentence.

    Args:
      trace: of a batch of one row, as NumPy arrays.
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
            for prefix, score, length in zip(*(each[step, 0] for each in trace.finished), strict=True)
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


def _search(task, params, source):
    """The hypotheses found, [(ids, score)] best first, and the `BeamTrace`."""
    config = dataclasses.replace(task.config.decoding, samples=0)
    check_lengths(task.model, [len(source) + config.max_extra_tokens])
    members = (search_parameters(params, config.dtype),)
    inputs = pad_ids([source])[:, : task.model.config.max_length]
    found, trace = jax.device_get(trace_batch(task.model, members, inputs, config))
    return _hypotheses(found), trace


def _hypotheses(found: Hypotheses) -> list[tuple[list[int], float]]:
    tokens, scores, lengths = (each[0] for each in found)
    if np.isnan(scores).any():
        raise UserError(
            "Expected probabilities that are numbers, got NaN: the weights are damaged or diverged in "
            "training; use those of another checkpoint."
        )
    return [
        (ids[:length].tolist(), float(score))
        for ids, score, length in zip(tokens, scores, lengths, strict=True)
        if length
    ]


@functools.partial(jax.jit, static_argnums=0)
def _forward(model, params, inputs, targets, labels):
    """Attention {part: [layers, B, H, L, M]}, values by name, probabilities [B, L] of labels, `_Choices`.

    Takes inputs [B, M] and decoder inputs and labels [B, L].
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


def _read_into(attention, part, point, compute):
    """Returns what `compute` returns, and keeps the attention weights of a point in `attention`."""
    result, attention[part] = read_attention(point, compute)
    return result


def _value_norms(weights, values, params):
    """`Translated.norms` and `Translated.joint_norms`."""
    stacked = {part: stack_values(values, params, part, each.shape) for part, each in weights.items()}
    found = {part: (weights[part], *each) for part, each in stacked.items() if each is not None}
    return (
        {part: summaries.value_norms(*each) for part, each in found.items()},
        {part: summaries.joint_value_norms(*each) for part, each in found.items()},
    )


def _cut(weights, queries, keys):
    """The weights [layers, H, L', M'] of so many queries and keys alone, without padding, in float32."""
    return weights[..., :queries, :keys].astype(np.float32)
