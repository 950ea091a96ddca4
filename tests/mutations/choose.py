"""The tests that should notice a mutation, by the lines that each test executed when it was recorded."""

import ast
import collections
import functools
import json
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from coverage.numbits import numbits_to_nums

from tests.mutations.record import FOLDER
from tests.support.paths import ROOT

EXECUTES_LINES, IS_BESIDE, EXECUTES_FILE = range(3)
# Tests that read the code, or compare values that any test may have executed by an import.
ALWAYS = (
    "tests/wiring/test_defaults.py",
    "tests/test_architecture.py::test_text_files_are_opened_with_an_encoding",
)
SECONDS = 150.0  # of a processor, for the tests of one mutation
SLOW_SECONDS = 1.0  # of a processor, for a single test
KEYWORDS = {
    "and",
    "def",
    "else",
    "false",
    "for",
    "none",
    "not",
    "return",
    "self",
    "test",
    "tests",
    "the",
    "true",
}


class Recorded(NamedTuple):
    """What `tests.mutations.record` wrote.

    Attributes:
      database: the lines of each test and shared fixture, see coverage.py's "Database schema".
      seconds: the time of each test and shared fixture.
      fixtures: the shared fixtures of each test, as they are named in `seconds`.
      breadth: the number of files that each test or fixture executes.
    """

    database: sqlite3.Connection
    seconds: dict[str, float]
    fixtures: dict[str, list[str]]
    breadth: dict[str, int]

    def users(self, name: str) -> Iterator[str]:
        """Yields a test, or the tests that use a shared fixture."""
        if name in self.fixtures:
            yield name
        yield from (test for test, fixtures in self.fixtures.items() if name in fixtures)

    def cost(self, test: str) -> float:
        """Returns the seconds that a test takes alone."""
        return self.seconds[test] + sum(self.seconds[fixture] for fixture in self.fixtures[test])


@functools.cache
def read() -> Recorded:
    """Reads the folder of the records.

    Raises:
      FileNotFoundError: if nothing was recorded.
    """
    if not (FOLDER / "lines").exists():
        raise FileNotFoundError(f"{FOLDER} has no records: run `python -m tests.mutations.record` first.")
    database = sqlite3.connect(FOLDER / "lines")
    rows = [
        json.loads(line) for path in FOLDER.glob("times-*") for line in path.read_text("utf-8").splitlines()
    ]
    seconds = {row["name"]: row["seconds"] for row in sorted(rows, key=lambda row: row["seconds"])}
    shared = collections.defaultdict(list)
    for name in seconds:
        if name.startswith("fixture "):
            shared[name.rpartition("::")[2]].append(name)
    fixtures = {
        row["name"]: [
            fixture
            for name in row["fixtures"]
            for fixture in shared[name]
            if row["name"].startswith(fixture.removeprefix("fixture ").rpartition("::")[0])
        ]
        for row in rows
        if not row["name"].startswith("fixture ")
    }
    counts = (
        "SELECT context, COUNT(*) FROM line_bits JOIN context ON context.id = context_id GROUP BY context"
    )
    return Recorded(database, seconds, fixtures, dict(database.execute(counts)))


def function_lines(path: str) -> set[int]:
    """Returns the lines of a file that run when a function is called, not when the module is imported."""
    tree = ast.parse((ROOT / path).read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    bodies = [node.body if isinstance(node.body, list) else [node.body] for node in functions]
    return {line for body in bodies for line in range(body[0].lineno, (body[-1].end_lineno or 0) + 1)}


def words_of(text: str) -> set[str]:
    """Returns the words of at least three letters in names such as `deep_norm` or `DeepNorm`."""
    return {word.lower() for word in re.findall("[A-Z]?[a-z]{2,}", text) if len(word) > 2} - KEYWORDS


def choose_tests(path: str, lines: Collection[int]) -> list[str]:
    """Returns the tests that may notice a mutation of lines of a file, up to a limit of time.

    The tests in `ALWAYS` come first. Then come the tests that execute the lines, the tests of the same
    test files, which may read what an earlier test left in a cache, and the tests that execute other lines of
    the file. Among them, quick tests come before slow tests, and one case of each slow test comes before its
    other cases. The tests whose names share words with the lines come first, and then cheap tests that
    execute few other files.

    Lines that run when a module is imported say nothing about a test, because any test may be the first to
    import the module. For such lines, all tests that call a function of the file come next.
    """
    recorded, calls = read(), function_lines(path)
    at_import = calls.isdisjoint(lines)
    query = """SELECT context, path, numbits FROM line_bits
               JOIN context ON context.id = context_id JOIN file ON file.id = file_id
               WHERE path LIKE ?"""
    ranks: dict[str, tuple[int, float]] = {}
    for name, measured, numbits in recorded.database.execute(query, [f"%{path}"]):
        executed = calls.intersection(numbits_to_nums(numbits))
        if executed and measured.endswith(path):  # LIKE reads an underscore as any character
            group = EXECUTES_FILE if at_import or executed.isdisjoint(lines) else EXECUTES_LINES
            for test in recorded.users(name):
                rank = group, recorded.breadth[name] * (0.05 + recorded.cost(test))
                ranks[test] = min(rank, ranks.get(test, rank))
    files = {test.partition("::")[0] for test, (group, _) in ranks.items() if group == EXECUTES_LINES}
    for test in recorded.fixtures:
        if test.partition("::")[0] in files:
            rank = IS_BESIDE, recorded.cost(test)
            ranks[test] = min(rank, ranks.get(test, rank))
    source = (ROOT / path).read_text(encoding="utf-8").splitlines()
    mutated = words_of(" ".join(source[line - 1] for line in lines))
    seconds = {test: recorded.cost(test) for test in ranks}
    chosen, left = [*ALWAYS], SECONDS
    for test in order(ranks, seconds, mutated):
        if seconds[test] <= left or len(chosen) == len(ALWAYS):
            chosen.append(test)
            left -= seconds[test]
    return chosen


def order(
    ranks: Mapping[str, tuple[int, float]], seconds: Mapping[str, float], mutated: set[str]
) -> list[str]:
    """Returns tests in the order of `choose_tests`.

    Args:
      ranks: {test: (group, cost)}.
      seconds: {test: seconds that it takes}.
      mutated: the words of the mutated lines.
    """
    cases = collections.Counter[str]()
    keys = {}
    for test in sorted(ranks, key=ranks.__getitem__):
        group, cost = ranks[test]
        function, is_slow = test.partition("[")[0], seconds[test] > SLOW_SECONDS
        case = cases[function] if is_slow else 0
        keys[test] = (group, is_slow, case, -len(words_of(test) & mutated), cost)
        cases[function] += 1
    return sorted(keys, key=keys.__getitem__)
