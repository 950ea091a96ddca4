"""Fields of a config that arguments --config.field=value set.

`ml_collections.config_flags` parses the values, and the dataclasses of the config check them.
"""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_dict, config_flags

from tfm import config
from tfm.commands.command import OVERRIDES, before_dashes, explain_flag_errors
from tfm.config import walk_fields
from tfm.errors import UserError, suggest
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


def override(base: Any, arguments: Sequence[str]) -> Overridden:
    """Returns a config with the fields that arguments set. The last value of a field counts.

    --config.SECTION.name=NAME, such as the name of a model, replaces the section by the defaults of that
    name. If the class of the new section is a subclass of the old one, or the same class, the section keeps
    the fields that differ from their defaults. The command line is trusted, so the modules that it names may
    be imported. `shorten_warmup` may change two further fields. The log reports this, and a section whose
    fields are dropped.

    Args:
      base: the config, the dataclass of its task.
      arguments: arguments such as --config.training.steps=3, and any others.

    Returns:
      The changed config, or `base` itself if no argument sets a field, the fields, and the other arguments.

    Raises:
      UserError: if a field does not exist, or a value is invalid.
    """
    arguments = list(arguments)
    if not any(argument.startswith(OVERRIDES) for argument in before_dashes(arguments)):
        return Overridden(base, {}, arguments)
    named = _replace_named_sections(base, arguments)
    fields = {f"{NAME}.{leaf.path}": leaf.value for leaf in walk_fields(named)}
    _check_paths(fields, arguments)
    arguments = _keep_last_values(fields, arguments)
    values = flags.FlagValues()
    with explain_flag_errors(values):
        flags_before_dashes = ["", *before_dashes(arguments)]
        config_flags.DEFINE_config_dict(
            NAME, config.to_config_dict(named), "Fields.", values, sys_argv=flags_before_dashes
        )
        _, *rest = values(["", *arguments], known_only=True)
    changes = config_flags.get_override_values(values[NAME])
    config.allow_modules(config.dotted_names(changes))
    shorten_warmup(values.config, changes)
    changed = runs.parse_config(values.config)
    return Overridden(changed, changes, rest)


