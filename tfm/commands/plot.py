"""Plots for papers and notes: tfm plot KIND [DIR ...]

  tfm plot DIR [DIR ...]               training and validation curves of several runs (or: curves DIR ...)
  tfm plot positions [DIR]             position encodings, and the learned positions of a run
  tfm plot masks                       padding, causal and packed masks before and after the softmax
  tfm plot schedules                   learning rates of all schedules
  tfm plot calibration DIR [DIR ...]   share of correct tokens by predicted probability
  tfm plot lengths DIR [DIR ...]       BLEU by length of the source, from the outputs of tfm evaluate
  tfm plot neighbours DIR [PIECE ...]  word pieces with the nearest embeddings
  tfm plot norms DIR                   norms of gradients and activations by layer, for one training batch
  tfm plot samples DIR                 outputs for the same examples at each evaluation, with pictures

Writes KIND.png, or the file of --output with the ending .png, .svg or .pdf. The kind
samples writes samples.md, or the file of --output with the ending .md.
"""

import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from tfm import masks, positions, schedules
from tfm.attention import attention_weights
from tfm.commands import compare
from tfm.commands.command import command, flag_fields
from tfm.commands.compilation import prepare_device
from tfm.commands.options import Plot
from tfm.data.sources.opening import check_splits, open_pairs
from tfm.data.tokenizers.protocol import EOS_ID, encode_sides
from tfm.decoding.score import predict_pairs
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.interpret.observation import check_probabilities
from tfm.io.files import atomic_file
from tfm.tasks.translation.report import find_fitting_pairs
from tfm.tasks.translation.task import sample_evenly
from tfm.training.run_log import read_metrics
from tfm.training.samples import format_samples, read_samples
from tfm.visualize import measures, plots
from tfm.visualize.figures import find_format, save
from tfm.workdir import runs

PIECES = ("animal", "street", "tired", "wide")  # words of the example sentences of the paper's authors
NEIGHBOURS = 10  # number of nearest pieces to draw for each piece
DPI = 200  # high, because figures are only as wide as a column of text
PAGE_ENDING = "md"  # of the kinds that write a page in Markdown
MASKED_LENGTH = 8  # number of positions in the drawn masks
log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """A kind of plot.

    Attributes:
      draw: function of the flags and the arguments after the kind. Returns a figure, or a page in Markdown.
      arguments: the arguments after the kind: "", "DIR", "[DIR]", "DIR [DIR ...]" or "DIR [PIECE ...]".
      flags: names of the flags that it reads, except --output and --import.
      ending: ending of the file's name if --output is not given.
      computes: whether it computes with JAX.
    """

    draw: Callable[[Plot, Sequence[str]], Figure | str]
    arguments: str = ""
    flags: tuple[str, ...] = ()
    ending: str = "png"
    computes: bool = True


