"""Tables in Markdown that show every text as it is."""

import html
import re
from collections.abc import Iterable, Sequence

FORMATTING = re.compile(r"([\\`*_\[|])")  # characters that Markdown reads as formatting within a line


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table, a line for the head and a line for each row. The last line has no line end."""
    lines = [[format_cell(text) for text in cells] for cells in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def format_cell(text: str) -> str:
    """Returns a text on one line of a Markdown table that shows it as it is, also "<unk>" or "2*3*4"."""
    return FORMATTING.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
