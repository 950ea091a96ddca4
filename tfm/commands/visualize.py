"""Pictures of a run or an export: tfm visualize --workdir=DIR

Draws into DIR/figures, or --output=FOLDER, the loss and learning-rate curves, and for each sentence the
attention of every head in the encoder, the decoder and between them. --sentence="..." (repeatable) replaces
the sentences of the paper's authors about the tired animal and the wide street. Figures that an earlier call
left in the folder are removed. An export has no curves; a run that does not translate has curves alone.
"""

import dataclasses
import functools
import json
import logging
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from tfm.commands import cli
from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.decoding.generate import check_lengths, decode
from tfm.errors import UserError
from tfm.runtime.files import atomic_file, only_writer, remove_temporary
from tfm.runtime.memory import check_estimate, format_bytes, host_memory
from tfm.training.reporting import METRICS_FILE, read_metrics
from tfm.visualize.figures import Axis, check_attention_figure, draw_attention, draw_curves
from tfm.workdir import runs

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
PARTS = ("encoder", "decoder", "cross")  # of attention, in the order of the figures
FIGURES_FOLDER = "figures"
LIST_FILE = "figures.json"  # names of the figures that the last call wrote
FIGURE_NAME = re.compile(rf"curves\.png|attention-\d+-({'|'.join(PARTS)})\.png")
MAX_TOKENS = 64
ATTENTION_COPIES = 3  # as the layers leave them, stacked, and on the host
log = logging.getLogger(__name__)


class Attention(NamedTuple):
    """The attention of one translation.

    Attributes:
      weights: {part: float array [layers, H, L, M]}; a model has "encoder", "decoder" and "cross", or some.
      source: pieces of the source, its end among them.
      read, predicted: for each target position, the piece that the decoder reads and the one it predicts.
    """

    weights: dict[str, Any]
    source: list[str]
    read: list[str]
    predicted: list[str]


def attention_maps(task: Any, params: Any, sentence: str, max_tokens: int = MAX_TOKENS) -> Attention:
    """The `Attention` of a translation by the model's own greedy search.

    Args:
      task, params: of one model.
      sentence: its source text.
      max_tokens: so many at most has the source; of a longer translation only the first ones are kept.

    Raises:
      UserError: the source is longer, or the weights do not fit into the memory.
    """
    source, _ = _check_sentence(task, params, sentence, max_tokens)
    greedy = dataclasses.replace(task.config.decoding, beam_size=1, samples=0)
    target = decode(task.model, params, [source], greedy)[0][0].ids
    if len(target) > max_tokens:
        log.warning(
            "Drawing the first %s of the %s tokens of a translation (--max_tokens)", max_tokens, len(target)
        )
        target = target[:max_tokens]
    read = [BOS_ID, *target[:-1]]
    found = _collect_attention(task.model, params, jnp.array([source]), jnp.array([read]))
    weights = {part: np.asarray(each)[:, 0] for part, each in found.items()}
    return Attention(weights, *map(task.tokenizer.pieces, (source, read, target)))


def draw_run(
    run: runs.Run,
    workdir: str,
    sentences: Sequence[str],
    output: str | None = None,
    max_tokens: int = MAX_TOKENS,
) -> list[str]:
    """All pictures of a run or an export; returns their paths.

    Args:
      run: a `tfm.workdir.runs.Run`.
      workdir: its folder. Curves are drawn where it has metrics.
      sentences: texts whose attention to draw.
      output: the folder of the pictures; `workdir`/figures when None. Those that an earlier call listed there
        and that are not drawn now are removed.
      max_tokens: see `attention_maps`.

    Raises:
      UserError: a sentence is too long or its pictures too large; nothing is drawn then.
    """
    params = runs.single_model_params(run)
    folder = output or os.path.join(workdir, FIGURES_FOLDER)
    shapes = {}
    for sentence in sentences:
        ids, shapes = _check_sentence(run.task, params, sentence, max_tokens)
        for each in shapes.values():
            check_attention_figure(each.shape[0], each.shape[2], len(ids))
    parts = [part for part in PARTS if part in shapes]
    os.makedirs(folder, exist_ok=True)
    has_metrics = os.path.isfile(os.path.join(workdir, METRICS_FILE))
    names = ["curves.png"] if has_metrics else []
    names += [f"attention-{number}-{part}.png" for number in range(1, len(sentences) + 1) for part in parts]
    old = _listed(folder)
    _write_list(folder, sorted({*old, *names}))  # what is cut short is removed by the next call
    if has_metrics:
        curves = os.path.join(folder, "curves.png")
        draw_curves(read_metrics(workdir), curves, best=run.task.best.metric)
    else:
        log.info("No curves: %s has no %s; an export has none", workdir, METRICS_FILE)
    if not parts:
        log.info("No attention: the model has none to draw")
    for number, sentence in enumerate(sentences if parts else (), 1):
        attention = attention_maps(run.task, params, sentence, max_tokens)
        axes = make_axes(attention)
        for part in parts:
            path = os.path.join(folder, f"attention-{number}-{part}.png")
            draw_attention(attention.weights[part], *axes[part], f"{part} attention: {sentence}", path)
    for name in set(old) - set(names):
        if os.path.lexists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    _write_list(folder, names)
    return [os.path.join(folder, name) for name in names]