def draw_curves(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws the metrics of --metric for several runs.

    The default metrics are the training loss and all metrics of the validation split.
    """
    rows = [read_metrics(folder) for folder in folders]
    logged = sorted({name for each in rows for row in each for name in row if "/" in name})
    validation = [name for name in logged if name.startswith("validation/")]
    metrics = list(options.metrics) or ["train/nll" if "train/nll" in logged else "train/loss", *validation]
    missing = [name for name in metrics if name not in logged]
    if missing:
        known = ", ".join(logged) or "none"
        raise UserError(f"No run has logged the metric {missing[0]!r}; logged are {known}.")
    return plots.plot_curves(dict(zip(_name_runs(folders), rows, strict=True)), metrics)


def draw_positions(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws both layouts of the sinusoids and, given a run, its learned position tables.

    Raises:
      UserError: if --d_model is odd, or the model of the run has no learned positions.
    """
    if options.d_model % 2:
        raise UserError(
            f"Expected an even --d_model, because each frequency has a sine and a cosine, got "
            f"{options.d_model}."
        )
    index = np.arange(options.length)
    encodings = {
        layout: np.asarray(positions.sinusoidal_encoding(index, options.d_model, layout=layout))
        for layout in positions.LAYOUTS
    }
    for folder in folders:
        params = runs.single_model_variables(runs.load(folder))["params"]
        learned = {name: part["table"] for name, part in params.items() if name.endswith("positions")}
        if not learned:
            raise UserError(f"The model of {folder} has no learned positions. Leave the folder out.")
        encodings |= {name.replace("_", " "): np.asarray(table) for name, table in learned.items()}
    return plots.plot_positions(encodings)


def draw_masks(options: Plot, _: Sequence[str]) -> Figure:
    """Draws the masks of tfm.masks and the softmax of the same random logits under each mask."""
    del options
    index = np.arange(MASKED_LENGTH)
    tokens = np.where(index < MASKED_LENGTH - 2, 1, 0)
    segments = np.where(index < 3, 1, np.where(index < 6, 2, 0))
    causal = masks.causal_mask(index, index)
    packed = masks.segment_mask(segments, segments)
    chosen = {
        "padding": masks.padding_mask(tokens),
        "causal": causal,
        "packed": packed,
        "packed, causal": causal & packed,
    }
    query, key = jax.random.normal(jax.random.key(0), (2, MASKED_LENGTH, 1, 16))
    logits = np.einsum("lhk,mhk->lm", query, key) / 4
    shape = (MASKED_LENGTH, MASKED_LENGTH)
    grids = {name: np.broadcast_to(np.squeeze(mask), shape) for name, mask in chosen.items()}
    weights = {
        name: np.asarray(attention_weights(query, key, mask=grid[None])[0]) for name, grid in grids.items()
    }
    return plots.plot_masks(grids, logits, weights)


def draw_schedules(options: Plot, _: Sequence[str]) -> Figure:
    """Draws all schedules with the peak of the paper's schedule for --d_model and --warmup_steps."""
    warmup, steps = options.warmup_steps, options.steps
    if warmup > steps:
        raise UserError(f"Expected --warmup_steps to be at most --steps, got {warmup:,} and {steps:,}.")
    peak = (options.d_model * warmup) ** -0.5
    chosen = {
        "inverse_sqrt (the paper's)": schedules.inverse_sqrt(options.d_model, warmup),
        "linear_decay": schedules.linear_decay(peak, warmup, steps),
        "cosine_decay": schedules.cosine_decay(peak, warmup, steps),
        "constant": schedules.constant(peak, warmup),
    }
    count = np.arange(steps)
    return plots.plot_schedules({name: np.asarray(rate(count)) for name, rate in chosen.items()})


def draw_calibration(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws the calibration of each run on at most --sentences pairs of --split, or of validation."""
    names, calibrations = _name_runs(folders), []
    for folder in folders:
        run = runs.load(folder, checkpoint=options.checkpoint)
        runs.require_translation(run.task.config, "tfm plot calibration")
        sources, targets = encode_pairs(run.task, options.split or "validation", options.sentences)
        predicted = predict_pairs(run.task.model, run.params, sources, targets, run.task.config.decoding)
        ids, probabilities = (np.concatenate(each) for each in zip(*predicted, strict=True))
        check_probabilities(probabilities)
        calibrations.append(measures.calibrate(probabilities, ids == np.concatenate(targets)))
    return plots.plot_calibration(dict(zip(names, calibrations, strict=True)))


def encode_pairs(task: Any, split: str, count: int) -> list[list[list[int]]]:
    """Returns the ids with EOS of at most `count` sources and of their targets, without too long pairs."""
    check_splits(task.config.data, [split])
    texts = list(sample_evenly(open_pairs(task.config.data, split), count))
    sides = encode_sides(task.tokenizer, texts[::2], texts[1::2])
    longest = task.config.model.max_length
    fits = find_fitting_pairs(longest, *sides)
    if not fits.all():
        log.warning("Left out %s pairs of over %s tokens.", f"{(~fits).sum():,}", f"{longest:,}")
    return [[[*ids, EOS_ID] for ids in itertools.compress(side, fits)] for side in sides]


def draw_lengths(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws BLEU by the number of words in the source, from the hypotheses that tfm evaluate wrote."""
    names, groups = _name_runs(folders), []
    for folder in folders:
        system = compare.read_system(folder, options.name or "", options.split or "test", "tfm plot lengths")
        texts = (system.sources, system.hypotheses, system.references)
        groups.append(measures.score_by_length(*texts, lambda *each: translation_metrics.bleu(*each).value))
    return plots.plot_lengths(dict(zip(names, groups, strict=True)))


def draw_neighbours(options: Plot, arguments: Sequence[str]) -> Figure:
    """Draws the nearest neighbours of word pieces by their embeddings.

    The arguments are the folder of a run and texts. Each text must be one word piece. Without texts, those of
    `PIECES` that are one piece of the vocabulary are drawn.
    """
    folder, *given = arguments
    run = runs.load(folder, checkpoint=options.checkpoint)
    runs.require_translation(run.task.config, "tfm plot neighbours")
    tokenizer, table = run.task.tokenizer, _embedding(runs.single_model_variables(run)["params"], folder)
    neighbours = {}
    for text in given or PIECES:
        ids = tokenizer.encode([text])[0]
        if len(ids) != 1 and given:
            pieces = " ".join(tokenizer.pieces(ids))
            raise UserError(
                f"Expected a text that is one piece of the vocabulary, but {text!r} has {len(ids)}: {pieces}."
            )
        if len(ids) == 1:
            found, similarities = measures.nearest_neighbours(table, ids[0], NEIGHBOURS)
            neighbours[tokenizer.pieces(ids)[0]] = (tokenizer.pieces(found), similarities.tolist())
    if not neighbours:
        raise UserError(
            f"None of {', '.join(PIECES)} is one piece of the vocabulary of {folder}. Give other pieces."
        )
    return plots.plot_neighbours(neighbours)


def draw_norms(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws the norms of gradients and activations of the first training batch, by layer."""
    run = runs.load(folders[0], checkpoint=options.checkpoint)
    batch = next(iter(run.task.open_data().train_batches(0)))
    return plots.plot_norms(*measures.measure_norms(run.task, runs.single_model_variables(run), batch))


def write_samples(options: Plot, folders: Sequence[str]) -> str:
    """Returns a page in Markdown with the samples of a run at each evaluation and links to its pictures."""
    if options.output and not options.output.endswith(".md"):
        raise UserError(f"Expected --output to end in .md for the kind samples, got {options.output!r}.")
    page = os.path.abspath(options.output or "samples.md")
    return format_samples(read_samples(folders[0]), os.path.dirname(page))


def _name_runs(folders: Sequence[str]) -> list[str]:
    """Returns a short name for each folder.

    Raises:
      UserError: if a folder is given twice.
    """
    names = plots.name_runs(folders)
    paths = list(map(os.path.realpath, folders))
    twice = [name for name, path in zip(names, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise UserError(f"Expected different folders, got {twice[0]} twice.")
    return names


def _embedding(params: Any, folder: str) -> np.ndarray:
    """Returns the table [V, D] that embeds the source.

    Raises:
      UserError: if the parameters contain no embedding table with a known name.
    """
    for name in ("embedding", "source_embedding"):
        if "table" in params.get(name, {}):
            return np.asarray(params[name]["table"])
    raise UserError(f"The model of {folder} has no parameters embedding/table or source_embedding/table.")


KINDS = {
    "curves": Kind(draw_curves, "DIR [DIR ...]", ("metric",), computes=False),
    "positions": Kind(draw_positions, "[DIR]", ("d_model", "length")),
    "masks": Kind(draw_masks),
    "schedules": Kind(draw_schedules, "", ("d_model", "warmup_steps", "steps")),
    "calibration": Kind(draw_calibration, "DIR [DIR ...]", ("split", "sentences", "checkpoint")),
    "lengths": Kind(draw_lengths, "DIR [DIR ...]", ("split", "name"), computes=False),
    "neighbours": Kind(draw_neighbours, "DIR [PIECE ...]", ("checkpoint",)),
    "norms": Kind(draw_norms, "DIR", ("checkpoint",)),
    "samples": Kind(write_samples, "DIR", ending=PAGE_ENDING, computes=False),
}


@command
def main(options: Plot) -> None:
    """Plots."""
    name, arguments = options.kind, options.arguments
    if name not in KINDS:
        name, arguments = "curves", (options.kind, *options.arguments)
    _check(name, options, arguments)
    kind = KINDS[name]
    path = options.output or f"{name}.{kind.ending}"
    if kind.ending != PAGE_ENDING:
        find_format(path)  # checked here, because drawing may decode for minutes
    if kind.computes:
        prepare_device()
    drawn = kind.draw(options, arguments)
    if isinstance(drawn, str):
        with atomic_file(path, "w") as file:
            file.write(drawn)
    else:
        save(drawn, path, DPI)
    print(path)


def _check(name: str, options: Plot, arguments: Sequence[str]) -> None:
    """Raises a UserError if the kind does not accept these arguments or flags."""
    usage = KINDS[name].arguments
    is_short = usage.startswith("DIR") and not arguments
    is_long = "..." not in usage and len(arguments) > len(usage.split())
    if is_short or is_long:
        got = " ".join(arguments) or "nothing"
        raise UserError(f"Expected {usage or 'nothing'} after tfm plot {name}, got {got}.")
    known = {"output", "import", *KINDS[name].flags}
    for flag, field in flag_fields(Plot).items():
        if flag not in known and getattr(options, field.name) != field.default:
            raise UserError(f"tfm plot {name} has no flag --{flag}. Leave it out.")
