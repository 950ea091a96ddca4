"""Prints the systems of the family, oldest first: tfm systems

For each system: its year, the parameters of the published size, the lines of code of its model and task, the
config that trains a small version, its score, the CPU seconds of its training on two cores, its data, and the
change against the systems before.
"""

import ast
import csv
import importlib.resources
import pathlib

from tfm.commands.command import command
from tfm.commands.list import format_table
from tfm.commands.options import Systems

COLUMNS = ("system", "year", "parameters", "lines", "config", "score", "seconds", "data", "change")


@command
def main(options: Systems) -> None:
    """Prints the table."""
    del options
    rows = [[system[column] for column in COLUMNS] for system in read_systems()]
    print("\n".join(format_table([COLUMNS, *rows])))


def read_systems() -> list[dict[str, str]]:
    """Returns the rows of tfm/systems.tsv, with the column "lines" for the code of the files."""
    package = importlib.resources.files("tfm")
    with package.joinpath("systems.tsv").open(encoding="utf-8") as file:
        systems = list(csv.DictReader(file, delimiter="\t"))
    root = pathlib.Path(str(package)).parent
    for system in systems:
        files = [path for name in system["files"].split() for path in _list_files(root / name)]
        system["lines"] = f"{sum(count_lines(path.read_text(encoding='utf-8')) for path in files):,}"
    return systems


def count_lines(source: str) -> int:
    """Returns the number of lines of Python code, without blank lines, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in docstrings for number, line in lines)


def _list_files(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns a file, or the Python files of a package."""
    return sorted(path.glob("*.py")) if path.is_dir() else [path]
