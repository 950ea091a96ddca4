"""The examples of a page whose reader types examples and turns parts of the model off."""

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.protocol import source_tokenizer
from tfm.data.tokenizers.unknown_text import describe_part, find_unknown
from tfm.decoding.batches import few_widths
from tfm.errors import UserError
from tfm.interpret.observation import FindsUnknown, Observation, ObservesTargets, Prediction, Track
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
MAX_TRACKS = 1000  # examples whose tokens are kept, to align later examples with them
MAX_OFF = 1000  # parts
MAX_NAMED_PARTS = 3  # in the title of an example
NO_PARTS = Parts({}, {}, {}, {}, {})
EXAMPLE_HELP = "Your own example. Enter looks."
# Maps an example and the source code of a dict of edits to Python that computes the example with the edits.
MakePython = Callable[[str, str], str]
Change = tuple[str, float | None, float | None]


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
        self._originals: OrderedDict[str, Observation] = OrderedDict()
        self._tracks: OrderedDict[int, dict[str, Track]] = OrderedDict()
        self._numbers = itertools.count()

    def make_page(self, examples: Sequence[str], title: str, path: str) -> str:
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
            {"id": self._keep(each), "text": text} for each, text in zip(observations, examples, strict=True)
        ]
        live = {"path": path, "examples": abouts, **describe_parts(self._task, self._parts)}
        return make_page(observations, title, live)

    def warm_up(self, example: str) -> None:
        """Compiles the programs of a request with parts that are off, so that the first click is fast."""
        original = self._observe(example, [])
        edited = self._observe(example, [Switch(point, 0) for point in list(self._parts.heads)[:1]])
        self._changes(example, original, edited, [])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a new example for a page.

        Args:
          request: "text", the example; "off", the parts that are turned off as a list of [point, index]; and
            "known", the "id" of each example of the page.

        Raises:
          UserError: if the request has another form, or the example cannot be used.
        """
        text, rows, known = (request.get(name) for name in ("text", "off", "known"))
        if not isinstance(text, str) or not isinstance(rows, list) or not isinstance(known, list):
            raise UserError("Expected a request with text, off and known. Reload the page.")
        if len(rows) > MAX_OFF or len(known) > MAX_TRACKS:
            raise UserError(f"Expected at most {MAX_OFF:,} parts that are off. Reload the page.")
        if any(type(number) is not int or number not in self._tracks for number in known):
            raise UserError("The server has forgotten an example of this page. Reload the page.")
        off = read_switches(rows)
        original = self._observe(text, [])
        observation = self._observe(text, off) if off else original
        about: dict[str, Any] = {"text": text, "off": off}
        if off:
            names = [self._name(switch, original) for switch in off]
            shown = ", ".join(names) if len(names) <= MAX_NAMED_PARTS else f"{len(names)} parts"
            observation = observation._replace(title=f"{observation.title} Without {shown}.")
            about["changes"] = self._changes(text, original, observation, off)
            about["caption"] = self._caption(original)
            about["python"] = self._make_python(text, as_python(self._parts, off))
        alignments = {str(i): align_tracks(self._tracks[i], observation.tracks) for i in known}
        about["id"] = self._keep(observation)
        example = describe(observation) | {"live": about}
        return {"example": example, "alignments": alignments, "notes": self._notes(text)}

    def _observe(self, text: str, off: Sequence[Switch]) -> Observation:
        """Returns the observation of a text. Keeps those with everything on."""
        if not off and text in self._originals:
            self._originals.move_to_end(text)
            return self._originals[text]
        with few_widths():
            observation = self._task.observe(self._switched(off), text, self._max_tokens)
        if not off:
            self._originals[text] = observation
            if len(self._originals) > MAX_ORIGINALS:
                self._originals.popitem(last=False)
        return observation

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
        self, text: str, original: Observation, edited: Observation, off: Sequence[Switch]
    ) -> list[Change]:
        """Returns (label, probability with everything on, probability without some parts).

        The labels are the tokens of the original prediction, or the classes. The model without some parts may
        predict other tokens, so it reads the original ones.
        """
        predicted = original.tracks.get("predicted")
        after = edited
        if predicted and isinstance(self._task, ObservesTargets) and original.predicted_ids:
            with few_widths():
                after = self._task.observe_target(self._switched(off), text, original.predicted_ids)
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
        for track, name in self._parts.tracks.items():
            if point == name and track in original.tracks and number < len(original.tracks[track].labels):
                return f"{track} token {original.tracks[track].labels[number]}"
        return f"{point} {number}"

    def _notes(self, text: str) -> list[str]:
        """Returns remarks about an example: the words and characters that the vocabulary does not have."""
        unknown = self._find_unknown(text)
        if not unknown:
            return []
        names = ", ".join(map(describe_part, unknown))
        return [
            f"The vocabulary lacks {names}. Training has not seen {'it' if len(unknown) == 1 else 'them'}."
        ]

    def _find_unknown(self, text: str) -> list[str]:
        """Returns the words and characters of an example that the vocabulary of the task does not have."""
        if isinstance(self._task, FindsUnknown):
            return self._task.find_unknown(text)
        tokenizer = getattr(self._task, "tokenizer", None)
        return [] if tokenizer is None else find_unknown(source_tokenizer(tokenizer), [text])


def describe_parts(task: Any, parts: Parts) -> dict[str, Any]:
    """Returns the data with which `live.js` names the parts of a model and its field for an example."""
    return {
        "help": getattr(task, "example_help", EXAMPLE_HELP),
        "heads": parts.kinds,
        "sublayers": parts.sublayers,
        "tracks": parts.tracks,
        "hasParts": parts != NO_PARTS,
    }


def _probability(prediction: Prediction, label: str) -> float | None:
    """Returns the probability of a choice, or None if it is none of the most probable choices."""
    return dict(prediction.choices).get(label)


def _has_coverage_penalty(task: Any) -> bool:
    """Returns whether the search of a task reads the attention, which edited models do not support."""
    return bool(getattr(getattr(task.config, "decoding", None), "beam_coverage_penalty", 0))
