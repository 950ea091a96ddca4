"""Looks inside a run or an export: tfm visualize --workdir=DIR ["SENTENCE" ...]

Writes figures into DIR/figures, or into --output=FOLDER: curves of the loss and the learning rate, and for
each sentence the attention of every head in the encoder, in the decoder and between them. Also writes
attention.html, a page to explore the attention and the beam search of all sentences, which opens from disk.
Sentences on the command line, with or without --sentence, replace the two default sentences of the paper's
authors about the tired animal and the wide street. --format, --layer, --head, --words, --measure and
--difference choose the figures. --lines=WORD also draws the attention of a word in every sentence as lines.
Figures of an earlier call are removed from the folder. An export has no curves. A run that does not translate
has only curves.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from tfm.commands import cli
from tfm.errors import UserError
from tfm.io.files import atomic_file, only_writer, remove_temporary
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.visualize.explorer import make_page
from tfm.visualize.figures import FORMATS, check_attention_figure, draw_attention, draw_curves
from tfm.visualize.lines import draw_lines, find_word
from tfm.visualize.selection import (
    ALL,
    MEASURES,
    Selection,
    check_selection,
    parse_head,
    select,
    select_difference,
)
from tfm.visualize.translation import MAX_TOKENS, PARTS, check_sentence, examine
from tfm.workdir import runs

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
FIGURES_FOLDER = "figures"
PAGE = "attention.html"
LIST_FILE = "figures.json"  # names of the figures that the last call wrote
FIGURE_NAME = re.compile(
    rf"{re.escape(PAGE)}|(curves|(attention-\d+|difference-1-\d+|lines)-({'|'.join(PARTS)}))"
    rf"\.({'|'.join(FORMATS)})"
)
log = logging.getLogger(__name__)


def draw_run(
    run: runs.Run,
    workdir: str,
    sentences: Sequence[str],
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
      sentences: texts whose translation to draw.
      output: the folder of the figures. None means `workdir`/figures. Figures of an earlier call that are not
        drawn again are removed.
      max_tokens: see `tfm.visualize.translation.examine`.
      selection: the part of the attention that the figures show. The page always shows all of it.
      file_format: format of the figures, one of `FORMATS`.
      differences: whether to draw also the first sentence minus each other sentence.
      lines: a word whose attention in every sentence is also drawn as lines, or None.

    Raises:
      UserError: if a sentence is empty or too long, its figures are too large, or the model does not have the
        selected attention. Nothing is drawn then.
    """
    params = runs.single_model_variables(run)["params"]
    folder = output or os.path.join(workdir, FIGURES_FOLDER)
    parts = _check_sentences(run.task, params, sentences, max_tokens, selection)
    if sentences:
        warn_of_another_search(run.task.config.decoding)
    translations = [examine(run.task, params, sentence, max_tokens) for sentence in sentences]
    attention = _select_figures(translations, parts, selection, differences)
    line_figures = _select_lines(translations, parts, selection, lines) if lines is not None else {}
    page = make_page(translations, _title(workdir, run.steps)) if translations else ""
    os.makedirs(folder, exist_ok=True)
    has_metrics = os.path.isfile(os.path.join(workdir, METRICS_FILE))
    curves = f"curves.{file_format}"
    names = [curves] if has_metrics else []
    names += [f"{stem}.{file_format}" for stem in (*attention, *line_figures)]
    names += [PAGE] if page else []
    old = _listed(folder)
    _write_list(folder, sorted({*old, *names}))  # so that the next call can remove files if this call fails
    if has_metrics:
        draw_curves(read_metrics(workdir), os.path.join(folder, curves), best=run.task.best.metric)
    else:
        log.info("No curves, because %s has no %s. Exports never have it.", workdir, METRICS_FILE)
    if not parts:
        log.info("No attention, because there are no sentences or the model has no attention to draw.")
    for stem, (panels, title) in attention.items():
        draw_attention(panels, title, os.path.join(folder, f"{stem}.{file_format}"))
    for stem, (panels, title) in line_figures.items():
        draw_lines(panels, str(lines), title, os.path.join(folder, f"{stem}.{file_format}"))
    if page:
        with atomic_file(os.path.join(folder, PAGE), "w") as file:
            file.write(page)
    for name in set(old) - set(names):
        if os.path.lexists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    _write_list(folder, names)
    return [os.path.join(folder, name) for name in names]


def warn_of_another_search(decoding: Any) -> None:
    """Logs a warning if the config decodes without beam search, because the figures show a beam search."""
    if decoding.samples or decoding.beam_size == 1:
        search = "samples" if decoding.samples else "greedy search"
        log.warning(
            "The figures show a beam search of %s, but tfm translate uses %s here and may differ.",
            decoding.beam_size,
            search,
        )


