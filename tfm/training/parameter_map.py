"""Parameters taken from another tree: the encoder of another run, or parameters from elsewhere."""

import collections
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.errors import UserError

EXAMPLE = "encoder/*=encoder/*"
MAX_EXAMPLES = 3  # paths in an error message
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


def load_tree(
    initial: Mapping[str, Any], source: Mapping[str, Any], entries: Iterable[str], what: str
) -> dict[str, Any]:
    """Replaces the leaves of a tree that a map finds in another tree. Logs what was taken, and why not.

    Args:
      initial: nested dicts of arrays with "/"-joined paths such as "encoder/layers_0/norm/scale".
      source: nested dicts of arrays, of another model or from elsewhere.
      entries: "TARGET=SOURCE" patterns. The first entry that matches a path counts.
      what: names the source in messages.

    Returns:
      A tree like `initial`. Leaves without an entry, without a source, or with a different shape stay as they
      are. Taken leaves have the dtypes of `initial`.

    Raises:
      UserError: if an entry has the wrong form, or no leaf can be taken by it.
    """
    parsed = list(map(Entry.parse, entries))
    theirs = flatten_dict(source, sep="/")
    result = flatten_dict(initial, sep="/")
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    useful: set[str] = set()
    for path, leaf in result.items():
        pairs = ((entry, entry.find_source(path)) for entry in parsed)
        entry, name = next(((entry, name) for entry, name in pairs if name is not None), (None, ""))
        if entry is None:
            reasons["keeps its initial value, because no entry of the map matches"].append(path)
        elif name not in theirs:
            reasons[f"keeps its initial value, because {what} has no such parameter"].append(path)
        elif np.shape(theirs[name]) != np.shape(leaf):
            shapes = f"{np.shape(theirs[name])} there and {np.shape(leaf)} here"
            reasons[f"keeps its initial value, because its shape is {shapes}"].append(path)
        else:
            result[path] = np.asarray(theirs[name]).astype(leaf.dtype)
            useful.add(entry.text)
            reasons[f"taken from {what}"].append(path)
    for entry in parsed:
        if entry.text in useful:
            continue
        problem = f"it matches no parameter of this model, such as {_some(result)}"
        if matching := [path for path in result if entry.find_source(path) is not None]:
            reason = next(reason for reason, paths in reasons.items() if matching[0] in paths)
            problem = f"{matching[0]} {reason}"
        raise UserError(
            f"Expected each entry of the map of parameters to take a parameter from {what}, but "
            f"{entry.text!r} takes none ({problem}). The source has {_some(theirs)}."
        )
    for reason, paths in reasons.items():
        log.info("%s of %s parameters %s: %s", len(paths), len(result), reason, summarize(paths))
    return unflatten_dict(result, sep="/")


def _some(paths: Iterable[str]) -> str:
    """Returns a few of the paths for an error message."""
    paths = list(paths)
    return ", ".join(paths[:MAX_EXAMPLES]) + (", ..." if len(paths) > MAX_EXAMPLES else "")


def summarize(paths: Iterable[str]) -> str:
    """Returns paths in one line. Paths that differ only in numbers, as in layers, are one item."""
    counts = collections.Counter(re.sub(r"\d+", "N", path) for path in paths)
    return ", ".join(path if count == 1 else f"{path} ({count})" for path, count in counts.items())