def sentences_to_draw(given: Sequence[str], chosen: Any) -> Sequence[str]:
    """The sentences of the flag, else those of the paper's authors; none for a run that does not translate.

    Raises:
      UserError: sentences are given for such a run.
    """
    if given:
        runs.require_translation(chosen, "--sentence")
        return given
    return SENTENCES if hasattr(chosen.data, "target_language") else ()


def make_axes(attention: Attention) -> dict[str, tuple[Axis, Axis]]:
    """{part: (queries, keys)}: each an `Axis` that says whether its pieces are read or predicted."""
    encoded = Axis("key: source piece attended to", attention.source)
    read = Axis("key: target piece read and attended to", attention.read)
    pairs = zip(attention.predicted, attention.read, strict=True)
    predicted = Axis(
        "query: target piece predicted\n(in brackets: the piece read)",
        [f"{piece} ({before})" for piece, before in pairs],
    )
    encoding = Axis("query: source piece encoded", attention.source)
    return {"encoder": (encoding, encoded), "decoder": (predicted, read), "cross": (predicted, encoded)}


def _collect_attention(model, params, inputs, targets):
    """{part: [layers, B, H, L, M]} of a forward pass over inputs [B, M] and decoder inputs [B, L]."""
    _, collected = model.apply({"params": params}, inputs, targets, train=False, mutable=["attention"])
    return model.attention_maps(collected)


def _check_sentence(task, params, sentence, max_tokens):
    """The ids of a source text, and the shapes of its attention by part.

    Raises:
      UserError: it is too long, or its attention too large.
    """
    ids = [*task.tokenizer.encode([sentence])[0], EOS_ID]
    check_lengths(task.model, [len(ids)])
    target = min(len(ids) + task.config.decoding.max_extra_tokens, max(len(ids), max_tokens))
    target = min(target, task.model.config.max_length or target)
    sides = (jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (len(ids), target))
    shapes = jax.eval_shape(functools.partial(_collect_attention, task.model), params, *sides)
    needed = ATTENTION_COPIES * sum(math.prod(x.shape) * x.dtype.itemsize for x in shapes.values())
    if len(ids) > max_tokens:
        raise UserError(
            f"The sentence has {len(ids):,} tokens and at most {max_tokens:,} are drawn: shorten it, or "
            f"raise --max_tokens; the attention of all would take about {format_bytes(needed)}."
        )
    check_estimate(f"The attention of {len(ids):,} tokens", needed, host_memory(), "shorten the sentence")
    return ids, shapes


def _listed(folder):
    """The figures that an earlier call wrote into a folder; other names are none of ours."""
    try:
        with open(os.path.join(folder, LIST_FILE), encoding="utf-8") as file:
            names = json.load(file)
    except (OSError, ValueError, RecursionError):
        return []
    names = names if isinstance(names, list) else []
    return [name for name in names if isinstance(name, str) and FIGURE_NAME.fullmatch(name)]


def _write_list(folder, names):
    with atomic_file(os.path.join(folder, LIST_FILE), "w") as file:
        json.dump(names, file)


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_finished_run(values, argv)
    text = "Source sentence whose attention to draw; may be repeated."
    flags.DEFINE_multi_string("sentence", None, text, values)
    text = "Folder of the pictures; figures in the work directory if not given."
    flags.DEFINE_string("output", "", text, values)
    text = "Tokens of the longest sentence to draw."
    flags.DEFINE_integer("max_tokens", MAX_TOKENS, text, 1, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Draws; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    folder = arguments.output or os.path.join(arguments.workdir, FIGURES_FOLDER)
    with only_writer(os.path.join(folder, LIST_FILE), "--output"):
        remove_temporary(folder)
        run = cli.load_run(arguments)
        sentences = sentences_to_draw(arguments.sentence, run.task.config)
        paths = draw_run(run, arguments.workdir, sentences, folder, arguments.max_tokens)
    print("\n".join(paths))
