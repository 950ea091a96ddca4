"""The page to explore translations: one HTML file with its data, styles and script."""

import base64
import html
import importlib.resources
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.errors import UserError
from tfm.memory import format_bytes
from tfm.visualize import summaries
from tfm.visualize.selection import summarize
from tfm.visualize.translation import Extension, Translated

SIDES = ("source", "read", "predicted")  # of tokens
LEVELS = (1 << 16) - 1  # that a packed number has
MOST_BYTES = 64 << 20  # of a page
PLACE = re.compile(r"/\*(title|style|script|data)\*/")  # in the page, of what is put into it
# What would end the script, or begin something else in it; JSON reads it back.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def make_page(translations: Sequence[Translated], title: str) -> str:
    """The page as HTML: opens from disk and loads nothing.

    Args:
      translations: at least one.
      title: of the page, such as the name of the run.

    Raises:
      UserError: the page would be larger than `MOST_BYTES`.
    """
    data = {
        "title": title,
        "sentences": [describe(each) for each in translations],
        "alignments": align_sentences(translations),
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)
    if len(text) > MOST_BYTES:
        raise UserError(
            f"The page would have {format_bytes(len(text))} and at most {format_bytes(MOST_BYTES)} open "
            "well: shorten the sentences, or give fewer."
        )
    folder = importlib.resources.files("tfm.visualize") / "page"
    page, style, script = (
        (folder / f"page.{ending}").read_text(encoding="utf-8") for ending in ("html", "css", "js")
    )
    parts = {"title": html.escape(title), "style": style, "script": script, "data": text}
    return PLACE.sub(lambda place: parts[place[1]], page)


def describe(translated: Translated) -> dict[str, Any]:
    """One translation as the page reads it, all of it JSON."""
    sides = {side: getattr(translated, side) for side in SIDES}
    return {
        "text": translated.sentence,
        "translation": translated.translation,
        "sides": {side: describe_tokens(pieces) for side, pieces in sides.items()},
        "parts": {part: _describe_part(translated, part) for part in translated.weights},
        "probabilities": _rounded(translated.probabilities),
        "choices": [
            [[piece, round(probability, 5)] for piece, probability in choices]
            for choices in translated.choices
        ],
        "beam": describe_beam(translated.beam, translated.pieces),
        "finished": [[pieces, round(score, 4)] for pieces, score in translated.finished],
    }


def describe_tokens(pieces: Sequence[str]) -> dict[str, Any]:
    """The pieces of a side, the word of each, and the texts of the words."""
    return {
        "pieces": list(pieces),
        "words": summaries.number_words(pieces),
        "texts": summaries.word_texts(pieces),
    }


def describe_beam(steps: Sequence[Sequence[Extension]], pieces: Any) -> list[list[dict[str, Any]]]:
    """The extensions of each step, with the probability of the last token of those that have not ended.

    Args:
      steps: as `Translated.beam`.
      pieces: ids -> pieces.
    """
    described = []
    before: list[float | None] = [0.0]  # the log-probability of the empty prefix
    for step in steps:
        described.append([_describe_extension(each, before[each.parent], pieces) for each in step])
        before = [each.log_probability for each in step]
    return described


def align_sentences(translations: Sequence[Translated]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """{"0,1": {side and unit: pairs of tokens that correspond}} of every two translations."""
    described = [{side: describe_tokens(getattr(each, side)) for side in SIDES} for each in translations]
    return {
        f"{i},{j}": {
            f"{side} {unit}": summaries.align_tokens(described[i][side][unit], described[j][side][unit])
            for side in SIDES
            for unit in ("pieces", "texts")
        }
        for i, j in itertools.combinations(range(len(described)), 2)
    }


def pack(array: np.ndarray) -> dict[str, Any]:
    """Numbers from 0 on as 16 bits each: shape, scale, and base64 of multiples of scale / 65,535.

    The multiples are little-endian.
    """
    scale = float(array.max(initial=0.0))
    levels = np.rint(array / (scale or 1.0) * LEVELS).astype("<u2")
    return {
        "shape": list(array.shape),
        "scale": scale,
        "data": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array of `pack`, to within scale / 131,070."""
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])
    return levels * (packed["scale"] / LEVELS)


def _describe_extension(extension, before, pieces):
    """An extension of a hypothesis of log-probability `before`."""
    log, score = extension.log_probability, extension.score
    return {
        "piece": pieces([extension.token])[0],
        "parent": extension.parent,
        "best": extension.best,
        "score": None if score is None else round(score, 4),
        "log": None if log is None else round(log, 4),
        "probability": None if log is None else round(float(np.exp(log - before)), 5),
    }


def _describe_part(translated, part):
    weights, (queries, keys) = translated.weights, summaries.SIDES_OF[part]
    described = {
        "queries": queries,
        "keys": keys,
        "weights": pack(weights[part]),
        "mean": pack(summarize(weights, part, "mean")),
    }
    if part != "cross" or "encoder" in weights:
        described["rollout"] = pack(summarize(weights, part, "rollout"))
    if part in translated.norms:
        described["norms"] = pack(translated.norms[part])
        described["joint_norms"] = pack(translated.joint_norms[part])
    return described


def _rounded(numbers):
    return [round(float(number), 5) for number in numbers]
