"""The examples of a page whose reader types examples and turns parts of the model off."""

import base64
import binascii
import copy
import dataclasses
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.tokenizers.protocol import source_tokenizer
from tfm.data.tokenizers.unknown_text import describe_part, find_unknown_parts
from tfm.decoding.batches import few_widths
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.interpret.observation import (
    FindsUnknown,
    Observation,
    ObservesPictures,
    ObservesTargets,
    Prediction,
    Track,
)
from tfm.interpret.switches import (
    Parts,
    Switch,
    SwitchedModel,
    as_python,
    list_parts,
    read_switches,
    with_switches,
)
from tfm.visualize.page import align_tracks, describe, make_page

MAX_ORIGINALS = 16  # examples with everything on that are kept for comparisons
MAX_CHARACTERS = 100_000  # of a text that a page sends; its field takes 20,000
MAX_PICTURE_BYTES = 8 << 20  # of a file that a page sends
MAX_TRACKS = 1000  # examples whose tokens are kept, to align later examples with them
MAX_OFF = 1000  # parts
MAX_NAMED_PARTS = 3  # in the title of an example
NO_PARTS = Parts({}, {}, {}, {}, {})
EXAMPLE_HELP = "Your own example. Enter looks."
# Maps an example and the source code of a dict of edits to Python that computes the example with the edits.
MakePython = Callable[[str, str], str]
Change = tuple[str, float | None, float | None]


