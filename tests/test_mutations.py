"""Tests of handwritten and generated mutations and of the selection of their tests."""

import ast
import json
import subprocess
import sys

import coverage
import pytest

from tests.mutations import choose, generate, run
from tests.support.paths import ROOT

SOURCE = b'''"""A docstring with 1 number."""
LIMIT = 3


def pick(values: list[int], first: int = 2, *, strict=False):
    """Picks with a constant."""
    if strict and "\xc3\xbc":
        raise ValueError(f"at least {first + 1}")
    return sorted(values, reverse=True, key=abs) if values else [0]


def declare(first=5): ...


PAIRS = zip("a", "b", strict=LIMIT)
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
                "def declare(first=6): ...",
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
def test_every_kind_of_mutation_changes_only_its_kind_of_code(kind, lines):
    assert changed_lines(kind) == lines


def test_every_mutant_of_the_project_is_valid_python():
    for mutation in run.generated_mutations(300, seed=0):
        ast.parse(mutation.content)
        assert mutation.lines, mutation.description
        assert mutation.content != (ROOT / mutation.path).read_bytes(), mutation.description


def test_mutations_depend_only_on_the_seed():
    one, again, other = (generate.sample_edits({"a.py": SOURCE}, 5, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert len({edit.kind for _, edit in one}) == 5


def test_every_handwritten_mutation_fits_its_file_once():
    mutations = run.read_mutations()
    assert len({mutation.description for mutation in mutations}) == len(mutations)
    for mutation in mutations:
        ast.parse(mutation.content)
        assert mutation.content != (ROOT / mutation.path).read_bytes()


def test_tests_of_handwritten_mutations_exist():
    for test in {test for mutation in run.read_mutations() for test in mutation.tests}:
        file, _, name = test.partition("::")
        name = name.partition("[")[0]
        kind = "class" if name.startswith("Test") else "def"
        assert f"{kind} {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Returns records of tfm/a.py. Lines 1 and 2 run at import, and line 7 in a shared fixture."""
    lines = {
        "": {"a.py": [1, 2]},
        "tests/test_a.py::test_beside": {"a.py": [1, 2]},
        "tests/test_a.py::test_cheap": {"a.py": [5]},
        "tests/test_a.py::test_costly": {"a.py": [5]},
        "tests/test_b.py::test_broad": {"a.py": [5, 6], "b.py": [1], "c.py": [1], "d.py": [1]},
        "fixture tests/x::made": {"a.py": [7]},
    }
    data = coverage.CoverageData(basename=tmp_path / "lines")
    for context, files in lines.items():
        data.set_context(context)
        data.add_lines({f"/elsewhere/tfm/{name}": numbers for name, numbers in files.items()})
    data.write()
    rows = [  # (name, seconds, fixtures)
        ("fixture tests/x::made", 3, []),
        ("tests/x/test_x.py::test_user", 1, ["made"]),
        ("tests/y/test_y.py::test_user_of_another_fixture", 1, ["made"]),
        ("tests/test_a.py::test_cheap", 1, []),
        ("tests/test_a.py::test_beside", 1, []),
        ("tests/test_a.py::test_costly", 30, []),
        ("tests/test_b.py::test_broad", 2, []),
    ]
    text = [json.dumps(dict(zip(("name", "seconds", "fixtures"), row, strict=True))) for row in rows]
    (tmp_path / "times-1.jsonl").write_text("\n".join(text), encoding="utf-8")
    (tmp_path / "tfm").mkdir()
    (tmp_path / "tfm" / "a.py").write_text(
        "A = 1\nB = 2\n\ndef f():\n    return 5\n    return 6\n    return 7\n"
    )
    monkeypatch.setattr(choose, "FOLDER", tmp_path)
    monkeypatch.setattr(choose, "ROOT", tmp_path)
    choose.read.cache_clear()
    yield
    choose.read.cache_clear()


def choose_names(*lines):
    chosen = choose.choose_tests("tfm/a.py", lines)
    count = len(choose.ALWAYS)
    assert tuple(chosen[:count]) == choose.ALWAYS
    return [test.rpartition("::")[2] for test in chosen[count:]]


def test_cheap_tests_that_execute_little_else_come_first(recorded):
    assert choose_names(5) == ["test_cheap", "test_broad", "test_costly", "test_beside", "test_user"]
    assert choose_names(6)[0] == "test_broad"


def test_line_of_a_shared_fixture_is_tested_by_all_tests_that_use_it(recorded):
    assert choose_names(7)[0] == "test_user"
    assert "test_user_of_another_fixture" not in choose_names(7)


def test_line_that_runs_at_import_is_tested_by_the_tests_of_its_file(recorded):
    assert choose_names(2) == ["test_cheap", "test_user", "test_broad", "test_costly"]


def test_quick_tests_and_tests_with_words_of_the_lines_come_first():
    """Only the first case of a slow test comes before other slow tests."""
    ranks = {"a::test_one[x]": (0, 1.0), "a::test_one[y]": (0, 2.0), "a::test_two": (0, 3.0)}
    ranks |= {"a::test_deep_norm": (0, 9.0), "a::test_norm_of_another_file": (1, 0.0)}
    mutated = choose.words_of("    return self.apply_DeepNorm(one)")
    assert mutated == {"apply", "deep", "norm", "one"}
    for seconds, expected in (
        (0.1, ["deep_norm", "one[x]", "one[y]", "two", "norm_of_another_file"]),
        (2.0, ["deep_norm", "one[x]", "two", "one[y]", "norm_of_another_file"]),
    ):
        found = choose.order(ranks, dict.fromkeys(ranks, seconds), mutated)
        assert found == [f"a::test_{name}" for name in expected]
    found = choose.order(ranks, dict.fromkeys(ranks, 0.1) | {"a::test_deep_norm": 2.0}, mutated)
    assert found.index("a::test_deep_norm") == 3


def test_tests_are_chosen_up_to_a_limit_of_time(recorded, monkeypatch):
    monkeypatch.setattr(choose, "SECONDS", 7.5)
    assert choose_names(5) == ["test_cheap", "test_broad", "test_beside"]
    monkeypatch.setattr(choose, "SECONDS", 0.5)
    assert choose_names(5) == ["test_cheap"]


def test_only_exit_code_1_is_a_kill(tmp_path):
    codes = {"passes": "assert True", "fails": "assert False", "ends": "import os; os._exit(3)"}
    for name, statement in codes.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {statement}\n", encoding="utf-8")
    (tmp_path / "test_cannot_be_imported.py").write_text("1 / 0\n", encoding="utf-8")
    files = [f"test_{name}.py" for name in (*codes, "cannot_be_imported", "is_missing")]
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
    passes, fails, ends, cannot_be_imported, is_missing = map(int, shown.stdout.split())
    assert (passes, fails, ends, cannot_be_imported) == (run.SURVIVED, run.KILLED, 3, run.KILLED)
    assert is_missing not in run.VERDICTS


def test_handwritten_rows_are_plain_data():
    for line in run.HANDWRITTEN.read_text(encoding="utf-8").splitlines():
        assert json.loads(line).keys() == {"path", "old", "new", "tests"}
