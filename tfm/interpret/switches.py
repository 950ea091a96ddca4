"""Switches that turn parts of a model off and on without a new compilation.

Each switch is a factor, 0 or 1, of one part: a head, a sublayer, or the embedding of a token. The factors
travel inside the parameters, because every task passes its parameters to compiled programs as arguments.
Therefore one compiled program computes every combination of parts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError
from tfm.interpret import edits
from tfm.interpret.edited_model import EditedModel
from tfm.layers.observe import Edit, Point, Recorder, activate, matches

SWITCHES = "switches"  # name of the factors in the tree of the parameters
HEAD_POINT, SUBLAYER_POINT, TOKEN_POINT = "head_outputs", "sublayer_output", "embeddings"
SUBLAYER_NAME = re.compile(rf"(.*?)\.?layers_(\d+)\.(\w+?)(?:_residual)?\.{SUBLAYER_POINT}(?:#(\d+))?")


class Switch(NamedTuple):
    """A part of a model that can be turned off.

    Attributes:
      point: name of an activation. If a module is used several times, the name ends in "#" and the number of
        the use.
      number: index of a head, or position of a token. None for a whole sublayer.
    """

    point: str
    number: int | None = None


class Parts(NamedTuple):
    """The parts of a model that have switches.

    Attributes:
      heads: {point of the outputs of the heads of a layer: number of heads}.
      sublayers: {point of the output of a sublayer: name in words}.
      tokens: {point of the embeddings of a text: number of positions}.
      kinds: for each kind of attention, the points of the heads of its layers, in the order of its attention
        weights. A kind has no entry if its heads have no switches.
      tracks: {track of an observation: point of the embeddings of its tokens}.
    """

    heads: dict[str, int]
    sublayers: dict[str, str]
    tokens: dict[str, int]
    kinds: dict[str, list[str]]
    tracks: dict[str, str]

    def name_other_heads(self) -> dict[str, tuple[str, int]]:
        """Returns {point: (name of the attention in words, number of heads)} of heads without a kind."""
        pictured = {point for points in self.kinds.values() for point in points}
        others = {point: count for point, count in self.heads.items() if point not in pictured}
        return {
            point: (_describe_sublayer(_sibling(point, SUBLAYER_POINT)), count)
            for point, count in others.items()
        }


def list_parts(task: Any, positions: int) -> Parts:
    """Returns the parts of the model of a task that have switches, without computing anything.

    Args:
      task: a `tfm.training.task.Task` with the attribute `model`.
      positions: minimum number of positions of each text that have switches. All positions with which
        `task.init` traces the model have one, too, such as all patches of an image.
    """
    recorder = Recorder("*")
    with activate(recorder):
        jax.eval_shape(task.init, jax.random.key(0))
    names = [_full_pattern(name, recorder.axes) for name in recorder.axes]
    shapes = {name: recorder.reads[old].shape for name, old in zip(names, recorder.axes, strict=True)}
    heads = {name: shapes[name][2] for name in names if _last(name) == HEAD_POINT}
    sublayers = {name: _describe_sublayer(name) for name in names if _last(name) == SUBLAYER_POINT}
    points = getattr(task.model, "attention_points", {})
    kinds, tracks = {}, {}
    for kind, point in points.items():
        outputs = [_sibling(name, HEAD_POINT) for name in names if matches(name, point)]
        if outputs and all(name in heads for name in outputs):
            kinds[kind] = outputs
    for kind, (queries, keys) in getattr(task.model, "attention_tracks", {}).items():
        embeddings = f"{points[kind].partition('.')[0]}.{TOKEN_POINT}"
        is_self_attention = queries == keys or keys == "read"
        if is_self_attention and embeddings in shapes:
            tracks[keys] = embeddings
    tracks |= {
        track: name for track, name in getattr(task.model, "embedding_tracks", {}).items() if name in shapes
    }
    tokens = {name: max(positions, shapes[name][1]) for name in tracks.values()}
    return Parts(heads, sublayers, tokens, kinds, tracks)


class SwitchedModel(EditedModel):
    """A model that multiplies its parts by the factors in `params["switches"]`, see `with_switches`.

    It can be used in place of the model, like every `EditedModel`. Without factors, nothing is edited.
    """

    def __init__(self, model: Any, edit: Mapping[str, Edit] | None = None):
        """Creates a model with switches. `edit` are further edits, which are always on."""
        super().__init__(model, edit or {})

    def apply(
        self, variables: Mapping[str, Any], *arguments: Any, method: str = "__call__", **keywords: Any
    ) -> Any:
        """Applies the model like `flax.linen.Module.apply`.

        Unlike in `EditedModel`, edits and factors whose activation does not occur are ignored.
        """
        params = dict(variables.get("params", {}))
        factors = params.pop(SWITCHES, {})
        switched = _Unchecked(self._model, self._edit | {name: _multiply(x) for name, x in factors.items()})
        return switched.apply({**variables, "params": params}, *arguments, method=method, **keywords)


class _Unchecked(EditedModel):
    """An edited model whose calls may lack some of the activations.

    A task may compute only a part of its model, for example the generator without the discriminator.
    """

    def check(self, recorder: Recorder, other_names: Iterable[str] = ()) -> None:
        """Accepts edits that match nothing."""


def with_switches(variables: Mapping[str, Any], parts: Parts, off: Iterable[Switch]) -> dict[str, Any]:
    """Returns the variables of a model together with the factors of its parts.

    Args:
      variables: variables of the model.
      parts: the parts that have switches.
      off: the parts that are turned off.

    Returns:
      A copy of the variables for a `SwitchedModel`. Its "params" also contain {point: factors} under
      "switches". The factors are float32 [heads] or [positions], or a scalar for a sublayer. They are 0 for
      the parts that are turned off and 1 for all others.

    Raises:
      UserError: if the model has no such part.
    """
    factors: dict[str, np.ndarray] = {
        **{name: np.ones(count, np.float32) for name, count in (parts.heads | parts.tokens).items()},
        **{name: np.ones((), np.float32) for name in parts.sublayers},
    }
    for switch in off:
        factor = factors.get(switch.point)
        size = 0 if factor is None or not factor.shape else len(factor)
        is_whole = factor is not None and not size and switch.number is None
        if not is_whole and not (switch.number is not None and 0 <= switch.number < size):
            raise UserError(f"Expected a head, a sublayer or a token of the model, got {tuple(switch)}.")
        factors[switch.point][() if is_whole else switch.number] = 0
    return {**variables, "params": {**variables["params"], SWITCHES: factors}}


def _multiply(factors: jax.Array) -> Edit:
    """Returns an edit that multiplies heads, positions or all of an activation by factors."""

    def edit(value: jax.Array, point: Point) -> jax.Array:
        if not factors.ndim:
            return edits.scale(factors)(value, point)
        if _last(point.name) == HEAD_POINT:
            return (value * factors[:, None]).astype(value.dtype)
        positions = point.positions["L"]
        # Positions after the last switch, and the position -1 of padding, are always on.
        known = (positions >= 0) & (positions < len(factors))
        of_positions = jnp.where(known, factors[jnp.clip(positions, 0, len(factors) - 1)], 1)
        return (value * of_positions[..., None]).astype(value.dtype)

    return edit


def as_edits(parts: Parts, off: Iterable[Switch]) -> dict[str, Edit]:
    """Returns the edits that do the same as switches, for `tfm.Translator.with_edits` and `EditedModel`."""
    return {
        point: getattr(edits, _edit_name(parts, point))(*indices) if indices else edits.zero
        for point, indices in _group(off).items()
    }


def as_python(parts: Parts, off: Iterable[Switch]) -> str:
    """Returns `as_edits` as the source code of a dict. The code needs `from tfm import interpret`."""
    lines = []
    for point, indices in _group(off).items():
        arguments = f"({indices[0]})" if indices else ""
        lines.append(f'    "{point}": interpret.{_edit_name(parts, point)}{arguments},')
    return "\n".join(["{", *lines, "}"])


def write_script(kind: str, arguments: str, edits: str, call: str) -> str:
    """Returns Python that loads a run, edits its model and prints a result.

    Args:
      kind: the class that loads the run, such as "Translator".
      arguments: source code of the arguments of its method `load`.
      edits: source code of the edits, see `as_python`.
      call: source code of the call of the edited object.
    """
    name = kind.lower()
    return "\n".join(
        [
            "import tfm",
            "from tfm import interpret",
            "",
            f"{name} = tfm.{kind}.load({arguments})",
            f"edited = {name}.with_edits({edits})",
            f"print(edited.{call})",
        ]
    )


def _group(off: Iterable[Switch]) -> dict[str, list[Any]]:
    """Returns {point: arguments of its edit}: none, an index, or a list of indices."""
    indices: dict[str, set[int]] = {}
    for point, index in off:
        indices.setdefault(point, set()).update([] if index is None else [index])
    return {point: [sorted(some)] if len(some) > 1 else list(some) for point, some in sorted(indices.items())}


def _edit_name(parts: Parts, point: str) -> str:
    """Returns the name of the function in `tfm.interpret.edits` that turns off parts at a point."""
    if point in parts.heads:
        return "zero_head"
    return "zero_position" if point in parts.tokens else "zero"


def _last(name: str) -> str:
    """Returns the name of an activation within its module."""
    return name.rpartition(".")[2].partition("#")[0]


def _sibling(name: str, other: str) -> str:
    """Returns the name of another activation of the same use of a module."""
    module, _, last = name.rpartition(".")
    _, sign, use = last.partition("#")
    return f"{module}.{other}{sign}{use}"


def _full_pattern(name: str, names: Mapping[str, Any]) -> str:
    """Returns a glob that matches this activation alone. The first use of a module needs a number then."""
    return f"{name}#1" if f"{name}#2" in names else name


def _describe_sublayer(name: str) -> str:
    """Returns the name of a sublayer in words, such as "encoder layer 0, self-attention"."""
    found = SUBLAYER_NAME.fullmatch(name)
    if found is None:
        return name
    stack, layer, sublayer, use = found.groups()
    words = f"{stack} layer {layer}".strip() + f", {sublayer.replace('_attention', '-attention')}"
    return words.replace("_", "-") + (f", use {use}" if use else "")


def read_switches(rows: Sequence[Any]) -> list[Switch]:
    """Returns the switches that a page sends as lists [point, index].

    Raises:
      UserError: if a row has another form.
    """
    switches = []
    for row in rows:
        match row:
            case [str(point), None | int() as index] if not isinstance(index, bool):
                switches.append(Switch(point, index))
            case _:
                raise UserError(f"Expected [point, index] of a part that is off, got {row!r}.")
    return switches
