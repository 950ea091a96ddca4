"""The page for exploring attention: one HTML file that contains its data, styles and script."""

import base64
import gzip
import html
import importlib.resources
import io
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.image
import numpy as np

from tfm.devices.memory import format_bytes
from tfm.errors import UserError
from tfm.interpret.observation import AttentionMap, Observation, Track
from tfm.interpret.words import align_tokens
from tfm.visualize.panels import SUMMARIES, summarize

LEVELS = (1 << 16) - 1  # largest integer of a packed number
MAX_BYTES = 64 << 20  # of a page
NOTEBOOK_HEIGHT = 800  # pixels
SCRIPTS = (  # of the page, in the order in which they are joined to one script
    *("state", "numbers", "elements", "lines", "patches", "matrix", "heads", "predictions", "beam", "table"),
    *("strip", "figures", "view", "address", "opening", "start"),
)
COMPUTE_SCRIPTS = (  # of a page that contains its model
    *("compute_tokenizer", "compute_layers", "compute_search", "compute_record", "compute_answers"),
    "compute_start",
)
# Placeholders in page.html.
PLACE = re.compile(r"/\*(title|style|script|data|live|connect|held|model)\*/")
# In HTML, these characters could end the script element or start another. JSON decodes the escapes.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def make_page(observations: Sequence[Observation], title: str, live: Mapping[str, Any] | None = None) -> str:
    """Returns the page as HTML. It opens from disk and loads no other files.

    Args:
      observations: the examples to explore, at least one.
      title: title of the page, for example the name of the run.
      live: data for `live.js`, which asks the server of `tfm explore` for further examples. None makes a
        page without a server.

    Raises:
      UserError: if the page would be larger than `MAX_BYTES`.
    """
    data = {
        "title": title,
        "examples": [describe(observation) for observation in observations],
        "alignments": align_examples(observations),
        **({} if live is None else {"live": live}),
    }
    text = write_json(data)
    if len(text) > MAX_BYTES:
        raise UserError(
            f"The page would have {format_bytes(len(text))}, but browsers open at most "
            f"{format_bytes(MAX_BYTES)} well: shorten the examples, or give fewer."
        )
    return fill_template(text, title, is_live=live is not None)


def make_model_page(examples: Sequence[str], title: str, live: Mapping[str, Any], model: bytes) -> str:
    """Returns the page of a model that the browser computes, as HTML. It opens from disk.

    Args:
      examples: the examples that the page computes when it opens, at least one.
      title: title of the page.
      live: data for `live.js`, see `tfm.visualize.live.describe_parts`.
      model: the model in the form that `compute_start.js` reads.

    Raises:
      UserError: if the packed model has more than `MAX_BYTES`.
    """
    # Base 85 is smaller than base 64. A comma replaces "<", because "<" could begin an HTML element.
    content = base64.b85encode(gzip.compress(model, mtime=0)).decode("ascii").replace("<", ",")
    if len(content) > MAX_BYTES:
        raise UserError(
            f"The page would have {format_bytes(len(content))}, but browsers open at most "
            f"{format_bytes(MAX_BYTES)} well. Use tfm explore, or train a smaller model."
        )
    # The block keeps the names of these scripts apart from the names of the page.
    script = f"{{\n{_read(*(f'{name}.js' for name in COMPUTE_SCRIPTS))}}}"
    elements = (
        f'<script type="application/gzip" id="model">{content}</script>\n'
        f'<script>\n"use strict";\n{script}\n</script>\n'
    )
    data = write_json({"title": title, "texts": list(examples), "live": live})
    return fill_template(data, title, is_live=True, model=elements)


