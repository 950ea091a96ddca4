"""Looks inside a run or an export: tfm visualize --workdir=DIR [EXAMPLE ...]

Writes figures into DIR/figures, or into --output=FOLDER: curves of the loss and the learning rate, and for
each example the attention of every head. Also writes attention.html, a page to explore the attention, the
predictions and the beam search of all examples, which opens from disk. A picture that a model draws or
generates is also written in its own size, into picture-N.png.
An example is a sentence to translate or to parse, a text to read for a language model or BERT, a picture to
classify or to search for objects (a file, or the number of a test picture), the class of a picture to
generate, a caption to draw, or a story with a question.
Examples on the command line, also with --sentence, replace the default examples.
--format, --layer, --head, --words and --measure choose the figures. --lines=WORD also draws the
attention of a word in every example as lines, by default of the head that differs most between the examples.
--lines=es,sie takes whichever of the two words an example has.
Figures of an earlier call with other examples stay in the folder. An export has no curves. If the model has
no attention to draw, the page shows its predictions, or there are only curves.
"""

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.commands.command import command
from tfm.commands.options import Visualize
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.interpret.observation import Observation, Observes, observe_example
from tfm.io import local_copies
from tfm.io.files import atomic_file, only_writer, remove_temporary
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.training.scores import find_best
from tfm.training.task import Task
from tfm.visualize.figures import FORMATS, Panels, draw_attention, draw_patches, plan_grid, save
from tfm.visualize.lines import draw_lines, find_word, select_differing_head
from tfm.visualize.page import make_page
from tfm.visualize.panels import Selection, parse_head, select, selectable_kinds
from tfm.visualize.plots import plot_curves
from tfm.workdir import runs

FIGURES_FOLDER = "figures"
PAGE = "attention.html"
FIGURE_NAME = re.compile(
    rf"{re.escape(PAGE)}|(curves|(attention-\d+|lines)-[\w-]+|picture-\d+)\.({'|'.join(FORMATS)})"
)
Rows = Sequence[Mapping[str, float]]  # of the log of a run, see `read_metrics`
Drawings = dict[str, Callable[[str], Any]]  # {file name without its ending: function that writes a path}
log = logging.getLogger(__name__)


@command
def main(options: Visualize) -> None:
    """Draws all figures and the page, and prints their paths."""
    folder = options.output or os.path.join(options.workdir, FIGURES_FOLDER)
    with only_writer(os.path.join(folder, PAGE), "--output"):
        remove_temporary(folder, FIGURE_NAME)
        paths = draw_run(options.load(), options, folder)
    print(local_copies.show("\n".join(paths)))


def draw_run(run: runs.Run, options: Visualize, folder: str) -> list[str]:
    """Draws all figures of a run or an export and the page to explore it. Returns the paths of the files.

    Creates the folder, and replaces files of the same names. The page always shows all of the attention. The
    log says if there are no curves or no attention.

    Raises:
      UserError: if an example is empty or too long, its figures are too large, the model does not have the
        selected attention, or the run is an ensemble. Nothing is drawn then.
    """
    variables = runs.single_model_variables(run)
    selection = Selection(options.layer, parse_head(options.head), options.words, options.measure)
    examples = choose_examples([*options.sentences, *options.arguments], run.task)
    observations = [observe_example(run.task, variables, each, options.max_tokens) for each in examples]
    if observations and observations[0].beam:
        warn_of_another_search(run.task.config.decoding)
    figures = list_figures(observations, selection)
    if not figures:
        log.info("No attention, because there are no examples or the model has no attention to draw.")
    elif options.lines is not None:
        figures |= list_line_figures(observations, selection, options.lines)
    curves: Drawings = {}
    has_metrics = os.path.isfile(os.path.join(options.workdir, METRICS_FILE))
    rows = read_metrics(options.workdir) if has_metrics else []
    if metrics := logged_metrics(rows, find_best(run.task, run.task.config.training).metric):
        curves["curves"] = functools.partial(draw_curves, options.workdir, rows, metrics)
    else:
        log.info("No curves, because %s has no metrics yet. Exports never have them.", options.workdir)
    files = {f"{stem}.{options.format}": draw for stem, draw in (curves | figures).items()}
    files |= list_pictures(observations)
    if observations:
        files[PAGE] = functools.partial(
            _write_text, make_page(observations, make_title(options.workdir, run.steps))
        )
    os.makedirs(folder, exist_ok=True)
    for name, draw in files.items():
        draw(os.path.join(folder, name))
    return [os.path.join(folder, name) for name in files]


def logged_metrics(rows: Rows, best: str) -> list[str]:
    """Returns the metrics for the curves of a run that the rows of its log contain.

    These are the losses, the score `best` that selects the best checkpoint, and the learning rate.
    """
    metrics = dict.fromkeys(("train/loss", "validation/nll", best, "train/learning_rate"))
    return [metric for metric in metrics if any(metric in row for row in rows)]


