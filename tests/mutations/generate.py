"""Mutations of five kinds at random places of a Python file, for `tests.mutations.run`."""

import ast
import copy
import random
from collections.abc import Iterator
from typing import NamedTuple

SKIPPED_CALLS = {"log", "warnings", "print"}  # their arguments are texts for people
TYPES = {"TypeVar", "cast"}  # calls that matter to type checkers only
CHECKS = {"strict"}  # keywords, of zip, that only turn a mistake elsewhere into an error


class Edit(NamedTuple):
    """A replacement of a part of a file. `start` and `end` are offsets in the bytes of the file."""

    kind: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Returns the source with the replacement."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def sample_edits(sources: dict[str, bytes], count: int, seed: int) -> list[tuple[str, Edit]]:
    """Draws edits of Python files. Each kind is equally likely, and each place of a kind as well.

    Args:
      sources: the content of each file by its path.
      count: number of edits.
      seed: the same seed draws the same edits.
    """
    by_kind: dict[str, list[tuple[str, Edit]]] = {}
    for path, source in sorted(sources.items()):
        for edit in list_edits(source):
            by_kind.setdefault(edit.kind, []).append((path, edit))
    rng = random.Random(seed)
    for edits in by_kind.values():
        rng.shuffle(edits)
    kinds = sorted(by_kind)
    drawn = [by_kind[kind].pop() for _, kind in zip(range(count), _cycle(kinds, by_kind), strict=False)]
    rng.shuffle(drawn)
    return drawn


def list_edits(source: bytes) -> Iterator[Edit]:
    """Yields all edits of a file that leave valid Python."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _walk(ast.parse(source)):
        for kind, place, new in _mutate(node):
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            if kind == "argument is its default":
                new, end = f"{new}\n{' ' * place.col_offset}", start
            yield Edit(kind, place.lineno, start, end, new)


def _mutate(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yields (kind, node to replace, new text) for the mutations of a node itself."""
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield "constant", node, str(_change(node.value))
    if isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None and not _is_check(keyword):
                call = copy.deepcopy(node)
                del call.keywords[i]
                yield "dropped keyword", node, ast.unparse(call)
    if isinstance(node, ast.IfExp):
        swapped = ast.IfExp(node.test, node.orelse, node.body)
        yield "swapped branches", node, f"({ast.unparse(swapped)})"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "inverted condition", node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.FunctionDef) and node.body:
        yield from _default_arguments(node)


def _change(value: bool | int | float) -> bool | int | float:
    """Returns another constant. One more would be nothing to a large number."""
    if isinstance(value, bool):
        return not value
    return value + 1 if abs(value) < 1e6 else 2 * value


def _default_arguments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, str]]:
    """Yields, for each argument with a default, an assignment of the default before the first statement."""
    first, *rest = function.body
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = rest if is_docstring else function.body
    if not body or ast.unparse(body[0]) == "...":  # a method of a protocol
        return
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    names = positional[len(positional) - len(arguments.defaults) :] + arguments.kwonlyargs
    for name, default in zip(names, [*arguments.defaults, *arguments.kw_defaults], strict=True):
        if default is not None:
            yield "argument is its default", body[0], f"{name.arg} = {ast.unparse(default)}"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a tree, except annotations, decorators, messages, checks and types."""
    yield node
    skipped: list[ast.AST] = [*getattr(node, "decorator_list", [])]
    skipped += [x for name in ("annotation", "returns") if (x := getattr(node, name, None)) is not None]
    for child in ast.iter_child_nodes(node):
        if child not in skipped and not _is_for_people(child) and not _is_check(child):
            yield from _walk(child)


def _is_check(node: ast.AST) -> bool:
    """Returns whether a node is a keyword argument that only turns a mistake elsewhere into an error."""
    return isinstance(node, ast.keyword) and node.arg in CHECKS


def _is_for_people(node: ast.AST) -> bool:
    """Returns whether a statement only raises, logs, prints or serves type checkers."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in TYPES:
        return True
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return called is not None and ast.unparse(called).partition(".")[0] in SKIPPED_CALLS


def _cycle(kinds: list[str], remaining: dict[str, list]) -> Iterator[str]:
    """Yields the kinds in turn while they have edits."""
    while any(remaining.values()):
        for kind in kinds:
            if remaining[kind]:
                yield kind
