"""Parameters taken from another tree: the encoder of another run, or parameters from elsewhere."""

import collections
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.errors import UserError

EXAMPLE = "encoder/*=encoder/*"
MAX_EXAMPLES = 3  # paths in an error message
# Maps the path and the array of a parameter, and the shape that a model needs, to an array of this shape, or
# to None if the model has no such conversion.
Resize = Callable[[str, np.ndarray, tuple[int, ...]], np.ndarray | None]
log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """An entry of a map of parameters. `*` stands for any text in both patterns.

    Attributes:
      text: the entry as the user wrote it, TARGET=SOURCE.
      target: pattern of the paths of the parameters to replace.
      source: the path to take, in which each `*` is replaced by what the same `*` of the target stands for.
    """

    text: str
    target: re.Pattern[str]
    source: str

    @classmethod
    def parse(cls, text: str) -> "Entry":
        """Parses "TARGET=SOURCE".

        Raises:
          UserError: if the text has the wrong form, or its patterns have different numbers of `*`.
        """
        target, _, source = text.partition("=")
        if not target or not source or "=" in source or target.count("*") != source.count("*"):
            raise UserError(
                "Expected an entry of a map of parameters to be TARGET=SOURCE, two patterns with the same "
                f"number of *, such as {EXAMPLE}, got {text!r}."
            )
        return cls(text, re.compile("(.*)".join(map(re.escape, target.split("*")))), source)

    def find_source(self, path: str) -> str | None:
        """Returns the path to take for a path of the target, or None if the entry does not match it."""
        match = self.target.fullmatch(path)
        if match is None:
            return None
        texts = iter(match.groups())
        return re.sub(r"\*", lambda _: next(texts), self.source)


class Selection(NamedTuple):
    """The result of a map for a parameter of the target.

    Attributes:
      entry: the first entry that matches the path of the parameter, or None.
      source: the path to take, or None if the parameter keeps its initial value.
      reason: why the source is taken or not, for the log.
      array: the array to take. None if there is no source, or if only paths are compared.
    """

    entry: Entry | None
    source: str | None
    reason: str
    array: np.ndarray | None = None


def check_entries(
    paths: Iterable[str], source_paths: Collection[str], entries: Iterable[str], what: str
) -> None:
    """Checks a map without arrays. Their shapes may still differ.

    Args:
      paths, source_paths: paths of the parameters of the new model and of the source.
      entries, what: see `load_tree`.

    Raises:
      UserError: if an entry has the wrong form, or no parameter of the source has a path that it takes.
    """
    parsed = list(map(Entry.parse, entries))
    selections = {path: _find_path(path, parsed, source_paths, what) for path in paths}
    _check_selections(parsed, selections, source_paths, what)


def load_tree(
    initial: Mapping[str, Any],
    source: Mapping[str, Any],
    entries: Iterable[str],
    what: str,
    resize: Resize | None = None,
) -> dict[str, Any]:
    """Replaces the leaves of a tree that a map finds in another tree. Logs what was taken, and why not.

    Args:
      initial: nested dicts of arrays with "/"-joined paths such as "encoder/layers_0/norm/scale".
      source: nested dicts of arrays, of another model or from elsewhere.
      entries: "TARGET=SOURCE" patterns. The first entry that matches a path counts.
      what: names the source in messages.
      resize: converts arrays that have a different shape than the leaf.

    Returns:
      A tree like `initial`. Leaves without an entry, without a source, or with a different shape that
      `resize` does not convert stay as they are. Taken leaves have the dtypes of `initial`.

    Raises:
      UserError: if an entry has the wrong form, no leaf can be taken by it, or a value is too large for the
        dtype of a leaf.
    """
    parsed = list(map(Entry.parse, entries))
    theirs, leaves = flatten_dict(source, sep="/"), flatten_dict(initial, sep="/")
    selections = {
        path: _find_array(path, leaf, parsed, theirs, what, resize) for path, leaf in leaves.items()
    }
    _check_selections(parsed, selections, theirs, what)
    for reason in dict.fromkeys(selection.reason for selection in selections.values()):
        paths = [path for path, selection in selections.items() if selection.reason == reason]
        log.info("%s of %s parameters %s: %s", len(paths), len(leaves), reason, summarize(paths))
    result = {
        path: leaf if selections[path].array is None else selections[path].array
        for path, leaf in leaves.items()
    }
    return unflatten_dict(result, sep="/")


