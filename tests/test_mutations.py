"""The list of mutations still fits the code. To run them: python -m tests.support.mutations."""

import pathlib

import pytest

from tests.support.mutations import MUTATIONS, ROOT

LEAST = 60
PACKAGES = (
    "attention.py",
    "losses.py",
    "masks.py",
    "positions.py",
    "layers",
    "models",
    "search",
    "data",
    "training",
    "tasks",
)


@pytest.mark.long
def test_each_mutation_fits_its_file_once():
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in {each.path for each in MUTATIONS}}
    misfits = [
        str(each) for each in MUTATIONS if texts[each.path].count(each.old) != 1 or each.old == each.new
    ]
    assert not misfits
    for each in MUTATIONS:
        compile(each.apply(texts[each.path]), each.path, "exec")


def test_selected_tests_exist():
    for selection in {test for each in MUTATIONS for test in each.selection}:
        file, _, name = selection.partition("::")
        assert f"def {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8"), selection


def test_mutations_are_many_and_of_all_packages():
    assert len(set(MUTATIONS)) == len(MUTATIONS) >= LEAST
    assert {pathlib.PurePath(each.path).parts[1] for each in MUTATIONS} >= {*PACKAGES}
