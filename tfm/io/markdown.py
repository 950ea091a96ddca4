"""Tables in Markdown that show every text as it is."""

import html
import re
from collections.abc import Iterable, Sequence

FORMATTING = re.compile(r"([\\`*_~\[|])")  # characters that Markdown reads as formatting within a line
LINK_SIGNS = re.compile(r":(?=//)|(?<=www)\.|@", re.IGNORECASE)  # GitHub turns addresses into links


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table, a line for the head and a line for each row. The last line has no line end."""
    lines = [[format_cell(text) for text in cells] for cells in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def format_cell(text: str) -> str:
    """Returns a text on one line of a Markdown table that shows it as it is, also "<unk>" or "2*3*4"."""
    line = html.escape(" ".join(text.split()), quote=False)
    return LINK_SIGNS.sub(lambda sign: f"&#{ord(sign[0])};", FORMATTING.sub(r"\\\1", line))
