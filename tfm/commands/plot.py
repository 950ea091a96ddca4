"""Plots for papers and notes: tfm plot KIND [DIR ...]

  tfm plot DIR [DIR ...]               curves of training and validation of several runs (or: curves DIR ...)
  tfm plot positions [DIR]             encodings of positions, those of a run too where it has learned them
  tfm plot masks                       padding, causal and packed masks before and after the softmax
  tfm plot schedules                   learning rates of all schedules
  tfm plot calibration DIR [DIR ...]   how often predicted tokens of a like probability are right
  tfm plot lengths DIR [DIR ...]       BLEU by length of the source, of what eval.py translated
  tfm plot neighbours DIR [PIECE ...]  word pieces whose embeddings are the nearest
  tfm plot norms DIR                   norms of gradients and activations by layer, of one training batch
  tfm plot samples DIR                 what a run made of the same examples at each evaluation, with pictures

Writes KIND.png, or --output=FILE.png, .svg or .pdf; of samples, samples.md, or --output=FILE.md.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from tfm import masks, positions, schedules
from tfm.attention import attention_weights
from tfm.commands import cli, compare, config_flag
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizer import EOS_ID
from tfm.decoding.score import predict_pairs
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.io.files import atomic_file
from tfm.tasks.translation.task import sample_evenly
from tfm.training.reporting import read_metrics
from tfm.training.samples import format_samples, read_samples
from tfm.visualize import measures, plots
from tfm.visualize.figures import save
from tfm.workdir import runs

PIECES = ("animal", "street", "tired", "wide")  # of the paper's authors' sentences
NEIGHBOURS = 10
DPI = 200  # of a column's width, which has few inches
MASKED_LENGTH = 8  # positions of the masks that are drawn


class Kind(NamedTuple):
    """A kind of plot.

    Attributes:
      draw: (flags, arguments behind the kind) -> figure, or the text of a page in Markdown.
      flags: names of those that it reads, beside --output.
      least, most: numbers of folders or other arguments that it takes; most None is any.
      takes: what these are, for error messages.
      ending: of the file's name, if --output does not name it.
    """

    draw: Callable[[flags.FlagValues, Sequence[str]], Figure | str]
    flags: tuple[str, ...] = ()
    least: int = 0
    most: int | None = 0
    takes: str = "no folder"
    ending: str = "png"


def draw_curves(values: flags.FlagValues, folders: Sequence[str]) -> Figure:
    """Metrics of several runs: those of --metric, else the training loss and all of validation."""
    rows = [read_metrics(folder) for folder in folders]
    logged = sorted({name for each in rows for row in each for name in row if "/" in name})
    validation = [name for name in logged if name.startswith("validation/")]
    metrics = values.metric or ["train/nll" if "train/nll" in logged else "train/loss", *validation]
    missing = [name for name in metrics if name not in logged]
    if missing:
        known = ", ".join(logged) or "none"
        raise UserError(f"No run has logged the metric {missing[0]!r}; logged are {known}.")
    return plots.plot_curves(dict(zip(_name_runs(folders), rows, strict=True)), metrics)


def draw_positions(values: flags.FlagValues, folders: Sequence[str]) -> Figure:
    """Both layouts of sinusoids, and the tables that a run has learned."""
    if values.d_model % 2:
        raise UserError(
            f"Expected an even --d_model, as each frequency has a sine and a cosine, got {values.d_model}."
        )
    index = np.arange(values.length)
    encodings = {
        layout: np.asarray(positions.sinusoidal_encoding(index, values.d_model, layout=layout))
        for layout in positions.LAYOUTS
    }
    for folder in folders:
        params = runs.single_model_variables(runs.load(folder))["params"]
        learned = {name: part["table"] for name, part in params.items() if name.endswith("positions")}
        if not learned:
            raise UserError(f"The model of {folder} has not learned its positions: leave the folder out.")
        encodings |= {name.replace("_", " "): np.asarray(table) for name, table in learned.items()}
    return plots.plot_positions(encodings)


def draw_masks(values: flags.FlagValues, _: Sequence[str]) -> Figure:
    """The masks of tfm.masks over the same random logits."""
    del values
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


def draw_schedules(values: flags.FlagValues, _: Sequence[str]) -> Figure:
    """All schedules with the peak of the paper's: --d_model, --warmup_steps, --steps."""
    warmup, steps = values.warmup_steps, values.steps
    if warmup >= steps:
        raise UserError(f"Expected --warmup_steps below --steps, got {warmup:,} and {steps:,}.")
    peak = (values.d_model * warmup) ** -0.5
    chosen = {
        "inverse_sqrt (the paper's)": schedules.inverse_sqrt(values.d_model, warmup),
        "linear_decay": schedules.linear_decay(peak, warmup, steps),
        "cosine_decay": schedules.cosine_decay(peak, warmup, steps),
        "constant": schedules.constant(peak, warmup),
    }
    count = np.arange(steps)
    return plots.plot_schedules({name: np.asarray(rate(count)) for name, rate in chosen.items()})


