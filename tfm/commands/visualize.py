"""Looks inside a run or an export: tfm visualize --workdir=DIR ["SENTENCE" ...]

Writes into DIR/figures, or --output=FOLDER: the loss and learning-rate curves; for each sentence figures of
the attention of every head in the encoder, the decoder and between them; and attention.html, a page to
explore the attention and the beam search of all these sentences, which opens from disk. Sentences beside the
flags, or --sentence="..." (repeatable), replace those of the paper's authors about the tired animal and the
wide street. --format, --layer, --head, --words, --measure and --difference choose the figures. --lines=WORD
also draws what a word of every sentence attends to, as lines. What an earlier call left in the folder is
removed. An export has no curves; a run that does not translate has only curves.
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
from tfm.training.reporting import METRICS_FILE, read_metrics
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
    """All pictures of a run or an export, and the page to explore it; returns their paths.

    Args:
      run: a `tfm.workdir.runs.Run`.
      workdir: its folder. Curves are drawn where it has metrics.
      sentences: texts whose translation to draw.
      output: the folder of the pictures; `workdir`/figures when None. Those that an earlier call listed there
        and that are not drawn now are removed.
      max_tokens: see `tfm.visualize.translation.examine`.
      selection: what of the attention the figures show; the page has all.
      file_format: of the figures, one of `FORMATS`.
      differences: also draw the first sentence minus each other one.
      lines: a word whose attention in every sentence is also drawn as lines.

    Raises:
      UserError: a sentence is empty or too long, its pictures are too large, or the model has not what is
        selected; nothing is drawn then.
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
    _write_list(folder, sorted({*old, *names}))  # what is cut short is removed by the next call
    if has_metrics:
        draw_curves(read_metrics(workdir), os.path.join(folder, curves), best=run.task.best.metric)
    else:
        log.info("No curves: %s has no %s; an export has none", workdir, METRICS_FILE)
    if not parts:
        log.info("No attention: the model has none to draw")
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
    """Beam search is drawn, which may find another translation than the search of the config."""
    if decoding.samples or decoding.beam_size == 1:
        search = "samples" if decoding.samples else "greedy search"
        log.warning(
            "Drawn is a beam search of %s; tfm translate uses %s here, and may find another translation",
            decoding.beam_size,
            search,
        )


def sentences_to_draw(given: Sequence[str], chosen: Any) -> Sequence[str]:
    """The sentences of the flag, else those of the paper's authors; none for a run that does not translate.

    Raises:
      UserError: sentences are given for such a run.
    """
    if given:
        runs.require_translation(chosen, "A sentence")
        return given
    return SENTENCES if hasattr(chosen.data, "target_language") else ()


def _check_sentences(task, params, sentences, max_tokens, selection):
    """The parts of attention that the model has, in the order of `PARTS`; raises as `draw_run` says."""
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
    """{stem of the file's name: (`Panels`, title)}, in the order of the sentences."""
    chosen = {
        f"attention-{number}-{part}": (select(each, part, selection), f"{part} attention: {each.sentence}")
        for number, each in enumerate(translations, 1)
        for part in parts
    }
    if not differences:
        return chosen
    if len(translations) < 2:
        raise UserError(f"--difference needs two sentences or more, got {len(translations)}.")
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


def _title(workdir, steps):
    """The title of the page: name of the folder and steps of the weights."""
    return f"{os.path.basename(os.path.abspath(workdir))}, step {' + '.join(map('{:,}'.format, steps))}"


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
    text = "Source sentence whose translation to draw, as those beside the flags; may be repeated."
    flags.DEFINE_multi_string("sentence", None, text, values)
    text = "Folder of the pictures; figures in the work directory if not given."
    flags.DEFINE_string("output", "", text, values)
    text = "Tokens of the longest sentence to draw."
    flags.DEFINE_integer("max_tokens", MAX_TOKENS, text, 1, flag_values=values)
    flags.DEFINE_enum("format", "png", FORMATS, "File format of the figures.", values)
    text = "Layer of the figures' attention, counted from 0; all if not given."
    flags.DEFINE_integer("layer", None, text, flag_values=values)
    text = (
        "Head of the figures' attention, counted from 0, their mean, or rollout, which follows attention "
        "from layer to layer; all if not given."
    )
    flags.DEFINE_string("head", None, text, values)
    flags.DEFINE_boolean("words", False, "Figures of words, not of word pieces.", values)
    text = "Figures of attention weights, or of the norms of the weighted values."
    flags.DEFINE_enum("measure", "weights", MEASURES, text, values)
    text = "Also draw the first sentence minus each other one, of tokens that correspond."
    flags.DEFINE_boolean("difference", False, text, values)
    text = "Also draw what this word of every sentence attends to, as lines; needs --layer and --head."
    flags.DEFINE_string("lines", None, text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Draws; see `tfm.commands.cli.parse` for `argv` and what is raised."""
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
