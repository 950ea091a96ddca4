"""Looks inside a run or an export: tfm visualize --workdir=DIR [EXAMPLE ...]

Writes figures into DIR/figures, or into --output=FOLDER: curves of the loss and the learning rate, and for
each example the attention of every head. Also writes attention.html, a page to explore the attention, the
predictions and the beam search of all examples, which opens from disk.
An example is a sentence to translate or to parse, a text for a language model to read, or the number of a
test image to classify. Examples on the command line, also with --sentence, replace the default examples.
--format, --layer, --head, --words, --measure and --difference choose the figures. --lines=WORD also draws the
attention of a word in every example as lines. Figures of an earlier call are removed from the folder. An
export has no curves. A run whose model has no attention to draw has only curves.
"""

import functools
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from tfm.commands.command import command
from tfm.commands.options import Visualize
from tfm.errors import UserError
from tfm.io.files import atomic_file, only_writer, remove_temporary
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.visualize.figures import FORMATS, Panels, draw_attention, draw_patches, plan_grid, save
from tfm.visualize.lines import draw_lines, find_word
from tfm.visualize.observation import MAX_TOKENS, Observation, Observes
from tfm.visualize.page import make_page
from tfm.visualize.panels import ALL, Selection, parse_head, select, select_difference
from tfm.visualize.plots import plot_curves
from tfm.workdir import runs

FIGURES_FOLDER = "figures"
PAGE = "attention.html"
LIST_FILE = "figures.json"  # names of the figures that the last call wrote
FIGURE_NAME = re.compile(
    rf"{re.escape(PAGE)}|(curves|(attention-\d+|difference-1-\d+|lines)-[\w-]+)\.({'|'.join(FORMATS)})"
)
log = logging.getLogger(__name__)


class Drawing(NamedTuple):
    """A figure of attention: its file name without the ending, its title, and a function that draws it."""

    stem: str
    title: str
    draw: Callable[[str, str], None]  # of the title and the path


def draw_run(
    run: runs.Run,
    workdir: str,
    examples: Sequence[str],
    output: str | None = None,
    max_tokens: int = MAX_TOKENS,
    selection: Selection = ALL,
    file_format: str = "png",
    differences: bool = False,
    lines: str | None = None,
) -> list[str]:
    """Draws all figures of a run or an export and the page to explore it. Returns the paths of the files.

    Args:
      run: the run, with a single model.
      workdir: the folder of the run. If it has metrics, curves are drawn.
      examples: the examples to draw, in the form of `Observes.observe`.
      output: the folder of the figures. None means `workdir`/figures. Figures of an earlier call that are not
        drawn again are removed.
      max_tokens: maximum number of tokens of an example.
      selection: the part of the attention that the figures show. The page always shows all of it.
      file_format: format of the figures, one of `FORMATS`.
      differences: whether to draw also the first example minus each other example.
      lines: a word whose attention in every example is also drawn as lines, or None.

    Raises:
      UserError: if an example is empty or too long, its figures are too large, or the model does not have the
        selected attention. Nothing is drawn then.
    """
    variables = runs.single_model_variables(run)
    folder = output or os.path.join(workdir, FIGURES_FOLDER)
    observations = [run.task.observe(variables, example, max_tokens) for example in examples]
    if observations and observations[0].beam:
        warn_of_another_search(run.task.config.decoding)
    figures = list_figures(observations, selection, differences)
    if lines is not None:
        figures += list_line_figures(observations, selection, lines)
    page = make_page(observations, _title(workdir, run.steps)) if observations else ""
    os.makedirs(folder, exist_ok=True)
    has_metrics = os.path.isfile(os.path.join(workdir, METRICS_FILE))
    curves = f"curves.{file_format}"
    names = [curves] if has_metrics else []
    names += [f"{figure.stem}.{file_format}" for figure in figures]
    names += [PAGE] if page else []
    old = _listed(folder)
    _write_list(folder, sorted({*old, *names}))  # so that the next call can remove files if this call fails
    if has_metrics:
        save(draw_curves(workdir, run.task.best.metric), os.path.join(folder, curves))
    else:
        log.info("No curves, because %s has no %s. Exports never have it.", workdir, METRICS_FILE)
    if not figures:
        log.info("No attention, because there are no examples or the model has no attention to draw.")
    for figure in figures:
        figure.draw(figure.title, os.path.join(folder, f"{figure.stem}.{file_format}"))
    if page:
        with atomic_file(os.path.join(folder, PAGE), "w") as file:
            file.write(page)
    for name in set(old) - set(names):
        if os.path.lexists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    _write_list(folder, names)
    return [os.path.join(folder, name) for name in names]


