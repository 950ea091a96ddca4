"""Statistics of the labels of splits, for `tfm data`. The module does not import JAX."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.inspection import Summary
from tfm.systems.bert.labelled_texts import NO_LABEL, UNKNOWN, read_number, sort_labels, split_label
from tfm.systems.bert.scores import are_entity_tags, count_entities

MAX_SHOWN_CLASSES = 20
UNIT = {"classes": "texts", "tags": "words"}  # what has a label
Labels = Sequence[str]


def summarize_labels(labels: Mapping[str, Labels], head: str, column: str) -> dict[str, Summary]:
    """Returns {split: statistics of its labels}.

    Args:
      labels: {split: label of each row}. A label of "" is missing.
      head: "classes", "tags" or "regression", see `tfm.systems.bert.model.BertConfig`.
      column: name of the column of the labels.

    Raises:
      UserError: if tags mark entities and the package seqeval is missing.
    """
    if head == "regression":
        return {split: _summarize_numbers(split, rows, column) for split, rows in labels.items()}
    counts = {
        split: Counter(name for row in rows for name in split_label(row, head == "tags"))
        for split, rows in labels.items()
    }
    return {split: _summarize_classes(split, rows, counts, head, column) for split, rows in labels.items()}


def _summarize_numbers(split: str, rows: Labels, column: str) -> Summary:
    """Returns the range, the mean and the deviation of the numbers of a split."""
    numbers = np.array([number for number in map(read_number, rows) if number is not None])
    lines, hints = [], []
    values: dict[str, Any] = {"numbers": len(numbers), "others": len(rows) - len(numbers)}
    if len(numbers):
        values |= {"minimum": float(numbers.min()), "maximum": float(numbers.max())}
        values |= {"mean": float(numbers.mean()), "deviation": float(numbers.std())}
        lines = [
            ("numbers", f"{len(numbers):,}, {len(np.unique(numbers)):,} different"),
            ("range", f"{values['minimum']:g} to {values['maximum']:g}"),
            ("mean", f"{values['mean']:.4g}, standard deviation {values['deviation']:.4g}"),
            ("baseline", f"{numbers.var():.4g} is the squared error of the mean"),
        ]
        if np.ptp(numbers) == 0:
            hints.append(f"all labels are {numbers[0]:g}, so there is nothing to learn")
    if values["others"]:
        lines.append(("missing", f"{values['others']:,}"))
        hints.append(f"{values['others']:,} labels are no numbers")
    return Summary(split, column, lines, values, hints)


def _summarize_classes(
    split: str, rows: Labels, counts: Mapping[str, Counter[str]], head: str, column: str
) -> Summary:
    """Returns the number of labels of each class of a split, and of the entities of each type."""
    unit, all_counts = UNIT[head], counts[split]
    missing = all_counts[""] if head == "classes" else all_counts[NO_LABEL]
    names = sort_labels(all_counts.keys() - {"", *([NO_LABEL] if head == "tags" else [])})
    total = sum(all_counts[name] for name in names)
    lines = [("classes", f"{len(names):,}, of {total:,} {unit}")]
    by_count = sorted(
        names, key=lambda name: -all_counts[name]
    )  # equal counts stay in the order of the names
    shown = set(by_count[:MAX_SHOWN_CLASSES])
    lines += [(name, _show_share(all_counts[name], total)) for name in names if name in shown]
    if len(names) > MAX_SHOWN_CLASSES:
        lines.append(("others", f"{len(names) - MAX_SHOWN_CLASSES:,} classes"))
    values: dict[str, Any] = {"counts": {name: all_counts[name] for name in names}, "missing": missing}
    if names:
        values["majority"] = all_counts[by_count[0]] / total
        lines.append(("majority", f"{100 * values['majority']:.1f} % have the most frequent class"))
    if missing:
        lines.append(("missing", f"{missing:,} {unit} have no label"))
    if head == "tags" and are_entity_tags(names):
        values["entities"] = count_entities([split_label(row, has_tags=True) for row in rows])
        shown_types = ", ".join(f"{kind} {count:,}" for kind, count in sorted(values["entities"].items()))
        lines.append(("entities", f"{sum(values['entities'].values()):,}: {shown_types or 'none'}"))
    return Summary(split, column, lines, values, _find_class_hints(split, names, counts, head))


def _find_class_hints(
    split: str, names: Sequence[str], counts: Mapping[str, Counter[str]], head: str
) -> list[str]:
    """Returns a sentence for each property of the classes of a split that may be a mistake."""
    hints = []
    if head == "classes" and counts[split][""]:
        hints.append(f"{counts[split]['']:,} texts have no label")
    if names == [str(UNKNOWN)]:
        hints.append("all labels are -1: the labels of this split are unknown, so leave data.test empty")
    elif len(names) == 1:
        hints.append(f"all labels are {names[0]}, so there is nothing to learn")
    others = [name for other, of_other in counts.items() if other != split for name in of_other]
    if len(counts) > 1 and (lone := [name for name in names if name not in others]):
        hints.append(f"no other split has the class {_join(lone)}")
    if split == "train" and (single := [name for name in names if counts[split][name] == 1]):
        hints.append(f"only one label is {_join(single)}, so the model can hardly learn it")
    return hints


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN_CLASSES:,} others" if len(names) > MAX_SHOWN_CLASSES else ""
    return ", ".join(names[:MAX_SHOWN_CLASSES]) + more


def _show_share(count: int, total: int) -> str:
    return f"{count:>12,} {100 * count / total:>5.1f} %"