def _keep_last_values(fields: Mapping[str, Any], arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that set fields in the form --config.field=value, each field once, and the rest.

    `fields` are {path: value} of the config before the changes.

    ml_collections would add up the values of a field with several values.
    """
    before, rest = before_dashes(arguments), []
    last: dict[str, str] = {}
    remaining = iter(before)
    for argument in remaining:
        name, equals, _ = argument.partition("=")
        if not argument.startswith(OVERRIDES):
            rest.append(argument)
            continue
        field = name.lstrip("-").removeprefix("no")
        needs_value = not equals and not isinstance(fields[field], bool)
        value = next(remaining, None) if needs_value else None
        last.pop(field, None)  # a value that is set again moves to the end
        last[field] = argument if value is None else f"{argument}={value}"
    return [*last.values(), *rest, *arguments[len(before) :]]


def shorten_warmup(config: config_dict.ConfigDict, fields: Collection[str]) -> None:
    """Shortens a warm-up for which --config.training.steps leaves no time, and logs the change.

    The warm-up becomes a tenth of the steps, at least 1, and the peak of the learning rate stays the same. A
    warm-up or a scale from the command line stays as it is. Without training.steps in `fields`, nothing
    changes.

    Args:
      config: the config with the fields of the command line. Its warm-up changes.
      fields: paths of the fields that the command line sets.
    """
    training = config.training
    old, scale = training.warmup_steps, training.learning_rate_scale
    is_wanted = "training.steps" in fields and "training.warmup_steps" not in fields
    if not is_wanted or training.steps < 1 or old < training.steps:
        return
    training.warmup_steps = max(1, training.steps // 10)
    depends = training.peak_learning_rate is None  # the peak of the paper's rule depends on the warm-up
    scaled = ""
    if depends and "training.learning_rate_scale" not in fields:
        training.learning_rate_scale = scale * (training.warmup_steps / old) ** 0.5
        scaled = f" and training.learning_rate_scale {training.learning_rate_scale:.4g}"
    log.info(
        "The warm-up of %s steps is too long for %s steps. training.warmup_steps is now %s%s. "
        "--config.training.warmup_steps sets another warm-up.",
        *(f"{old:,}", f"{training.steps:,}", training.warmup_steps, scaled),
    )


def _replace_named_sections(base: Any, arguments: Sequence[str]) -> Any:
    """Returns a config whose sections have the names that the arguments give them, the outer ones first."""
    names, values = config.section_names(base), flags.FlagValues()
    for path in names:
        flags.DEFINE_string(f"{NAME}.{path}", None, "", values)
    with explain_flag_errors(values):
        values(["", *arguments], known_only=True)
    for path, old in names.items():
        new = values[f"{NAME}.{path}"].value
        if new not in (None, old):
            config.allow_modules(filter(config.is_dotted, [new]))
            replaced = _replace_section(base, path.split(".")[:-1], new, f"{NAME}.{path}")
            return _replace_named_sections(replaced, arguments)
    return base


def _replace_section(outer: Any, path: Sequence[str], name: str, flag: str) -> Any:
    """Returns a config with the defaults of another name in the section at a path.

    Args:
      outer: the config, or a section of it.
      path: names of the sections that lead from `outer` to the section to replace.
      name: the new name of the section.
      flag: the flag that sets the name, without its dashes, for messages.
    """
    old = getattr(outer, path[0])
    if len(path) > 1:
        return dataclasses.replace(outer, **{path[0]: _replace_section(old, path[1:], name, flag)})
    new = config.defaults_of_name(outer, path[0], name, flag.removesuffix(".name"))
    shared = _shared_fields(outer, path[0], new)
    if shared:
        defaults = config.defaults_of_name(outer, path[0], old.name, "")
        changed = {field for field in shared if getattr(old, field) != getattr(defaults, field)}
        new = dataclasses.replace(new, **{field: getattr(old, field) for field in changed})
    else:
        log.info(
            "%s=%s: the settings of the config for %s are dropped. Fields that no flag sets have the "
            "defaults of %s.",
            *(flag, name, old.name, name),
        )
    return dataclasses.replace(outer, **{path[0]: new})


def _shared_fields(outer: Any, section: str, new: Any) -> set[str]:
    """Returns the fields that a section of `outer` and its replacement have from the config of one name.

    For example, two models that extend the Transformer's config share its fields. Sections that only share a
    base without a name of its own share nothing, because they are different models or optimizers.
    """
    common = next(kind for kind in type(getattr(outer, section)).__mro__ if isinstance(new, kind))
    name = getattr(common, "name", "")
    if not name or type(config.defaults_of_name(outer, section, name, "")) is not common:
        return set()
    return {field.name for field in dataclasses.fields(common)} - {"name"}


def _check_paths(fields: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raises a UserError if an argument sets a field that does not exist, or a whole section.

    A value for a whole section would reset its other fields.
    """
    for argument in before_dashes(arguments):
        flag = argument.lstrip("-").partition("=")[0]
        name = flag.removeprefix("no")
        if not argument.startswith(OVERRIDES) or flag in fields or isinstance(fields.get(name), bool):
            continue
        if name in fields:
            raise UserError(f"--{flag} is only for fields that are true or false. Use --{name}=value.")
        if inside := [path for path in fields if path.startswith(f"{name}.")]:
            first = next((path for path in inside if path.endswith(".name")), inside[0])
            raise UserError(f"{name} is a section. Set its fields one by one, such as --{first}=value.")
        section, _, last = name.rpartition(".")
        siblings = [path.rpartition(".")[2] for path in fields if path.rpartition(".")[0] == section]
        hint = suggest(last, siblings) if siblings else suggest(name, fields)
        raise UserError(f"{name} does not exist; {hint}")
