"""The lines on which the symbols of a Python file begin.

Links of the docs name symbols, such as `../tfm/masks.py#causal_mask`, because line numbers change often.
"""

import ast


def symbol_lines(text: str) -> dict[str, int]:
    """Returns the line on which each function, class and method begins, by its qualified name."""
    lines: dict[str, int] = {}

    def visit(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                lines.setdefault(prefix + node.name, node.lineno)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(text).body, "")
    return lines