def draw_curves(workdir: str, best: str) -> Figure:
    """Returns the curves of the losses, the score that selects the best checkpoint, and the learning rate."""
    rows = read_metrics(workdir)
    metrics = dict.fromkeys(("train/loss", "validation/nll", best, "train/learning_rate"))
    logged = [metric for metric in metrics if any(metric in row for row in rows)]
    return plot_curves({os.path.basename(os.path.abspath(workdir)): rows}, logged)


def warn_of_another_search(decoding: Any) -> None:
    """Logs a warning if the config decodes without beam search, because the figures show a beam search."""
    if decoding.samples or decoding.beam_size == 1:
        search = "samples" if decoding.samples else "greedy search"
        log.warning(
            "The figures show a beam search of %s, but tfm translate uses %s here and may differ.",
            decoding.beam_size,
            search,
        )


def choose_examples(given: Sequence[str], task: Any) -> list[str]:
    """Returns the given examples, or the default examples of the task. Other tasks have no examples.

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


def list_figures(
    observations: Sequence[Observation], selection: Selection, differences: bool
) -> list[Drawing]:
    """Returns the figures of all kinds of attention of all examples.

    Raises:
      UserError: if a figure is too large, the model does not have the selected attention, or `differences` is
        given with fewer than two examples.
    """
    figures = [
        _attention_figure(f"attention-{number}-{kind}", each, kind, select(each, kind, selection), each.title)
        for number, each in enumerate(observations, 1)
        for kind in each.attention
    ]
    if not differences:
        return figures
    if len(observations) < 2:
        raise UserError(f"--difference needs at least two examples, got {len(observations)}.")
    first, *others = observations
    return figures + [
        _attention_figure(
            f"difference-1-{number}-{kind}",
            first,
            kind,
            select_difference(first, other, kind, selection),
            f"difference: {first.title} / {other.title}",
        )
        for number, other in enumerate(others, 2)
        for kind in first.attention
    ]


def _attention_figure(stem: str, observation: Observation, kind: str, panels: Panels, title: str) -> Drawing:
    """Returns the figure of one kind of attention. Raises a UserError if the figure is too large."""
    title = f"{kind} attention: {title}"
    track = observation.tracks[observation.attention[kind].keys]
    if track.picture is not None:
        return Drawing(stem, title, functools.partial(draw_patches, panels, track))
    plan_grid(panels, title)
    return Drawing(stem, title, functools.partial(draw_attention, panels))


def list_line_figures(observations: Sequence[Observation], selection: Selection, word: str) -> list[Drawing]:
    """Returns the figures of lines. A kind of attention has one if every example has the word as a query.

    Raises:
      UserError: if no layer or head is selected, or if no kind of attention has the word in every example.
    """
    if selection.layer is None or selection.head is None:
        raise UserError("--lines draws one head: also choose --layer and --head.")
    selection = selection._replace(words=True)
    figures = []
    for kind in observations[0].attention if observations else ():
        panels = [select(each, kind, selection) for each in observations]
        if all(find_word(each.queries, word) is not None for each in panels):
            title = f"What \u201c{word}\u201d attends to: {kind} attention, {panels[0].titles[0][0]}"
            figures.append(Drawing(f"lines-{kind}", title, functools.partial(draw_lines, panels, word)))
    if not figures:
        raise UserError(f"--lines: expected a word of every example or of every translation, got {word!r}.")
    return figures


def _title(workdir: str, steps: Sequence[int]) -> str:
    """Returns the title of the page: the name of the folder and the steps of the checkpoints."""
    return f"{os.path.basename(os.path.abspath(workdir))}, step {' + '.join(map('{:,}'.format, steps))}"


def _listed(folder: str) -> list[str]:
    """Returns the names of the figures that an earlier call wrote into a folder.

    Ignores names in the list that this command never writes, so that no other file is removed.
    """
    try:
        with open(os.path.join(folder, LIST_FILE), encoding="utf-8") as file:
            names = json.load(file)
    except (OSError, ValueError, RecursionError):
        return []
    names = names if isinstance(names, list) else []
    return [name for name in names if isinstance(name, str) and FIGURE_NAME.fullmatch(name)]


def _write_list(folder: str, names: Sequence[str]) -> None:
    """Writes the list of the figures into the folder."""
    with atomic_file(os.path.join(folder, LIST_FILE), "w") as file:
        json.dump(names, file)


@command
def main(options: Visualize) -> None:
    """Draws."""
    head = parse_head(options.head)
    selection = Selection(options.layer, head, options.words, options.measure)
    folder = options.output or os.path.join(options.workdir, FIGURES_FOLDER)
    with only_writer(os.path.join(folder, LIST_FILE), "--output"):
        remove_temporary(folder)
        run = options.load()
        examples = choose_examples([*options.sentences, *options.arguments], run.task)
        choices = (options.max_tokens, selection, options.format, options.difference, options.lines)
        paths = draw_run(run, options.workdir, examples, folder, *choices)
    print("\n".join(paths))