class Example(NamedTuple):
    """An example of a page.

    Attributes:
      text: the example, or the name of a picture.
      picture: the content of the file of a picture, or None if the example is a text.
    """

    text: str
    picture: bytes | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The text, and a hash of the picture or ""."""
        return self.text, "" if self.picture is None else hashlib.sha256(self.picture).hexdigest()


class LiveExamples:
    """Observes examples with some parts of the model turned off, for one or several pages.

    Args:
      task: a task that implements `tfm.interpret.observation.Observes`.
      variables: variables of its model.
      make_python: see `MakePython`.
      max_tokens: maximum number of tokens of an example.
    """

    def __init__(self, task: Any, variables: Any, make_python: MakePython, max_tokens: int):
        self._task, self._variables = copy.copy(task), variables
        self._parts = NO_PARTS if _has_coverage_penalty(task) else list_parts(task, max_tokens)
        if self._parts != NO_PARTS:
            self._task.model = SwitchedModel(task.model)
        self._make_python, self._max_tokens = make_python, max_tokens
        self._originals: OrderedDict[tuple[str, str], Observation] = OrderedDict()
        self._pictures: OrderedDict[str, np.ndarray] = OrderedDict()  # by the hash of the file
        self._tracks: OrderedDict[int, dict[str, Track]] = OrderedDict()
        self._numbers = itertools.count()

    def make_page(self, examples: Sequence[Example], title: str, path: str) -> str:
        """Returns the page of the first examples.

        Args:
          examples: the examples, at least one.
          title: title of the page.
          path: path of the address to which the page posts its requests, see `answer`.

        Raises:
          UserError: if an example cannot be used, or the page would be too large.
        """
        observations = [self._observe(example, []) for example in examples]
        abouts = [
            {"id": self._keep(each), "unknown": self._find_unknown(example), **_describe_example(example)}
            for each, example in zip(observations, examples, strict=True)
        ]
        live = {
            "path": path,
            "examples": abouts,
            "takesPictures": isinstance(self._task, ObservesPictures),
            "maxPictureBytes": MAX_PICTURE_BYTES,
            **describe_parts(self._task, self._parts),
        }
        return make_page(observations, title, live)

    def warm_up(self, example: Example) -> None:
        """Compiles the programs of a request with parts that are off, so that the first click is fast."""
        original = self._observe(example, [])
        edited = self._observe(example, [Switch(point, 0) for point in list(self._parts.heads)[:1]])
        self._changes(example, original, edited, [])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a new example for a page.

        Args:
          request: "text", the example or the name of a picture; "picture", the file of the picture in base64
            or None; "off", the parts that are turned off as a list of [point, index]; and "known", the "id"
            of each example of the page.

        Returns:
          "example", see `tfm.visualize.page.describe`, with the field "live" for `live.js`; "alignments",
          {id: see `tfm.visualize.page.align_tracks`} with the known examples; and "notes", texts for the
          reader.

        Raises:
          UserError: if the request has another form, or the example cannot be used.
        """
        text, rows, known = (request.get(name) for name in ("text", "off", "known"))
        if not isinstance(text, str) or not isinstance(rows, list) or not isinstance(known, list):
            raise UserError("Expected a request with text, off and known. Reload the page.")
        if len(text) > MAX_CHARACTERS:
            raise UserError(
                f"Expected at most {MAX_CHARACTERS:,} characters, got {len(text):,}. Shorten the text."
            )
        if len(rows) > MAX_OFF or len(known) > MAX_TRACKS:
            raise UserError(f"Expected at most {MAX_OFF:,} parts that are off. Reload the page.")
        if any(type(number) is not int or number not in self._tracks for number in known):
            raise UserError("The server has forgotten an example of this page. Reload the page.")
        off = read_switches(rows)
        example = Example(text, self._read_file(request.get("picture")))
        original = self._observe(example, [])
        observation = self._observe(example, off) if off else original
        unknown = self._find_unknown(example)
        about: dict[str, Any] = {"text": text, "off": off, "unknown": unknown}
        if off:
            names = [self._name(switch, original) for switch in off]
            shown = ", ".join(names) if len(names) <= MAX_NAMED_PARTS else f"{len(names)} parts"
            observation = observation._replace(title=f"{observation.title} Without {shown}.")
            about["changes"] = self._changes(example, original, observation, off)
            about["caption"] = self._caption(original)
            about["python"] = self._make_python(text, as_python(self._parts, off))
        alignments = {str(i): align_tracks(self._tracks[i], observation.tracks) for i in known}
        about["id"] = self._keep(observation)
        described = describe(observation) | {"live": about}
        return {"example": described, "alignments": alignments, "notes": _describe_unknown(unknown)}

    def _observe(self, example: Example, off: Sequence[Switch]) -> Observation:
        """Returns the observation of an example. Keeps those with everything on."""
        key = example.key
        if not off and key in self._originals:
            self._originals.move_to_end(key)
            return self._originals[key]
        variables = self._switched(off)
        if example.picture is not None:
            picture = self._read_picture(example)
            observation = self._task.observe_picture(variables, picture, example.text)
        else:
            with few_widths():
                observation = self._task.observe(variables, example.text, self._max_tokens)
        if not off:
            self._originals[key] = observation
            if len(self._originals) > MAX_ORIGINALS:
                self._originals.popitem(last=False)
        return observation

    def _read_file(self, content: Any) -> bytes | None:
        """Returns the file of a picture that a page has sent in base64.

        Raises:
          UserError: if the task observes no pictures, or the file is damaged or too large.
        """
        if content is None:
            return None
        if not isinstance(self._task, ObservesPictures):
            raise UserError("The model of this run reads no pictures. Type an example instead.")
        try:
            file = base64.b64decode(content, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise UserError("Expected the file of a picture in base64. Reload the page.") from None
        if len(file) > MAX_PICTURE_BYTES:
            raise UserError(
                f"Expected a picture of at most {MAX_PICTURE_BYTES:,} bytes, got {len(file):,}. Make it "
                "smaller."
            )
        return file

    def _read_picture(self, example: Example) -> np.ndarray:
        """Returns the picture of an example as the model reads it. Keeps the last few."""
        name, digest = example.key
        if digest not in self._pictures:
            self._pictures[digest] = self._task.read_picture(example.picture, name)
            if len(self._pictures) > MAX_ORIGINALS:
                self._pictures.popitem(last=False)
        return self._pictures[digest]

    def _switched(self, off: Sequence[Switch]) -> Any:
        """Returns the variables without some parts."""
        if self._parts == NO_PARTS and not off:
            return self._variables
        return with_switches(self._variables, self._parts, off)

    def _keep(self, observation: Observation) -> int:
        """Keeps the tokens of an observation for later alignments. Returns its number."""
        number = next(self._numbers)
        # The pixels of a picture are not needed.
        self._tracks[number] = {
            name: each._replace(picture=None) for name, each in observation.tracks.items()
        }
        if len(self._tracks) > MAX_TRACKS:
            self._tracks.popitem(last=False)
        return number

    def _changes(
        self, example: Example, original: Observation, edited: Observation, off: Sequence[Switch]
    ) -> list[Change]:
        """Returns (label, probability with everything on, probability without some parts).

        The labels are the tokens of the original prediction, or the classes. The model without some parts may
        predict other tokens, so it reads the original ones.
        """
        predicted = original.tracks.get("predicted")
        after = edited
        if predicted and isinstance(self._task, ObservesTargets) and original.predicted_ids:
            with few_widths():
                after = self._task.observe_target(self._switched(off), example.text, original.predicted_ids)
        count = len(original.predictions)
        if predicted and len(predicted.labels) == len(after.predictions) == count:
            rows = zip(predicted.labels, original.predictions, after.predictions, strict=True)
            same = after.tracks["predicted"].labels == predicted.labels
            # A model that does not read its predictions predicts the most probable choice at each element.
            return [
                (
                    label,
                    one.probability,
                    other.probability if same else _probability(other, one.choices[0][0]),
                )
                for label, one, other in rows
            ]
        if count != 1 or len(edited.predictions) != 1:
            return []
        first, second = (dict(each.predictions[0].choices) for each in (original, edited))
        return [(label, first.get(label), second.get(label)) for label in first | second]

    @staticmethod
    def _caption(original: Observation) -> str:
        """Returns what the rows of the changes are."""
        if "predicted" not in original.tracks:
            return "Probability of each class in percent"
        return "Probability of each token of the original, given the tokens before it"

    def _name(self, switch: Switch, original: Observation) -> str:
        """Returns the name of a part in words."""
        point, number = switch
        if number is None:
            return self._parts.sublayers[point]
        for kind, points in self._parts.kinds.items():
            if point in points:
                return f"{kind} layer {points.index(point)}, head {number}"
        if point in (others := self._parts.name_other_heads()):
            return f"{others[point][0]}, head {number}"
        for name, embeddings in self._parts.tracks.items():
            track = original.tracks.get(name)
            if point == embeddings and track and number < len(track.labels):
                return f"{track.element if track.grid else f'{name} token'} {track.labels[number]}"
        return f"{point} {number}"

    def _find_unknown(self, example: Example) -> list[str]:
        """Returns the words and characters of an example that the vocabulary of the task does not have."""
        if isinstance(self._task, FindsUnknown):
            return self._task.find_unknown(example.text)
        tokenizer = getattr(self._task, "tokenizer", None)
        return [] if tokenizer is None else find_unknown_parts(source_tokenizer(tokenizer), example.text)


def _describe_example(example: Example) -> dict[str, Any]:
    """Returns the fields that a page sends to ask for an example again."""
    picture = None if example.picture is None else base64.b64encode(example.picture).decode("ascii")
    return {"text": example.text, "picture": picture}


def _describe_unknown(unknown: Sequence[str]) -> list[str]:
    """Returns remarks about the words and characters that the vocabulary does not have."""
    if not unknown:
        return []
    names = ", ".join(map(describe_part, unknown))
    return [f"The vocabulary lacks {names}. Training has not seen {'it' if len(unknown) == 1 else 'them'}."]


def describe_parts(task: Any, parts: Parts) -> dict[str, Any]:
    """Returns the data with which `live.js` names the parts of a model and its field for an example."""
    return {
        "help": getattr(task, "example_help", EXAMPLE_HELP),
        "heads": parts.kinds,
        "sublayers": parts.sublayers,
        "tracks": parts.tracks,
        "otherHeads": parts.name_other_heads(),
        "positions": parts.tokens,
        "hasParts": parts != NO_PARTS,
        "hasLines": getattr(task, "example_has_lines", False),
    }


def _probability(prediction: Prediction, label: str) -> float | None:
    """Returns the probability of a choice, or None if it is none of the most probable choices."""
    return dict(prediction.choices).get(label)


def _has_coverage_penalty(task: Any) -> bool:
    """Returns whether the search of a task reads the attention. Edited models do not support this."""
    decoding = getattr(task.config, "decoding", None)
    if not isinstance(decoding, DecodingConfig):
        return False
    # The page always searches, even if the decoding of the run draws samples.
    return bool(dataclasses.replace(decoding, samples=0).beam_coverage_penalty)