def draw_curves(workdir: str, rows: Rows, metrics: Sequence[str], path: str) -> None:
    """Draws the curves of some metrics of a run."""
    save(plot_curves({os.path.basename(os.path.abspath(workdir)): rows}, metrics), path)


def warn_of_another_search(decoding: DecodingConfig) -> None:
    """Logs a warning if the config decodes without beam search, because the figures show a beam search."""
    if decoding.samples or decoding.beam_size == 1:
        search = "samples" if decoding.samples else "greedy search"
        log.warning(
            "The figures show a beam search of %s, but tfm translate uses %s here and may differ.",
            decoding.beam_size,
            search,
        )


def choose_examples(given: Sequence[str], task: Task | Observes) -> list[str]:
    """Returns the given examples, or the default examples of the task. A task without observations has none.

    Raises:
      UserError: if examples are given for a task whose model cannot be looked into.
    """
    if isinstance(task, Observes):
        return list(given) or task.default_examples()
    if given:
        raise UserError(
            f"An example needs a task that can observe its model, but the task of this run, "
            f"{task.config.task!r}, cannot. Omit the examples to draw only curves."
        )
    return []


def list_figures(observations: Sequence[Observation], selection: Selection) -> Drawings:
    """Returns the figures of all examples, for each kind of attention that has the selected layer and head.

    Their names are such as "attention-1-encoder", where 1 is the number of the example.

    Args:
      observations: one for each example.
      selection: the part of the attention to draw.

    Raises:
      UserError: if a figure is too large, or the model does not have the selected attention.
    """
    return {
        f"attention-{number}-{kind}": _draw_kind(each, kind, select(each, kind, selection), each.title)
        for number, each in enumerate(observations, 1)
        for kind in selectable_kinds(each.attention, selection)
    }


def list_pictures(observations: Sequence[Observation]) -> Drawings:
    """Returns {file name: function that writes a path} of the pictures that a model made."""
    pictures = {
        f"picture-{number}.png": each.tracks[each.made].picture
        for number, each in enumerate(observations, 1)
        if each.made
    }
    return {
        name: functools.partial(_write_picture, pixels)
        for name, pixels in pictures.items()
        if pixels is not None
    }


def _write_picture(pixels: np.ndarray, path: str) -> None:
    """Writes the pixels of a picture, uint8 [height, width] or [height, width, 3]."""
    from PIL import Image

    with atomic_file(path) as file:
        Image.fromarray(pixels).save(file, "PNG")


def _draw_kind(observation: Observation, kind: str, panels: Panels, title: str) -> Callable[[str], Any]:
    """Returns a function that draws a kind of attention, or raises a UserError if the figure is too large."""
    title = f"{kind} attention: {title}"
    track = observation.tracks[observation.attention[kind].keys]
    if track.picture is not None:
        return functools.partial(draw_patches, panels, track, title)
    plan_grid(panels, title)
    return functools.partial(draw_attention, panels, title)


def list_line_figures(observations: Sequence[Observation], selection: Selection, word: str) -> Drawings:
    """Returns the figures of lines, for each kind of attention that has the selected layer and head.

    A kind has a figure only if every example has the word as a query. If several heads are selected, the
    figure shows the head whose attention differs most between the examples. The log names the head.

    Args:
      observations: one for each example, at least one.
      selection: the part of the attention to draw.
      word: the word, or several words separated by commas. An example needs only one of them.

    Raises:
      UserError: if no kind of attention has the selected layer and head, no kind has the word in every
        example, or several heads are selected and there is a single example.
    """
    is_one_head = selection.layer is not None and selection.head is not None
    if len(observations) == 1 and not is_one_head:
        raise UserError(
            "--lines chooses the head whose attention differs most between examples, got one example. "
            "Give another example, or choose --layer and --head."
        )
    selection = selection._replace(words=True)
    figures: Drawings = {}
    for kind in selectable_kinds(observations[0].attention, selection):
        panels = [select(each, kind, selection) for each in observations]
        if any(find_word(each.queries, word) is None for each in panels):
            continue
        if not is_one_head:
            panels = select_differing_head(panels, word)
        head = panels[0].titles[0][0]
        log.info("The lines show the %s attention of %s.", kind, head)
        words = " / ".join(f"\u201c{each}\u201d" for each in word.split(","))
        title = f"Attention of {words}: {kind}, {head}"
        figures[f"lines-{kind}"] = functools.partial(draw_lines, panels, word, title)
    if not figures:
        raise UserError(f"--lines: expected a word of every example or of every translation, got {word!r}.")
    return figures


def make_title(workdir: str, steps: Sequence[int]) -> str:
    """Returns the title of the page: the name of the folder and the steps of the checkpoints."""
    name = os.path.basename(os.path.abspath(workdir))
    return f"{name}, training step {' + '.join(map('{:,}'.format, steps))}"


def _write_text(text: str, path: str) -> None:
    """Writes a text file. The file is complete or does not change."""
    with atomic_file(path, "w") as file:
        file.write(text)
