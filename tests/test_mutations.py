"""The handwritten mutations fit the code, and the generated ones are what they say."""

import ast
import json
import subprocess
import sys

import pytest

from tests.mutations import generate, run
from tests.support.paths import ROOT

SOURCE = b'''"""A docstring with 1 number."""
LIMIT = 3


def pick(values: list[int], first: int = 2, *, strict=False):
    """Picks with 4."""
    if strict and "\xc3\xbc":
        raise ValueError(f"at least {first + 1}")
    return sorted(values, reverse=True, key=abs) if values else [0]
'''


def mutate(kind):
    return {edit.apply(SOURCE).decode() for edit in generate.list_edits(SOURCE) if edit.kind == kind}


def changed_lines(kind):
    """Returns the lines of all mutants of a kind that the source does not have."""
    source = SOURCE.decode().splitlines()
    return {line.strip() for text in mutate(kind) for line in text.splitlines() if line not in source}


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "constant",
            {
                "LIMIT = 4",
                "def pick(values: list[int], first: int = 3, *, strict=False):",
                "def pick(values: list[int], first: int = 2, *, strict=True):",
                "return sorted(values, reverse=False, key=abs) if values else [0]",
                "return sorted(values, reverse=True, key=abs) if values else [1]",
            },
        ),
        (
            "dropped keyword",
            {
                "return sorted(values, key=abs) if values else [0]",
                "return sorted(values, reverse=True) if values else [0]",
            },
        ),
        ("swapped branches", {"return ([0] if values else sorted(values, reverse=True, key=abs))"}),
        (
            "inverted condition",
            {
                "if (not (strict and 'ü')):",
                "return sorted(values, reverse=True, key=abs) if (not (values)) else [0]",
            },
        ),
        ("argument is its default", {"first = 2", "strict = False"}),
    ],
)
def test_each_kind_changes_what_it_names_and_nothing_else(kind, lines):
    assert changed_lines(kind) == lines


def test_every_mutant_of_the_project_is_valid_python():
    for mutation in run.generated_mutations(300, seed=0):
        ast.parse(mutation.content)
        assert mutation.tests, mutation.description
        assert mutation.content != (ROOT / mutation.path).read_bytes(), mutation.description


def test_a_seed_draws_the_same_mutations_again():
    one, again, other = (generate.sample_edits({"a.py": SOURCE}, 5, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert len({edit.kind for _, edit in one}) == 5


def test_each_handwritten_mutation_fits_its_file_once():
    mutations = run.read_mutations()
    assert len({mutation.description for mutation in mutations}) == len(mutations)
    for mutation in mutations:
        ast.parse(mutation.content)
        assert mutation.content != (ROOT / mutation.path).read_bytes()


def test_the_tests_of_handwritten_mutations_exist():
    groups = [group for mutation in run.read_mutations() for group in mutation.tests]
    for test in {test for group in groups for test in group}:
        file, _, name = test.partition("::")
        name = name.partition("[")[0]
        kind = "class" if name.startswith("Test") else "def"
        assert f"{kind} {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8"), test


def test_only_exit_code_1_is_a_kill(tmp_path):
    codes = {"passes": "assert True", "fails": "assert False", "ends": "import os; os._exit(3)"}
    for name, statement in codes.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {statement}\n", encoding="utf-8")
    files = [f"test_{name}.py" for name in (*codes, "is_missing")]
    # A process without threads, because the runner forks before it computes anything.
    program = "import sys; from tests.mutations.run import run_tests\n"
    program += "print(*(run_tests([file], sys.argv[1], sys.argv[1] + '/log') for file in sys.argv[2:]))"
    shown = subprocess.run(
        [sys.executable, "-c", program, tmp_path, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    passes, fails, ends, is_missing = map(int, shown.stdout.split())
    assert (passes, fails, ends) == (run.SURVIVED, run.KILLED, 3)
    assert is_missing not in run.VERDICTS


def test_handwritten_rows_are_plain_data():
    for line in run.HANDWRITTEN.read_text(encoding="utf-8").splitlines():
        assert json.loads(line).keys() == {"path", "old", "new", "tests"}
