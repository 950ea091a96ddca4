"""Tests that every field of every config has an observable effect.

The table has at least one entry for each field, with two values for which an observation differs. Code that
drops an argument, ignores a field or uses its default fails these tests. Each new field needs an entry.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.wiring import observers
from tests.wiring.entries import ENTRIES, TASKS, Entry
from tfm import models, tasks
from tfm.config import walk_fields
from tfm.training.optimizers import OPTIMIZERS

MODELS = ("transformer", "rnn_seq2seq", "rnn_luong", "decoder_lm", "vit")


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory):
    """Creates a folder in which the observers read and write files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("wiring"))
        observers.write_data()
        yield


@functools.cache
def observe(observer: Callable, section: Any) -> observers.Observation:
    """Observes a section. The result is cached, because several entries share a section."""
    return observer(section)


def show(entry: Entry) -> str:
    """Returns the name of a test."""
    module = entry.section.__module__.removeprefix("tfm.")
    return f"{module}.{entry.section.__name__}.{entry.name}-{entry.observe.__name__}"


@pytest.mark.parametrize("entry", ENTRIES, ids=show)
def test_every_field_has_an_effect(entry):
    first, second = (observe(entry.observe, entry.make(value)) for value in (entry.first, entry.second))
    for part in entry.parts:
        assert first[part] != second[part], f"{part} is the same for {entry.first!r} and {entry.second!r}"


@pytest.mark.parametrize("entry", {entry.observe: entry for entry in ENTRIES}.values(), ids=show)
def test_repeated_observations_are_equal(entry):
    """Otherwise, a difference would not prove an effect of the field."""
    section = entry.make(entry.first)
    assert observe(entry.observe, section) == entry.observe(section)


def test_every_field_has_an_entry():
    configs = [tasks.find(name).Config() for name in TASKS]
    configs += [models.find(name).Config() for name in MODELS]
    configs += [optimizer() for optimizer in OPTIMIZERS.values()]
    fields = {
        (type(leaf.section), leaf.path.rpartition(".")[2]) for each in configs for leaf in walk_fields(each)
    }
    entries = {(entry.section, entry.name) for entry in ENTRIES}
    assert fields - entries == set(), "these fields have no entry"
    assert entries - fields == set(), "these entries have no field"