def _check_selections(
    entries: Sequence[Entry], selections: Mapping[str, Selection], source_paths: Iterable[str], what: str
) -> None:
    """Raises a UserError if an entry of a map takes no parameter from the source `what`."""
    for entry in entries:
        if problem := _find_problem(entry, selections):
            raise UserError(
                f"Expected each entry of the map of parameters to take a parameter from {what}, but "
                f"{entry.text!r} takes none ({problem}). The source has {_some(source_paths)}."
            )


def _find_path(path: str, entries: Iterable[Entry], source_paths: Collection[str], what: str) -> Selection:
    """Returns the path that a map takes for one parameter, whatever the shapes of both parameters are."""
    pairs = ((entry, entry.find_source(path)) for entry in entries)
    entry, source = next(((entry, name) for entry, name in pairs if name is not None), (None, None))
    if entry is None:
        return Selection(None, None, "not taken, because no entry of the map matches")
    if source not in source_paths:
        return Selection(entry, None, f"not taken, because {what} has no such parameter")
    return Selection(entry, source, f"taken from {what}")


def _find_array(
    path: str,
    leaf: Any,
    entries: Iterable[Entry],
    theirs: Mapping[str, Any],
    what: str,
    resize: Resize | None,
) -> Selection:
    """Returns the array that a map takes for one parameter.

    Args:
      path, leaf: path and initial value of the parameter.
      entries: the entries of the map.
      theirs: {path: array} of the source.
      what, resize: see `load_tree`.

    Raises:
      UserError: if a value is too large for the dtype of the leaf.
    """
    selection = _find_path(path, entries, theirs, what)
    if selection.source is None:
        return selection
    array, shape, name = theirs[selection.source], np.shape(leaf), f"{selection.source} of {what}"
    if np.shape(array) == shape:
        return selection._replace(array=_convert(array, leaf.dtype, name))
    resized = resize(path, np.asarray(array), shape) if resize else None
    if resized is None:
        reason = f"not taken, because the shape is {np.shape(array)} there and {shape} here"
        return selection._replace(source=None, reason=reason)
    reason = f"{selection.reason} and resized to the shape here"
    return selection._replace(reason=reason, array=_convert(resized, leaf.dtype, name))


def _convert(array: Any, dtype: Any, name: str) -> np.ndarray:
    """Returns an array with a dtype, or raises a UserError if a finite value becomes infinite."""
    before = np.asarray(array)
    with np.errstate(over="ignore"):
        after = before.astype(dtype)
    lost = ~np.isfinite(after) & np.isfinite(before)
    if lost.any():
        largest = float(np.abs(before[lost].astype(np.float64)).max())
        raise UserError(
            f"Expected the values of {name} to fit into {np.dtype(dtype).name}, got {largest:.3g}. Correct "
            "the array, or leave it out of the map."
        )
    return after


def _find_problem(entry: Entry, selections: Mapping[str, Selection]) -> str:
    """Returns why an entry takes no parameter, or "" if it takes one.

    Args:
      entry: the entry.
      selections: {path of each parameter: what the map finds for it}.
    """
    matches = {path: selection for path, selection in selections.items() if selection.entry == entry}
    if any(selection.source is not None for selection in matches.values()):
        return ""
    if matches:
        path, selection = next(iter(matches.items()))
        return f"{path} {selection.reason}"
    if shadowed := [path for path in selections if entry.find_source(path) is not None]:
        return f"an earlier entry already matches {_some(shadowed)}"
    return f"it matches no parameter of this model, such as {_some(selections)}"


def _some(paths: Iterable[str]) -> str:
    """Returns a few of the paths for an error message."""
    paths = list(paths)
    return ", ".join(paths[:MAX_EXAMPLES]) + (", ..." if len(paths) > MAX_EXAMPLES else "")


def summarize(paths: Iterable[str]) -> str:
    """Returns paths in one line. Paths that differ only in numbers, as in layers, are one item.

    Examples:
      >>> summarize(["embedding/table", "layers_0/bias", "layers_1/bias"])
      'embedding/table, layers_N/bias (2)'
    """
    counts = collections.Counter(re.sub(r"\d+", "N", path) for path in paths)
    return ", ".join(path if count == 1 else f"{path} ({count})" for path, count in counts.items())