def draw_calibration(values: flags.FlagValues, folders: Sequence[str]) -> Figure:
    """Token probabilities of each run on at most --sentences pairs of its validation split, or of --split."""
    found = [_calibrate(values, folder) for folder in folders]
    return plots.plot_calibration(dict(zip(_name_runs(folders), found, strict=True)))


def draw_lengths(values: flags.FlagValues, folders: Sequence[str]) -> Figure:
    """BLEU by words of the source, of the hypotheses that eval.py left."""
    groups = []
    for folder in folders:
        system = compare.read_system(folder, values.name or "", values.split or "test", "tfm plot lengths")
        texts = (system.sources, system.hypotheses, system.references)
        groups.append(measures.score_by_length(*texts, lambda *each: translation_metrics.bleu(*each).value))
    return plots.plot_lengths(dict(zip(_name_runs(folders), groups, strict=True)))


def draw_neighbours(values: flags.FlagValues, arguments: Sequence[str]) -> Figure:
    """The nearest embeddings of word pieces, at the beginning of a word where there is such a piece."""
    folder, *given = arguments
    run = runs.load(folder, checkpoint=values.checkpoint)
    runs.require_translation(run.task.config, "tfm plot neighbours")
    tokenizer, table = run.task.tokenizer, _embedding(runs.single_model_variables(run)["params"], folder)
    neighbours = {}
    for text in given or PIECES:
        ids = tokenizer.encode([text])[0]
        if len(ids) != 1 and given:
            pieces = " ".join(tokenizer.pieces(ids))
            raise UserError(f"{text!r} is not one piece of the vocabulary, but {len(ids)}: {pieces}.")
        if len(ids) == 1:
            found, similarities = measures.nearest_neighbours(table, ids[0], NEIGHBOURS)
            neighbours[tokenizer.pieces(ids)[0]] = (tokenizer.pieces(found), similarities.tolist())
    if not neighbours:
        raise UserError(
            f"None of {', '.join(PIECES)} is one piece of the vocabulary of {folder}: name others."
        )
    return plots.plot_neighbours(neighbours)


def draw_norms(values: flags.FlagValues, folders: Sequence[str]) -> Figure:
    """Norms of the first training batch under the weights of a run."""
    run = runs.load(folders[0], checkpoint=values.checkpoint)
    batch = next(iter(run.task.open_data().train_batches(0)))
    return plots.plot_norms(*measures.measure_norms(run.task, runs.single_model_variables(run), batch))


def write_samples(values: flags.FlagValues, folders: Sequence[str]) -> str:
    """A page of the samples of a run over its steps, which links its pictures."""
    if values.output and not values.output.endswith(".md"):
        raise UserError(f"Expected the name of a page to end in .md, got --output={values.output!r}.")
    page = os.path.abspath(values.output or "samples.md")
    return format_samples(read_samples(folders[0]), os.path.dirname(page))


def _name_runs(folders):
    """A name for each folder.

    Raises:
      UserError: two are the same.
    """
    names = plots.name_runs(folders)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"Expected each folder once, got {twice[0]} twice.")
    return names


