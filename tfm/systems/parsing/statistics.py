"""Statistics of treebanks for `tfm data`: lengths, depths and labels."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.data_errors import raise_all
from tfm.data.inspection import Summary, hash_text
from tfm.data.sources.opening import open_pairs

MAX_SHOWN_LABELS = 12
PERCENTILE = 95


def inspect_split(config: Any, split: str) -> Summary:
    """Returns the lengths of the sentences and of their sequences, the depths, and the frequent labels.

    Raises:
      UserError: if the split cannot be used; a `MissingFile` if it does not exist.
    """
    pairs = open_pairs(config.data, split)
    raise_all(pairs.find_problems())
    rows = list(pairs)
    sequences = [tokens.split() for _, tokens in rows]
    numbers = {
        "words": [len(words.split()) for words, _ in rows],
        "tokens": list(map(len, sequences)),
        "depth": list(map(find_depth, sequences)),
    }
    labels = Counter(token[1:] for tokens in sequences for token in tokens if token[0] == "(")
    tags = Counter(token for tokens in sequences for token in tokens if token[0] not in "()")
    described = {name: _describe(found) for name, found in numbers.items()}
    values = {
        "rows": len(rows),
        **described,
        "labels": dict(labels.most_common()),
        "tags": dict(tags.most_common()),
    }
    lines = [
        ("words", f"{sum(numbers['words']):,}, {_show(described['words'])}"),
        ("sequences", f"{_show(described['tokens'])} brackets and tags"),
        ("depth", f"{_show(described['depth'])} nested brackets"),
        ("labels", f"{len(labels)}: {_list(labels)}"),
        ("tags", f"{len(tags)}: {_list(tags)}"),
    ]
    hints = []
    too_long = sum(length >= config.data.max_length for length in numbers["tokens"])
    if too_long:
        hints.append(
            f"{too_long:,} trees have at least data.max_length ({config.data.max_length:,}) tokens, so "
            "training leaves them out"
        )
    hashes = np.array([hash_text(" ".join(row)) for row in rows], np.uint64)
    return Summary(split, f"{len(rows):,} trees", lines, values, hints, hashes)


def find_depth(tokens: Sequence[str]) -> int:
    """Returns the greatest number of nested brackets in the tokens of a tree."""
    depth = deepest = 0
    for token in tokens:
        depth += (token[0] == "(") - (token[0] == ")")
        deepest = max(deepest, depth)
    return deepest


def _describe(numbers: Sequence[int]) -> dict[str, float]:
    """Returns mean, 95th percentile and maximum."""
    return {
        "mean": round(float(np.mean(numbers)), 1),
        "p95": int(np.percentile(numbers, PERCENTILE, method="higher")),
        "largest": max(numbers),
    }


def _show(numbers: dict[str, float]) -> str:
    mean, high, largest = numbers["mean"], numbers["p95"], numbers["largest"]
    return f"{mean:,} on average (95 % have at most {high:,}, largest {largest:,})"


def _list(counts: Counter[str]) -> str:
    """Returns the most frequent names with their counts, such as "NP(3)"."""
    shown = " ".join(f"{name}({count:,})" for name, count in counts.most_common(MAX_SHOWN_LABELS))
    return f"{shown} ..." if len(counts) > MAX_SHOWN_LABELS else shown
