"""Tests that the defaults, ranges and rules of config fields and flags change only on purpose.

After an intended change, write defaults.txt again with `python -m tests.wiring.test_defaults`.
"""

import dataclasses
import pathlib
import pkgutil

from tfm import models, tasks
from tfm.commands.command import REQUIRED, flag_fields
from tfm.commands.options import OPTIONS
from tfm.config import info_of, walk_fields
from tfm.training.optimizers import OPTIMIZERS

FILE = pathlib.Path(__file__).with_name("defaults.txt")


def sections():
    """Returns the classes of all sections that a config can have."""
    found = {type(leaf.section) for name in names(tasks) for leaf in walk_fields(tasks.find(name).Config())}
    found |= {models.find(name).Config for name in names(models)} | set(OPTIMIZERS.values())
    return sorted(found, key=lambda cls: f"{cls.__module__}.{cls.__name__}")


def names(package):
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def field_lines():
    """Yields a line for each field of each section."""
    for section in sections():
        for field in dataclasses.fields(section):
            if field.default is not dataclasses.MISSING:
                module = section.__module__.removeprefix("tfm.")
                info = info_of(field)
                rules = [
                    info.resume.name,
                    info.unless,
                    info.asset,
                    "" if info.warm_start else "no warm start",
                ]
                text = f"{module}.{section.__name__}.{field.name} = {field.default!r} {info.unit}".rstrip()
                yield f"{text}  {info.expectation}  {', '.join(str(rule) for rule in rules if rule)}"


def flag_lines():
    """Yields a line for each flag of each command."""
    for command, options in OPTIONS.items():
        for name, field in sorted(flag_fields(options).items()):
            default = "required" if field.default is REQUIRED else repr(field.default)
            yield f"tfm {command} --{name} = {default}  {info_of(field).expectation}".rstrip()


def text():
    return "\n".join([*field_lines(), *flag_lines(), ""])


def test_defaults_ranges_and_rules_equal_the_recorded_ones():
    assert text() == FILE.read_text(encoding="utf-8")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