def _calibrate(values, folder):
    run = runs.load(folder, checkpoint=values.checkpoint)
    runs.require_translation(run.task.config, "tfm plot calibration")
    data, tokenizer = run.task.config.data, run.task.tokenizer
    texts = list(sample_evenly(open_pairs(data, values.split or "validation"), values.sentences))
    sources, targets = (
        [[*ids, EOS_ID] for ids in tokenizer.encode(side)] for side in (texts[::2], texts[1::2])
    )
    predicted = predict_pairs(run.task.model, run.params, sources, targets, run.task.config.decoding)
    ids, probabilities = (np.concatenate(each) for each in zip(*predicted, strict=True))
    return measures.calibrate(probabilities, ids == np.concatenate(targets))


def _embedding(params: Any, folder: str) -> np.ndarray:
    """The table [V, D] that embeds the source.

    Raises:
      UserError: the parameters have none of a known name.
    """
    for name in ("embedding", "source_embedding"):
        if "table" in params.get(name, {}):
            return np.asarray(params[name]["table"])
    raise UserError(f"The model of {folder} has no parameters embedding/table or source_embedding/table.")


KINDS = {
    "curves": Kind(draw_curves, ("metric",), 1, None, "folders of runs"),
    "positions": Kind(draw_positions, ("d_model", "length"), 0, 1, "at most one folder of a run"),
    "masks": Kind(draw_masks),
    "schedules": Kind(draw_schedules, ("d_model", "warmup_steps", "steps")),
    "calibration": Kind(draw_calibration, ("split", "sentences", "checkpoint"), 1, None, "folders of runs"),
    "lengths": Kind(draw_lengths, ("split", "name"), 1, None, "folders of runs"),
    "neighbours": Kind(draw_neighbours, ("checkpoint",), 1, None, "the folder of a run, and word pieces"),
    "norms": Kind(draw_norms, ("checkpoint",), 1, 1, "the folder of one run"),
    "samples": Kind(write_samples, (), 1, 1, "the folder of one run", "md"),
}
FIRST_WORDS = tuple(KINDS)  # what a shell completes behind the command


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    config_flag.define_import(values, argv)
    text = (
        "File of the plot, in the format of its ending: png, svg, pdf, of samples md; KIND.png if not given."
    )
    flags.DEFINE_string("output", "", text, values)
    text = "curves: metric to draw, such as train/nll; the training loss and all of validation if not given."
    flags.DEFINE_multi_string("metric", [], text, values)
    flags.DEFINE_string("checkpoint", None, "best (the default), last, or a step.", values)
    text = "calibration, lengths: split of the data; validation for calibration, else test, if not given."
    flags.DEFINE_string("split", None, text, values)
    flags.DEFINE_string("name", None, "lengths: the --name that eval.py was given.", values)
    text = "calibration: sentence pairs at most, taken evenly from the split."
    flags.DEFINE_integer("sentences", 500, text, 1, flag_values=values)
    text = "positions: features; schedules: width of the model."
    flags.DEFINE_integer("d_model", 512, text, 2, 65_536, flag_values=values)
    flags.DEFINE_integer("length", 100, "positions: how many.", 2, 4096, flag_values=values)
    flags.DEFINE_integer("warmup_steps", 4000, "schedules: of all.", 1, 10**6, flag_values=values)
    flags.DEFINE_integer("steps", 20_000, "schedules: of all.", 2, 10**6, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Plots; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    values, arguments = cli.parse(__name__, argv, define_flags, ("KIND|DIR", "[DIR ...]"))
    name, rest = (arguments[0], arguments[1:]) if arguments[0] in KINDS else ("curves", arguments)
    _check(name, values, rest)
    kind = KINDS[name]
    path = values.output or f"{name}.{kind.ending}"
    drawn = kind.draw(values, rest)
    if isinstance(drawn, str):
        with atomic_file(path, "w") as file:
            file.write(drawn)
    else:
        save(drawn, path, DPI)
    print(path)


def _check(name, values, arguments):
    """Raises a UserError for arguments and flags that the kind does not take."""
    kind = KINDS[name]
    if len(arguments) < kind.least or (kind.most is not None and len(arguments) > kind.most):
        got = " ".join(arguments) or "nothing"
        raise UserError(f"tfm plot {name} takes {kind.takes}, got {got}.")
    known = {"output", "import", *kind.flags}
    others = [flag for flag in values if values[flag].present and flag not in known]
    if others:
        raise UserError(f"tfm plot {name} has no --{others[0]}: leave it out.")
