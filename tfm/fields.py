"""Metadata of config fields: meaning, allowed values, and whether a resumed run may change them.

`field` makes the fields of the config dataclasses and keeps a `FieldInfo` in their metadata. The validator,
the check of a resumed run, warm start and --help read it; there is no other list of fields.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tfm.errors import UserError

LARGEST_INT = (1 << 63) - 1

# What a run that has a checkpoint may do with a field: `FieldInfo.resume`.
CHANGEABLE = "changeable"
WITH_FLAG = "with flag"
WITH_RESET = "with reset"
NEVER = "never"


@dataclasses.dataclass(frozen=True)
class FieldInfo:
    """The metadata of a config field, under the key "info".

    Attributes:
      help: what the field means.
      choices: all values it takes; () for no such list.
      least, most: the smallest and the largest value it takes.
      above, below: the same, themselves excluded.
      unbounded: why a number has no smallest or no largest value.
      unit: of the number, a plural.
      pattern: what a text has to match as a whole.
      form: the pattern in words.
      resume: whether a run that has a checkpoint may change it. CHANGEABLE fields change no weight and no
        batch, but for rounding or where `help` says so; WITH_FLAG ones only by train.py --allow_change;
        WITH_RESET those on which the shape of the optimizer's state depends, so that only
        train.py --reset_schedule changes them; NEVER those on which the shape or the meaning of the weights
        depends.
      unless: (name, values) of a field of the same section: where that has one of these values, what is
        CHANGEABLE needs the flag.
      warm_start: whether a run may begin with the weights of one where the field has another value.
      asset: name of the file in the work directory that is made from the field, "" for none.
      section_class: function of a section's mapping to its class; None where the field's type says it.
    """

    help: str = ""
    choices: tuple = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    unbounded: str = ""
    unit: str = ""
    pattern: re.Pattern | None = None
    form: str = ""
    resume: str = WITH_FLAG
    unless: tuple[str, tuple] | None = None
    warm_start: bool = True
    asset: str = ""
    section_class: Callable[[Mapping], type] | None = None

    @property
    def expectation(self) -> str:
        """What a value must be, such as "from 1 to 6"; "" if any value is allowed."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        if self.pattern:
            return self.form
        if self.least is not None and self.most is not None:
            return f"from {_shown(self.least)} to {_shown(self.most)}"
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {_shown(bound)}" for word, bound in bounds.items() if bound is not None)

    def accepts(self, value: Any) -> bool:
        """Whether a value of the right type is in the range, among the choices, or matches the pattern."""
        if self.choices:
            return value in self.choices
        if self.pattern:
            return bool(self.pattern.fullmatch(value))
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def field(default: Any, help: str, **rules: Any) -> Any:
    """A dataclass field with its `FieldInfo`.

    Args:
      default: its value, or the dataclass of a section.
      help: what the field means.
      rules: the other attributes of `FieldInfo`.
    """
    metadata = {"info": FieldInfo(help, **rules)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def field_like(other: type, name: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that says of itself what a field of another dataclass does.

    Args:
      other: the dataclass.
      name: of its field.
      default: in place of that field's own.
    """
    like = next(each for each in dataclasses.fields(other) if each.name == name)
    default = like.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata=like.metadata)


def info_of(field: dataclasses.Field) -> FieldInfo:
    """The `FieldInfo` of a dataclass field; where `field` did not make it, a strict one without bounds."""
    return field.metadata.get("info", FieldInfo(warm_start=False))


def check_fields(config: Any, section: str = "") -> None:
    """Checks the fields of a dataclass, one by one, against their types and their `FieldInfo`.

    Args:
      config: the dataclass; its `__post_init__` calls this before it compares fields with each other.
      section: its path in the config of the task, for the error message; "" for the task's own.

    Raises:
      UserError: names all that do not fit, each with what was expected and what came.
    """
    hints = hints_of(config.__class__)
    found = (
        problem_of(getattr(config, each.name), hints[each.name], info_of(each), join(section, each.name))
        for each in dataclasses.fields(config)
    )
    raise_all([problem for problem in found if problem])


class Leaf(NamedTuple):
    """A field that is not a section: its path, its `FieldInfo`, its section, and its value."""

    path: str
    info: FieldInfo
    section: Any
    value: Any


def leaves(config: Any, path: str = "") -> Iterator[Leaf]:
    """The fields of a dataclass and of the sections nested in it, in their order."""
    for each in dataclasses.fields(config):
        value, name = getattr(config, each.name), join(path, each.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, name)
        else:
            yield Leaf(name, info_of(each), config, value)


class Change(NamedTuple):
    """A field that has another value than before: a `Leaf` of each config."""

    old: Leaf
    new: Leaf

    @property
    def path(self) -> str:
        """Of the field, such as "training.steps"."""
        return self.new.path

    @property
    def depends(self) -> str:
        """The field whose value asks for the flag, such as "training.schedule"; "" for none."""
        name, values = self.new.info.unless or ("", ())
        asks = name and any(getattr(leaf.section, name) in values for leaf in (self.old, self.new))
        return join(self.path.rpartition(".")[0], name) if asks else ""

    @property
    def rule(self) -> str:
        """CHANGEABLE, WITH_FLAG, WITH_RESET or NEVER."""
        return WITH_FLAG if self.depends and self.new.info.resume == CHANGEABLE else self.new.info.resume

    def __str__(self):
        return f"{self.path} was {self.old.value!r} and is now {self.new.value!r}"


def changes(old: Any, new: Any) -> list[Change]:
    """The fields that two configs share and in which they differ.

    Sections of two classes differ in the name that chose the class, too.
    """
    before = {leaf.path: leaf for leaf in leaves(old)}
    pairs = [Change(before[leaf.path], leaf) for leaf in leaves(new) if leaf.path in before]
    return [change for change in pairs if change.old.value != change.new.value]


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """{field: type} of a dataclass."""
    return typing.get_type_hints(cls)


def join(path: str, name: str) -> str:
    """The path of a field from that of its section."""
    return f"{path}.{name}" if path else name


def _shown(number):
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def raise_all(problems: list[str]) -> None:
    """Raises one UserError with all error messages, if there are any."""
    if len(problems) > 1:
        several = "; ".join(problem.rstrip(".") for problem in problems)
        raise UserError(f"{len(problems)} fields of the config are wrong: {several}.")
    if problems:
        raise UserError(problems[0])


def optional_of(hint: Any) -> Any:
    """T of `T | None`, else None."""
    if not isinstance(hint, types.UnionType):
        return None
    return next(kind for kind in typing.get_args(hint) if kind is not type(None))


def kind_of(hint: Any) -> Any:
    """The class of which a value must be."""
    kind = optional_of(hint) or hint
    return typing.get_origin(kind) or kind


def problem_of(value: Any, hint: Any, info: FieldInfo, path: str) -> str:
    """What is wrong with the value of a field, as an error message; "" for nothing."""
    kind: type = kind_of(hint)
    if dataclasses.is_dataclass(kind) or kind is Any:
        is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
        fits = isinstance(value, kind) if dataclasses.is_dataclass(kind) else is_instance
        return "" if fits else f"{path} must be a section with fields, got {value!r}."
    if value is None and optional_of(hint):
        return ""
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return f"{path} must be a number of at most 64 bits, got one of {value.bit_length()}."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} must be a finite number, got {value}."
    if isinstance(value, str) and "\0" in value:
        return f"{path} must be text without null bytes, got {value!r}."
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        return f"{path} must be of type {kind.__name__}, got {value!r}."
    if kind is tuple and (problem := _element_problem(value, hint, path)):
        return problem
    if not info.accepts(value):
        none = ", or None" if optional_of(hint) and not info.choices else ""
        return f"{path} must be {info.expectation}{none}, got {value!r}."
    return ""


def _element_problem(values, hint, path):
    """What is wrong with an element of a `tuple[T, ...]`; "" for nothing."""
    element, *_ = typing.get_args(optional_of(hint) or hint) or (Any,)
    if element is Any:
        return ""
    problems = (problem_of(each, element, FieldInfo(), f"each of {path}") for each in values)
    return next(filter(None, problems), "")
