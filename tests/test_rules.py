"""Tests of the rules for tests: their imports, private names and early returns."""

import ast
from collections.abc import Iterator

from tests.support.paths import ROOT

TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests").rglob("*.py"))
}
PUBLIC = {
    "_replace",
    "_asdict",
    "_fields",
    "_exit",
    "_split_generators",
    "_repr_html_",
}  # public names of libraries


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yields the full name of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def used_names(tree: ast.AST) -> Iterator[str]:
    """Yields imported names, attributes of anything except `self`, and texts that are passed to `setattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
            yield node.attr
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            yield from (str(x.value) for x in node.args if isinstance(x, ast.Constant))


def early_returns(tree: ast.AST) -> Iterator[str]:
    """Yields the names of tests that contain a return statement outside the functions that they define."""
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            inner = [x for x in ast.walk(test) if isinstance(x, ast.FunctionDef) and x is not test]
            allowed = {x for function in inner for x in ast.walk(function)}
            yield from (test.name for x in ast.walk(test) if isinstance(x, ast.Return) and x not in allowed)


def test_files_import_no_test_file():
    found = {
        name: [each for each in imported_modules(tree) if ".test_" in each] for name, tree in TREES.items()
    }
    assert not {name: modules for name, modules in found.items() if modules}


def test_tests_do_not_return_early():
    """Tests that cannot run are skipped with a reason instead."""
    found = {name: list(early_returns(tree)) for name, tree in TREES.items()}
    assert not {name: tests for name, tests in found.items() if tests}


def test_tests_use_no_private_names():
    found = {
        name: {x for x in used_names(tree) if x.startswith("_") and not x.startswith("__")} - PUBLIC
        for name, tree in TREES.items()
    }
    assert not {name: names for name, names in found.items() if names}
