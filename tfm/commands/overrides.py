"""Fields of a config that arguments --config.field=value set.

`ml_collections.config_flags` parses the values, and the dataclasses of the config check them.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_dict, config_flags

from tfm import config
from tfm.arguments import suggest
from tfm.commands.command import shorten
from tfm.config import hints_of, optional_of, walk_fields
from tfm.errors import UserError
from tfm.sweep.plan import count_parameters
from tfm.workdir import runs

NAME = "config"
log = logging.getLogger(__name__)


class Overridden(NamedTuple):
    """A config that arguments have changed.

    Attributes:
      config: the dataclass of the task.
      fields: {path: value} of the fields that the arguments set.
      rest: the arguments that set no field, in their order.
    """

    config: Any
    fields: dict[str, Any]
    rest: list[str]


def override(
    base: Any,
    arguments: Sequence[str],
    adjust: Callable[[config_dict.ConfigDict, Collection[str]], None] | None = None,
) -> Overridden:
    """Returns a config with the fields that arguments set. The last value of a field counts.

    --config.SECTION.name=NAME, such as the name of a model, replaces the section by the defaults of that
    name. If the class of the new section is a subclass of the old one, or the same class, the section keeps
    the fields that differ from their defaults. The command line is trusted, so the modules that it names may
    be imported.

    Args:
      base: the config, the dataclass of its task.
      arguments: arguments such as --config.training.steps=3, and any others.
      adjust: function that changes the config, given the paths of the fields that the arguments set. None
        changes nothing.

    Raises:
      UserError: if a field does not exist, or a value is invalid.
    """
    arguments = list(arguments)
    if not any(argument.lstrip("-").startswith((f"{NAME}.", f"no{NAME}.")) for argument in arguments):
        return Overridden(base, {}, arguments)
    named = _replace_named_sections(base, arguments)
    mapping = config.to_config_dict(named)
    _check_paths(mapping, arguments)
    values = flags.FlagValues()
    with _as_user_errors(values):
        config_flags.DEFINE_config_dict(
            NAME, mapping, "Fields of the config.", values, sys_argv=["", *arguments]
        )
        for name in _optional_fields(named) & set(values):
            values[name].parser = _NoneParser(values[name].parser)
        _, *rest = values(["", *arguments], known_only=True)
    fields = config_flags.get_override_values(values[NAME])
    if adjust is not None:
        adjust(values.config, fields.keys())
    changed = runs.parse_config(values.config)
    if not isinstance(named.model, type(base.model)):
        _warn_of_dropped_model(base, changed)
    return Overridden(changed, fields, rest)


def _replace_named_sections(base: Any, arguments: Sequence[str]) -> Any:
    """Returns a config whose sections have the names that the arguments give them, the outer ones first."""
    while True:
        texts = _given_names(base, arguments)
        changed = [
            (path.removesuffix(".name"), text)
            for path, text in texts.items()
            if path in config.section_names(base) and text != config.section_names(base)[path]
        ]
        if not changed:
            return base
        base = _replace_section(base, *changed[0])


def _given_names(base: Any, arguments: Sequence[str]) -> dict[str, str]:
    """Returns {path: text} of the names of sections and parts that the arguments give, and allows them."""
    paths = [leaf.path for leaf in walk_fields(base) if leaf.path.rpartition(".")[2] in config.NAME_FIELDS]
    values = flags.FlagValues()
    for path in paths:
        flags.DEFINE_string(f"{NAME}.{path}", None, "", values)
    with _as_user_errors(values):
        values(["", *arguments], known_only=True)
    found = {path: values[f"{NAME}.{path}"].value for path in paths}
    texts = {path: text for path, text in found.items() if text is not None}
    for text in texts.values():  # a single name, or the names of a tuple
        names = (name.strip(" ()[]'\"") for name in text.split(","))
        config.allow_modules(filter(config.is_dotted, names))
    return texts


def _replace_section(base: Any, path: str, name: str) -> Any:
    """Returns a config with the defaults of another name in the section at a path."""
    *parents, last = path.split(".")
    outer = functools.reduce(getattr, parents, base)
    old: Any = getattr(outer, last)
    new: Any = config.defaults_of_name(outer, last, name, f"{NAME}.{path}")
    if isinstance(new, type(old)):
        new = dataclasses.replace(
            new, **_changed_fields(old, config.defaults_of_name(outer, last, old.name, ""))
        )
    else:
        log.info(
            "%s.%s.name=%s: the settings of the config for %s are dropped. Fields that no flag sets have the "
            "defaults of %s.",
            *(NAME, path, name, old.name, name),
        )
    changed = dataclasses.replace(outer, **{last: new})
    for depth in reversed(range(len(parents))):
        parent = functools.reduce(getattr, parents[:depth], base)
        changed = dataclasses.replace(parent, **{parents[depth]: changed})
    return changed


def _changed_fields(section: Any, defaults: Any) -> dict[str, Any]:
    """Returns {name: value} of the fields of a section that differ from its defaults."""
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def _warn_of_dropped_model(base: Any, changed: Any) -> None:
    """Logs the numbers of parameters of two models, because a model that drops its fields has other sizes."""
    counts = [count_parameters(each) for each in (base, changed)]
    before, after = ("an unknown number of" if count is None else f"{count:,}" for count in counts)
    log.warning(
        "%s.model.name=%s drops the fields of %s: the model has %s parameters instead of %s",
        *(NAME, changed.model.name, base.model.name, after, before),
    )


def _optional_fields(chosen: Any) -> set[str]:
    """Returns the flags of the fields that may be None."""
    return {
        f"{NAME}.{leaf.path}"
        for leaf in walk_fields(chosen)
        if optional_of(hints_of(leaf.section.__class__)[leaf.path.rpartition(".")[2]]) is not None
    }


class _NoneParser(flags.ArgumentParser):
    """A flag parser that accepts None in addition to the values of another parser."""

    def __init__(self, plain: Any):
        self._plain, self.syntactic_help = plain, plain.syntactic_help

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self._plain.parse(argument)

    def flag_type(self) -> str:
        return self._plain.flag_type()


def _check_paths(mapping: config_dict.ConfigDict, arguments: Sequence[str]) -> None:
    """Raises a UserError if an argument sets a field that does not exist, or a whole section."""
    for argument in arguments[: arguments.index("--")] if "--" in arguments else arguments:
        name = argument.lstrip("-").partition("=")[0].removeprefix("no")
        if argument.startswith("-") and name.startswith(f"{NAME}."):
            _check_path(mapping, name.split("."))


def _check_path(section: Any, path: Sequence[str]) -> None:
    """Raises a UserError if `path`, from "config" to the field, does not lead to a field."""
    for depth, name in enumerate(path[1:], 2):
        known = list(section.keys()) if isinstance(section, config_dict.ConfigDict) else []
        if name not in known:
            raise UserError(f"{'.'.join(path[:depth])} does not exist; {suggest(name, known)}")
        section = section[name]
    if isinstance(section, config_dict.ConfigDict):  # a value for the section would reset its other fields
        name = ".".join(path)
        field = "name" if "name" in section else next(iter(section))
        raise UserError(f"{name} is a section. Set its fields one by one, such as --{name}.{field}=value.")


@contextlib.contextmanager
def _as_user_errors(values: flags.FlagValues) -> Iterator[None]:
    """Converts the errors of absl and ml_collections for mistakes of the user into a UserError."""
    try:
        yield
    except flags.IllegalFlagValueError as error:
        raise UserError(_describe_illegal_value(error, values)) from None
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(" ".join(str(error).split())) from None


def _describe_illegal_value(error: flags.Error, values: flags.FlagValues) -> str:
    """Returns the message for a value that the parser of a flag rejected.

    The text of absl's error is "flag --name=value: reason", where the reason comes from Python.
    """
    text = " ".join(str(error).split())
    reason = error.__context__
    if not isinstance(reason, TypeError | ValueError | OverflowError):
        return text
    name, _, value = str(error).removeprefix("flag --").removesuffix(f": {reason}").partition("=")
    if name not in values:
        return text
    parser = values[name].parser
    kind = "true or false" if isinstance(parser, flags.BooleanParser) else parser.syntactic_help
    return f"--{name}: expected {kind}, got {shorten(value)}." if kind else text
