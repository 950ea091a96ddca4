"""Shows what is in the data of a config: tfm data --config=configs/quickstart.py

For each split of texts, prints the number of pairs or documents, words, a histogram of lengths, duplicates,
sources with several targets, and rows that are also in the training split. With --workdir=DIR, a run, lengths
are in tokens of its tokenizer. The command then also lists the characters and the words that the tokenizer
does not know, the most frequent first.
Without --config, it reads the data of the run.
--split=train --split=dev reads only these splits. Each split is checked and then read once. Memory holds two
hashes for each row. A task with other data, such as images, summarizes its splits itself. A task with
labelled texts adds the statistics of the labels.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfm import tasks
from tfm.commands import options as command_options
from tfm.commands.command import command
from tfm.commands.terminal import to_json
from tfm.data.config import SPLITS, DocumentsConfig, PairsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.inspection import Side, Split, Summary, compare_with_training, find_hints, read_split
from tfm.data.sources.opening import check_splits, open_documents, open_pairs
from tfm.data.sources.splits import list_splits, may_be_missing
from tfm.data.token_cache import TokenCache
from tfm.errors import UserError, escape
from tfm.training.task import RunConfig
from tfm.workdir import runs
from tfm.workdir.starts import warn_of_changed_split

MAX_SHOWN_CHARACTERS = 40  # of a word
BAR = 40  # width of the longest bar, in characters
log = logging.getLogger(__name__)


@command
def main(options: command_options.Data) -> None:
    """Prints statistics of the splits. Logs a warning for each split that has changed since the run read it.

    Raises:
      UserError: if the data cannot be used, or their task has no statistics.
    """
    config, names = options.config, list(dict.fromkeys(options.splits))
    inspect_split = getattr(tasks.find(config.task), "inspect_split", None)
    recorded_run = None if options.config_file else options.workdir  # another config has other data
    run_config = read_run_config(options.workdir, config.task) if options.workdir else None
    if inspect_split is not None:
        contents = list(summarize_splits(config, names, inspect_split))
        warn_of_changed_splits(config, recorded_run, [split.name for split in contents])
        show_summaries(contents, options.format)
        return
    if not isinstance(getattr(config, "data", None), PairsConfig | DocumentsConfig):
        raise UserError(f"tfm data cannot read the data of the task '{config.task}'.")
    tokenizer = load_tokenizer(options.workdir, run_config) if options.workdir and run_config else None
    summaries = inspect_splits(config, names, tokenizer)
    warn_of_changed_splits(config, recorded_run, [split.name for split in summaries])
    inspect_labels = getattr(tasks.find(config.task), "inspect_labels", None)
    labels: Mapping[str, Summary] = {}
    if inspect_labels is not None:
        labels = inspect_labels(config, [split.name for split in summaries])
    if options.format == "json":
        print(to_json([as_json(split, labels.get(split.name)) for split in summaries], indent=2))
        return
    _print_paragraphs(show_split(split, labels.get(split.name)) for split in summaries)


def summarize_splits(
    config: RunConfig, names: Sequence[str], inspect_split: Callable[[Any, str], Summary]
) -> Iterator[Summary]:
    """Yields the summaries of splits of a task that summarizes them itself, the training split first.

    Args:
      config: config of the task.
      names: names of the splits. If empty, all splits that the config has. Then a test split of the default
        name may be missing.
      inspect_split: (config, name) returns the summary of a split, and raises a `MissingFile` if the split
        does not exist.

    Raises:
      UserError: if a split cannot be used. A `MissingFile` is a UserError, too.
    """
    training = None
    named_splits = [split for split in SPLITS if getattr(config.data, split, split)]
    for name in sorted(names, key=lambda name: name != "train") or named_splits:
        try:
            summary = inspect_split(config, name)
        except MissingFile:
            if names or not may_be_missing(config.data, name):
                raise
            continue
        yield compare_with_training(summary, training)
        if name == "train":
            training = summary


def show_summaries(summaries: Sequence[Summary], form: str) -> None:
    """Prints summaries as text, or as a list in JSON if `form` is "json"."""
    if form == "json":
        contents = [{"name": split.name, **split.values, "hints": split.hints} for split in summaries]
        print(to_json(contents, indent=2))
        return
    _print_paragraphs(map(_show_summary, summaries))


def _print_paragraphs(paragraphs: Iterable[Iterable[str]]) -> None:
    """Prints paragraphs of lines. Words and names in them come from the data and may have control codes."""
    print("\n\n".join("\n".join(map(escape, lines)) for lines in paragraphs))


def _show_summary(summary: Summary) -> Iterator[str]:
    """Yields the lines of text about a split."""
    yield f"{summary.name}: {summary.title}"
    yield from (_row(name, text) for name, text in summary.lines)
    if summary.hints:
        yield ""
    yield from (f"  hint: {hint}" for hint in summary.hints)


def read_run_config(workdir: str, task: str) -> RunConfig:
    """Returns the config of a run.

    Raises:
      UserError: if there is no run, or it has another task.
    """
    config = runs.open_folder(workdir).config
    if config.task != task:
        raise UserError(
            f"The run in {workdir} has the task '{config.task}', but the config has '{task}'. "
            "Give a run of the same task."
        )
    return config


def warn_of_changed_splits(config: RunConfig, workdir: str | None, names: Iterable[str]) -> None:
    """Logs a warning for each split whose content has changed since the last start of a run, if any."""
    if workdir is None:
        return
    for name in names:
        warn_of_changed_split(config, workdir, name)


def load_tokenizer(workdir: str, config: RunConfig) -> Any:
    """Loads the tokenizer of a run with this config, or raises a UserError if the run has none."""
    return tasks.find(config.task).create(config, workdir, new=False).tokenizer


def inspect_splits(config: RunConfig, names: Sequence[str], tokenizer: Any = None) -> list[Split]:
    """Reads splits, the training split first, and summarizes each. Logs the progress.

    Only if the training split is read, the summaries of the other splits count the rows that are also in it.

    Args:
      config: config of a task with sentence pairs or documents.
      names: names of the splits. If empty, all splits of the data are read.
      tokenizer: tokenizer to count tokens. Its tokens are kept in the cache of the data. None counts words,
        and so do tasks with batches of another kind.

    Raises:
      UserError: if a split cannot be used. The message lists all problems.
    """
    data: Any = config.data
    open_split: Any = open_documents
    languages: tuple[str, ...] = ("",)
    if isinstance(data, PairsConfig):
        open_split, languages = open_pairs, data.languages
    names = sorted(names, key=lambda name: name != "train") or list_splits(data, open_split)
    check_splits(data, names)
    summaries, training = [], None
    for name in names:
        source = open_split(data, name)
        reader = read_split(source, languages, lambda line: log.info("%s", line), tokenizer)
        lengths = None
        if tokenizer is not None and type(data) in (PairsConfig, DocumentsConfig):  # others batch otherwise
            lengths = TokenCache.open(source, tokenizer, data.cache).lengths
        summaries.append(reader.summarize(name, training, lengths))
        if name == "train":
            training = reader.hashes()
    return summaries


def as_json(split: Split, labels: Summary | None = None) -> dict[str, Any]:
    """Returns a split with the statistics of its labels and its hints as a dict for JSON."""
    content = split._asdict() | {"sides": [side._asdict() for side in split.sides]}
    if labels is None:
        return content | {"hints": find_hints(split)}
    return content | {"labels": labels.values, "hints": find_hints(split) + labels.hints}


def show_split(split: Split, labels: Summary | None = None) -> Iterator[str]:
    """Yields the lines of text about a split.

    Args:
      split: the split.
      labels: the statistics of its labels. Its title is the name of the side that contains the labels.
    """
    unit = "pairs" if len(split.sides) > 1 else "documents"
    yield f"{split.name}: {split.rows:,} {unit if labels is None else 'rows'}"
    yield from _show_rows(split, has_labels=labels is not None)
    for side in split.sides:
        yield ""
        if labels is not None and side.language == labels.title:
            yield f"  {labels.title}"
            yield from (_row(name, text) for name, text in labels.lines)
        else:
            yield from _show_side(side)
    hints = find_hints(split) + (labels.hints if labels is not None else [])
    if hints:
        yield ""
    yield from (f"  hint: {hint}" for hint in hints)


def _show_rows(split: Split, *, has_labels: bool) -> Iterator[str]:
    """Yields the lines about duplicates, ambiguous sources, copies and overlap."""
    yield _row("duplicates", f"{split.duplicates:,} rows equal an earlier one")
    first_side = "texts" if has_labels else "sources"
    has_pairs = len(split.sides) == 2
    if has_pairs:
        yield _row(
            "", f"{split.ambiguous:,} {first_side} have several {'labels' if has_labels else 'targets'}"
        )
    if has_pairs and not has_labels:
        yield _row("copies", f"{split.identical:,} pairs have equal sides")
    if split.overlap:
        also = f"{split.overlap['rows']:,} rows"
        if has_pairs:
            also += f" and {split.overlap['sources']:,} {first_side}"
        yield _row("overlap", f"{also} are also in the training split")


def _show_side(side: Side) -> Iterator[str]:
    """Yields the lines about one side (language) of a split."""
    yield f"  {side.language or 'text'}"
    average = side.characters / max(side.words, 1)
    yield _row("words", f"{side.words:,}, of {average:.1f} characters with the space after each")
    row, longest = side.longest
    yield _row("longest", f"row {row:,}, {longest:,} characters")
    yield _row("empty", f"{side.empty:,}")
    yield _row("characters", f"{side.distinct:,} different")
    if side.unknown is not None:
        yield _row("unknown", f"{side.unknown_count:,} {_show_characters(side.unknown)}".rstrip())
    if side.unknown_words:
        yield _row("", f"{side.unknown_word_count:,} words: {_show_words(side.unknown_words)}")
    yield _row("length", f"in {side.unit}")
    most = max(side.histogram.values())
    for name, count in side.histogram.items():
        bar = "#" * -(-count * BAR // max(most, 1))
        yield _row(name, f"{count:>12,} {bar}".rstrip())


def _row(name: str, text: str) -> str:
    """Returns an indented line of two columns."""
    return f"    {name:<12}{text}"


def _show_characters(characters: Iterable[tuple[str, int]]) -> str:
    """Returns each character with its count, such as "x(3)"."""
    return " ".join(f"{_show_character(each)}({count:,})" for each, count in characters)


def _show_words(words: Iterable[tuple[str, int]]) -> str:
    """Returns the beginning of each word with its count, such as "dog(3)"."""
    return " ".join(f"{word[:MAX_SHOWN_CHARACTERS]}({count:,})" for word, count in words)


def _show_character(character: str) -> str:
    """Returns the character itself, or its code point such as U+00A0 if it would be invisible."""
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