def write_json(data: Any) -> str:
    """Returns data as JSON for a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)


def fill_template(data: str, title: str, *, is_live: bool = False, model: str = "") -> str:
    """Returns the page with its scripts and styles.

    Args:
      data: the JSON text of the examples, without the characters in `ESCAPES`.
      title: title of the page.
      is_live: whether the page has the parts for own examples.
      model: the HTML elements of a model that answers instead of the server of `tfm explore`. The script of
        the page then waits until the model has computed the examples.
    """
    parts = {
        "title": html.escape(title),
        "style": _read("page.css", *["live.css"] * is_live),
        "script": _read(*(f"{name}.js" for name in SCRIPTS), *["live.js"] * is_live),
        "live": _read(*["live.html"] * is_live),
        "connect": "; connect-src 'self'" if is_live and not model else "",
        "data": data,
        "held": ' type="text/plain" id="script"' if model else "",
        "model": model,
    }
    return PLACE.sub(lambda place: parts[place[1]], _read("page.html"))


def _read(*names: str) -> str:
    """Returns the joined files of the folder of the page."""
    folder = importlib.resources.files("tfm.visualize") / "page"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


class NotebookPage:
    """A page that a notebook displays inside a frame, also after it is saved, and without a server.

    Attributes:
      html: the page.
    """

    def __init__(self, observations: Sequence[Observation], title: str, height: int = NOTEBOOK_HEIGHT):
        """Makes the page of some examples. `height` is the height of the frame in pixels."""
        self.html = make_page(observations, title)
        self._title, self._height = title, height

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._title!r})"

    def _repr_html_(self) -> str:
        """Returns the frame. Its script cannot reach the notebook, because the sandbox has no origin."""
        # Single quotes, because escapes of the many double quotes in the data would enlarge a saved notebook.
        content = self.html.replace("&", "&amp;").replace("'", "&#39;")
        return (
            f"<iframe srcdoc='{content}' sandbox='allow-scripts' title='Attention' "
            f"style='width: 100%; height: {self._height}px; border: 0'></iframe>"
        )


def describe(observation: Observation) -> dict[str, Any]:
    """Returns an observation as the JSON object that the page reads."""
    attention, beam = observation.attention, observation.beam
    fields = observation._asdict()
    del fields["predicted_ids"]  # the page shows labels
    return {
        **fields,
        "tracks": {name: _describe_track(track) for name, track in observation.tracks.items()},
        "attention": {kind: _describe_map(attention, kind) for kind in attention},
        "predictions": [prediction._asdict() for prediction in observation.predictions],
        "beam": beam
        and {
            "steps": [[extension._asdict() for extension in step] for step in beam.steps],
            "finished": beam.finished,
        },
    }


def align_examples(observations: Sequence[Observation]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Returns the corresponding tokens of every two examples.

    Returns:
      For examples 0 and 1 the key "0,1" with {"TRACK UNIT": [(i, j), ...]}, where the unit is "labels" or
      "texts" (words). See `words.align_tokens`.
    """
    return {
        f"{i},{j}": align_tracks(first.tracks, second.tracks)
        for (i, first), (j, second) in itertools.combinations(enumerate(observations), 2)
    }


def align_tracks(first: Mapping[str, Track], second: Mapping[str, Track]) -> dict[str, list[tuple[int, int]]]:
    """Returns {"TRACK UNIT": corresponding tokens} of two examples, see `align_examples`."""
    return {
        f"{name} {unit}": align_tokens(getattr(track, unit), getattr(second[name], unit))
        for name, track in first.items()
        if name in second
        for unit in ("labels", "texts")
    }


def pack(array: np.ndarray) -> dict[str, Any]:
    """Packs an array of non-negative numbers into 16 bits per number.

    Returns:
      "shape", "scale" (the largest number), and "data": the numbers as multiples of scale / 65,535, in
      little-endian order and base64.
    """
    scale = float(array.max(initial=0.0))
    levels = np.rint(array / (scale or 1.0) * LEVELS).astype("<u2")
    data = base64.b64encode(levels.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "scale": scale, "data": data}


def _describe_track(track: Track) -> dict[str, Any]:
    """Returns a track as a JSON object. An image becomes the URL of a PNG file."""
    described = track._asdict()
    if track.picture is not None:
        file = io.BytesIO()
        pixels = track.picture.reshape(*track.picture.shape[:2], -1)
        colours = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
        matplotlib.image.imsave(file, colours, format="png")
        content = base64.b64encode(file.getvalue()).decode("ascii")
        described["picture"] = f"data:image/png;base64,{content}"
    return described


def _describe_map(attention: dict[str, AttentionMap], kind: str) -> dict[str, Any]:
    """Returns the attention of a kind with its summaries as a JSON object."""
    summaries = {name: summarize(attention, kind, name) for name in SUMMARIES}
    described = attention[kind]._asdict() | summaries
    return {name: pack(x) if isinstance(x, np.ndarray) else x for name, x in described.items()}
