"""Tests that every field of every config has an observable effect.

With another value of the field, the traced program, the data or the files of a run differ. Code that drops an
argument, ignores a field or uses its default fails these tests. The other value follows from the type and the
allowed values of the field. Only paths, names and patterns are listed, in `VALUES` of the module that
describes the section, see `tests.wiring.cases`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.wiring.case import Case, Observation
from tests.wiring.cases import CASES, MODULES, VALUES, write_data
from tfm import models, tasks
from tfm.config import find_problem, hints_of, info_of, to_config_dict, value_class, walk_fields
from tfm.errors import UserError
from tfm.family import MODELS, TASKS
from tfm.training.optimizers import OPTIMIZERS
from tfm.workdir.runs import parse_config

pytestmark = pytest.mark.long
PLACE = "the wiring.py of its task or system, see tests/wiring/cases.py"
BY_NAME = ("task", "name")  # fields that select a class, see the last test


CONFIGS = {name: tasks.find(name).Config() for name in TASKS}
MODEL_CONFIGS = [models.find(name).Config() for name in MODELS]
OPTIMIZER_CONFIGS = [optimizer() for optimizer in OPTIMIZERS.values()]
ALL_CONFIGS = (*CONFIGS.values(), *MODEL_CONFIGS, *OPTIMIZER_CONFIGS)
LEAVES = [leaf for config in ALL_CONFIGS for leaf in walk_fields(config)]
FIELDS = list(dict.fromkeys((type(leaf.section), leaf.path.rpartition(".")[2]) for leaf in LEAVES))


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory):
    """Creates a folder in which the observers read and write files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("wiring"))
        write_data()
        yield


@functools.cache
def observe(observer: Callable, section: Any) -> Observation:
    """Observes a section. An error of the code that reads the section is an observation, too."""
    try:
        return observer(section)
    except UserError as error:
        return {"error": str(error)}


def other_values(section: Any, name: str) -> Iterator[Any]:
    """Yields valid values of a field that differ from the value in the section."""
    field = next(each for each in dataclasses.fields(section) if each.name == name)
    value, hint = getattr(section, name), hints_of(type(section))[name]
    kind = value_class(hint)
    if name in VALUES.get(type(section), {}):
        candidates = [VALUES[type(section)][name]]
    elif info_of(field).choices:
        candidates = list(info_of(field).choices)
    elif kind is bool:
        candidates = [not value]
    elif kind is int:
        near = [value + 1, 2 * value, value - 1, value // 2] if value is not None else [1, 2]
        candidates = [*near, info_of(field).minimum]
    elif kind is float:
        candidates = [0.25, 0.5, 1.5] if not value else [value / 2, 2 * value, value / 10]
    else:
        candidates = []
    for candidate in candidates:
        if candidate != value and not find_problem(candidate, hint, info_of(field), name):
            yield candidate


def effects(section: Any, name: str, observer: Callable) -> Iterator[bool]:
    """Yields for each valid value of a field whether the observation differs."""
    for value in other_values(section, name):
        try:
            other = dataclasses.replace(section, **{name: value})
        except UserError:  # the value does not fit the other fields
            continue
        yield observe(observer, other) != observe(observer, section)


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=[f"{kind.__module__}.{kind.__name__}.{name}" for kind, name in FIELDS]
)
def test_every_field_has_an_effect(kind, name):
    if name in BY_NAME and not VALUES.get(kind, {}).get(name):
        pytest.skip("the field selects the class of its section")
    cases = [case for case in CASES if type(case.section) is kind]
    assert cases, f"Add a tiny {kind.__name__} with an observer to CASES of {PLACE}."
    assert any(True for case in cases for _ in other_values(case.section, name)), (
        f"Add another value of {kind.__name__}.{name} to VALUES of {PLACE}, "
        "because its type does not imply one."
    )
    assert any(effect for case in cases for effect in effects(case.section, name, case.observe)), (
        f"No code that was observed reads {kind.__name__}.{name}. If another field turns it on, add a case "
        f"with that field to CASES of {PLACE}."
    )


def test_values_name_only_fields_that_exist():
    assert {(kind, name) for kind, values in VALUES.items() for name in values} <= set(FIELDS)


def test_only_one_module_has_the_values_of_a_section():
    assert len(VALUES) == sum(len(module.VALUES) for module in MODULES)


def name_case(case: Case) -> str:
    return f"{type(case.section).__name__}-{case.observe.__name__}"


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_repeated_observations_are_equal(case):
    """Otherwise, a difference would not prove an effect of the field."""
    assert "error" not in observe(*reversed(case))
    assert observe(*reversed(case)) == case.observe(case.section)


def test_names_select_the_classes_of_sections():
    for config in CONFIGS.values():
        assert parse_config(to_config_dict(config)) == config
    base = CONFIGS["translation"]
    for optimizer in OPTIMIZER_CONFIGS:
        training = dataclasses.replace(base.training, optimizer=optimizer)
        config = dataclasses.replace(base, training=training)
        assert parse_config(to_config_dict(config)) == config
