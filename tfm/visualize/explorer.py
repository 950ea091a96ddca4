"""The page for exploring translations: one HTML file that contains its data, styles and script."""

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

SIDES = ("source", "read", "predicted")  # lists of tokens of a `Translated`
LEVELS = (1 << 16) - 1  # largest integer of a packed number
MOST_BYTES = 64 << 20  # of a page
PLACE = re.compile(r"/\*(title|style|script|data)\*/")  # placeholders in page.html
# In HTML, these characters could end the script element or start another. JSON decodes the escapes.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def make_page(translations: Sequence[Translated], title: str) -> str:
    """Returns the page as HTML. It opens from disk and loads no other files.

    Args:
      translations: the translations to explore, at least one.
      title: title of the page, for example the name of the run.

    Raises:
      UserError: if the page would be larger than `MOST_BYTES`.
    """
    data = {
        "title": title,
        "sentences": [describe(translated) for translated in translations],
        "alignments": align_sentences(translations),
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)
    if len(text) > MOST_BYTES:
        raise UserError(
            f"The page would have {format_bytes(len(text))}, but browsers open at most "
            f"{format_bytes(MOST_BYTES)} well: shorten the sentences, or give fewer."
        )
    folder = importlib.resources.files("tfm.visualize") / "page"
    page, style, script = (
        (folder / f"page.{ending}").read_text(encoding="utf-8") for ending in ("html", "css", "js")
    )
    parts = {"title": html.escape(title), "style": style, "script": script, "data": text}
    return PLACE.sub(lambda place: parts[place[1]], page)


def describe(translated: Translated) -> dict[str, Any]:
    """Returns a translation as the JSON object that the page reads."""
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
    """Returns the pieces of a side, the number of the word of each piece, and the texts of the words."""
    return {
        "pieces": list(pieces),
        "words": summaries.number_words(pieces),
        "texts": summaries.word_texts(pieces),
    }


def describe_beam(steps: Sequence[Sequence[Extension]], pieces: Any) -> list[list[dict[str, Any]]]:
    """Returns the extensions of each step as JSON objects.

    Extensions that have not ended have the probability of their last token.

    Args:
      steps: the `Translated.beam`.
      pieces: function from ids to pieces.
    """
    described = []
    before: list[float | None] = [0.0]  # the log-probability of the empty prefix
    for step in steps:
        described.append(
            [_describe_extension(extension, before[extension.parent], pieces) for extension in step]
        )
        before = [extension.log_probability for extension in step]
    return described


def align_sentences(translations: Sequence[Translated]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Returns the corresponding tokens of every two translations.

    Returns:
      For translations 0 and 1 the key "0,1" with {"SIDE UNIT": [(i, j), ...]}, where the unit is "pieces" or
      "texts" (words). See `summaries.align_tokens`.
    """
    described = [
        {side: describe_tokens(getattr(translated, side)) for side in SIDES} for translated in translations
    ]
    return {
        f"{i},{j}": {
            f"{side} {unit}": summaries.align_tokens(described[i][side][unit], described[j][side][unit])
            for side in SIDES
            for unit in ("pieces", "texts")
        }
        for i, j in itertools.combinations(range(len(described)), 2)
    }


def pack(array: np.ndarray) -> dict[str, Any]:
    """Packs an array of non-negative numbers into 16 bits per number.

    Returns:
      "shape", "scale" (the largest number), and "data": the numbers as multiples of scale / 65,535, in
      little-endian order and base64.
    """
    scale = float(array.max(initial=0.0))
    levels = np.rint(array / (scale or 1.0) * LEVELS).astype("<u2")
    return {
        "shape": list(array.shape),
        "scale": scale,
        "data": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """Returns the array that `pack` packed. The error of a number is at most scale / 131,070."""
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])
    return levels * (packed["scale"] / LEVELS)


def _describe_extension(extension: Extension, before: float | None, pieces: Any) -> dict[str, Any]:
    """Returns an extension of a hypothesis with the log-probability `before` as a JSON object."""
    log, score = extension.log_probability, extension.score
    return {
        "piece": pieces([extension.token])[0],
        "parent": extension.parent,
        "best": extension.best,
        "score": None if score is None else round(score, 4),
        "log": None if log is None else round(log, 4),
        "probability": None if log is None or before is None else round(float(np.exp(log - before)), 5),
    }


def _describe_part(translated: Translated, part: str) -> dict[str, Any]:
    """Returns the attention of a part with its summaries as a JSON object."""
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


def _rounded(numbers: np.ndarray) -> list[float]:
    return [round(float(number), 5) for number in numbers]