def sentences_to_draw(given: Sequence[str], chosen: Any) -> Sequence[str]:
    """Returns the given sentences, or the default sentences of the paper's authors.

    Returns no sentences for a run that does not translate.

    Raises:
      UserError: if sentences are given for a run that does not translate.
    """
    if given:
        runs.require_translation(chosen, "A sentence")
        return given
    return SENTENCES if hasattr(chosen.data, "target_language") else ()


def _check_sentences(
    task: Any, params: Any, sentences: Sequence[str], max_tokens: int, selection: Selection
) -> list[str]:
    """Returns the attention parts that the model has, in the order of `PARTS`. Raises as in `draw_run`."""
    parts = {}
    for sentence in sentences:
        ids, shapes = check_sentence(task, params, sentence, max_tokens)
        parts = {part: (each.shape[0], each.shape[2]) for part, each in shapes.items()}
        check_selection(selection, parts)
        for layers, heads in parts.values():
            panels = (
                layers if selection.layer is None else 1,
                heads if selection.head is None else 1,
            )
            check_attention_figure(*panels, len(ids))
    return [part for part in PARTS if part in parts]


def _select_figures(translations, parts, selection, differences):
    """Returns {file name without its ending: (`Panels`, title)} of the attention figures.

    Raises:
      UserError: if `differences` is given with fewer than two sentences.
    """
    chosen = {
        f"attention-{number}-{part}": (select(each, part, selection), f"{part} attention: {each.sentence}")
        for number, each in enumerate(translations, 1)
        for part in parts
    }
    if not differences:
        return chosen
    if len(translations) < 2:
        raise UserError(f"--difference needs at least two sentences, got {len(translations)}.")
    first, *others = translations
    return chosen | {
        f"difference-1-{number}-{part}": (
            select_difference(first, other, part, selection),
            f"{part} attention, difference: {first.sentence} / {other.sentence}",
        )
        for number, other in enumerate(others, 2)
        for part in parts
    }


def _select_lines(translations, parts, selection, word):
    """Returns {file name without its ending: (`Panels` of each sentence, title)} of the figures of lines.

    A part of the attention has a figure if every sentence has the word as a query there.

    Raises:
      UserError: if no layer or head is selected, or if no part has the word in every sentence.
    """
    if selection.layer is None or selection.head is None:
        raise UserError("--lines draws one head: also choose --layer and --head.")
    selection = selection._replace(words=True)
    figures = {}
    for part in parts:
        panels = [select(each, part, selection) for each in translations]
        if all(find_word(each.queries, word) is not None for each in panels):
            title = f"What \u201c{word}\u201d attends to: {part} attention, {panels[0].titles[0][0]}"
            figures[f"lines-{part}"] = (panels, title)
    if not figures:
        raise UserError(f"--lines: expected a word of every sentence or of every translation, got {word!r}.")
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


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines the flags of the command in `values`."""
    cli.define_finished_run(values, argv)
    text = "Source sentence whose translation to draw, like the sentences without a flag."
    flags.DEFINE_multi_string("sentence", None, text, values)
    text = "Folder of the figures. The default is the folder figures in the work directory."
    flags.DEFINE_string("output", "", text, values)
    text = "Maximum number of tokens of a sentence."
    flags.DEFINE_integer("max_tokens", MAX_TOKENS, text, 1, flag_values=values)
    flags.DEFINE_enum("format", "png", FORMATS, "File format of the figures.", values)
    text = "Layer to draw, counted from 0. The default is all layers."
    flags.DEFINE_integer("layer", None, text, flag_values=values)
    text = (
        "Head to draw: an index counted from 0, mean for the mean of all heads, or rollout, the attention "
        "that is combined over the layers. The default is all heads."
    )
    flags.DEFINE_string("head", None, text, values)
    text = "Draw the attention of words instead of word pieces."
    flags.DEFINE_boolean("words", False, text, values)
    text = "Measure to draw: the attention weights, or the norms of the weighted values."
    flags.DEFINE_enum("measure", "weights", MEASURES, text, values)
    text = "Also draw the first sentence minus each other sentence, for tokens that correspond."
    flags.DEFINE_boolean("difference", False, text, values)
    text = "Word whose attention in every sentence is also drawn as lines. Needs --layer and --head."
    flags.DEFINE_string("lines", None, text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Draws. See `tfm.commands.cli.parse` for `argv` and for the errors."""
    arguments, sentences = cli.parse(__name__, argv, define_flags, ("[SENTENCE ...]",))
    head = parse_head(arguments.head)
    selection = Selection(arguments.layer, head, arguments.words, arguments.measure)
    folder = arguments.output or os.path.join(arguments.workdir, FIGURES_FOLDER)
    with only_writer(os.path.join(folder, LIST_FILE), "--output"):
        remove_temporary(folder)
        run = cli.load_run(arguments)
        texts = sentences_to_draw([*(arguments.sentence or []), *sentences], run.task.config)
        options = (arguments.max_tokens, selection, arguments.format, arguments.difference, arguments.lines)
        paths = draw_run(run, arguments.workdir, texts, folder, *options)
    print("\n".join(paths))
