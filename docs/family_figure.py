"""Draws the lineage of the systems of tfm/family.py, and prints the table of docs/family.md.

    python docs/family_figure.py > TABLE

Writes docs/figures/family.svg. Each box leads to the page on its system.
"""

import os
import pathlib
from collections.abc import Sequence
from html import escape

from tfm.commands.systems import make_cells
from tfm.family import AREAS, SYSTEMS, System

DOCS = pathlib.Path(__file__).parent
COLUMNS = ("system", "year", "change", "parameters", "config", "score", "seconds")  # of the table
LEFT, COLUMN, WIDTH, ROW, HEIGHT = 34, 126, 102, 46, 36  # of the 390 units of the width


def main() -> None:
    """Writes the figure, and prints the table."""
    (DOCS / "figures" / "family.svg").write_text(draw(SYSTEMS), encoding="utf-8")
    print(make_table(SYSTEMS))


def make_table(systems: Sequence[System]) -> str:
    """Returns the table of docs/family.md. The name of a system leads to its page."""
    rows = []
    for system in systems:
        cells = make_cells(system)
        rows.append([f"[{cells['system']}]({find_page(system)})", *(cells[name] for name in COLUMNS[1:])])
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def find_page(system: System) -> str:
    """Returns the page of a system, relative to docs/."""
    return os.path.relpath(system.page, "docs")


def draw(systems: Sequence[System]) -> str:
    """Returns the figure as SVG."""
    places = {
        system.name: (LEFT + COLUMN * AREAS.index(system.area), 30 + ROW * row)
        for row, system in enumerate(systems)
    }
    parents = list(dict.fromkeys(parent for system in systems for parent in system.after))
    lines = []
    boxes = []
    for system in systems:
        x, y = places[system.name]
        for parent in system.after:
            lines.append(draw_line(places[parent], (x, y), 4 + 4 * (parents.index(parent) % 5)))
        boxes.append(draw_box(system, x, y))
    heads = [
        f'<text x="{LEFT + COLUMN * column + WIDTH / 2}" y="16" fill="#777">{head}</text>'
        for column, head in enumerate(AREAS)
    ]
    height = 30 + ROW * len(systems)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 390 {height}" font-family="sans-serif" '
            'font-size="10" text-anchor="middle" role="img" aria-label="The family of the Transformer">',
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" '
            'orient="auto"><path d="M0 0L10 5L0 10z" fill="#888"/></marker></defs>',
            *heads,
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def draw_box(system: System, x: int, y: int) -> str:
    """Returns a box with the name of a system, and its year at the left margin."""
    first, second = split(system.title)
    middle = x + WIDTH / 2
    texts = [(middle, y + 17 if second else y + 23, first), (middle, y + 30, second)]
    labels = "".join(f'<text x="{left}" y="{top}">{escape(text)}</text>' for left, top, text in texts if text)
    title = f"{system.title} ({system.authors}): {system.change}"
    return "\n".join(
        [
            f'<a href="../{find_page(system)}">',
            f"<title>{escape(title)}</title>",
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#8882" stroke="#888"/>',
            f'<g fill="currentColor">{labels}</g>',
            "</a>",
            f'<text x="16" y="{y + 23}" fill="#777">{system.year}</text>',
        ]
    )


def split(name: str) -> tuple[str, str]:
    """Splits a name into two lines of a box."""
    words = name.split()
    if len(name) <= 18:
        return name, ""
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(" ".join(words[i:]))))
    return " ".join(words[:cut]), " ".join(words[cut:])


def draw_line(start: tuple[int, int], end: tuple[int, int], offset: int) -> str:
    """Returns an arrow from a box to a later box, `offset` from the later box where it passes other boxes."""
    (x, y), (to_x, to_y) = start, end
    # Lines in one column pass by the boxes between them in the gap at the right.
    if x == to_x and to_y - y > ROW:
        side = x + WIDTH
        path = f"M{side} {y + HEIGHT / 2}H{side + offset}V{to_y + HEIGHT / 2 - 4}H{side}"
    elif x == to_x:
        path = f"M{x + WIDTH / 2} {y + HEIGHT}V{to_y}"
    elif to_x > x:  # begins below the place where an arrow from the right would end
        path = f"M{x + WIDTH} {y + HEIGHT / 2 + 6}H{to_x - offset}V{to_y + HEIGHT / 2}H{to_x}"
    else:
        right = to_x + WIDTH
        path = f"M{x} {y + HEIGHT / 2}H{right + offset}V{to_y + HEIGHT / 2}H{right}"
    return f'<path d="{path}" fill="none" stroke="#888" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    main()
