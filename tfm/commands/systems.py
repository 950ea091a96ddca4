"""Prints the systems of the family, oldest first: tfm systems

For each system: its year, the parameters of the published size, the lines of code of its model and task, the
config that trains a small version, its score, the CPU seconds of its training on two cores, its data, and the
change against the systems before.
"""

import ast

from tfm.commands.command import command
from tfm.commands.list import format_table
from tfm.commands.options import Systems
from tfm.family import SYSTEMS, System

COLUMNS = ("system", "year", "parameters", "lines", "config", "score", "seconds", "data", "change")


@command
def main(options: Systems) -> None:
    """Prints the table."""
    del options
    cells = map(make_cells, SYSTEMS)
    rows = [[of_system[column] for column in COLUMNS] for of_system in cells]
    print("\n".join(format_table([COLUMNS, *rows])))


def make_cells(system: System) -> dict[str, str]:
    """Returns the texts of a system for tables, {column: text}. A number that is unknown is empty."""
    return {
        "system": f"{system.title} ({system.authors})",
        "year": str(system.year),
        "parameters": _format_number(system.parameters),
        "lines": _format_number(sum(count_lines(path.read_text(encoding="utf-8")) for path in system.files)),
        "config": system.config,
        "score": system.score,
        "seconds": _format_number(system.seconds),
        "data": system.data,
        "change": system.change,
    }


def count_lines(source: str) -> int:
    """Returns the number of lines of Python code, without blank lines, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in docstrings for number, line in lines)


def _format_number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
