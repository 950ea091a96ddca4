"""Draws the lineage of the systems of tfm/family.py, and prints the table of docs/family.md.

    python docs/family_figure.py > TABLE

Writes docs/figures/family.svg. All years have the same height, and each box leads to the page of its
system. The figure has its own colours for text and boxes, so that it can be read on white and on black pages.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from tfm.commands.systems import make_cells
from tfm.family import AREAS, IMAGES, LANGUAGE, SEQUENCES, SYSTEMS, System

DOCS = pathlib.Path(__file__).parent
COLUMNS = ("system", "year", "change", "parameters", "config", "score", "seconds")  # of the table
# Units of the figure, as wide as a phone.
WIDTH, LEFT, YEAR, LINE = (
    390,
    34,
    40,
    12,
)  # the left edge of the boxes, the heights of a year and of a line of text
GAP = 6  # between a line that branches and the first box below it
# Horizontal middle and width of each box. The places are chosen by hand, so that no two lines cross.
PLACES = {
    "feed_forward_lm": (130, 92),
    "word2vec": (76, 64),
    "lstm_lm": (166, 88),
    "rnn_seq2seq": (312, 134),
    "memory_network": (340, 92),
    "conv_s2s": (76, 64),
    "transformer": (190, 76),
    "parsing": (322, 76),
    "universal": (68, 68),
    "t_dmca": (131, 46),
    "decoder_lm": (207, 76),
    "bert": (274, 40),
    "sagan": (350, 78),
    "vit": (240, 68),
    "detr": (303, 42),
    "dalle": (182, 50),
}
COLOURS = {
    LANGUAGE: ("#d5e8f4", "#0072b2"),
    SEQUENCES: ("#fbe2d0", "#d55e00"),
    IMAGES: ("#d2eee5", "#009e73"),
}
TEXT, FAINT = "#1b1b1b", "#808080"


class Box(NamedTuple):
    """The edges of a box."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """The point in the middle of the box."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


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
    years = range(systems[0].year, systems[-1].year + 1)
    boxes = place_boxes(systems)
    description = f"The lineage of {len(systems)} systems from {years[0]} to {years[-1]}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {YEAR * len(years)}" '
            'font-family="Arial, Helvetica, \'Liberation Sans\', sans-serif" font-size="10.5" '
            f'text-anchor="middle" role="img" aria-label="{description}">',
            f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{FAINT}"/></marker></defs>',
            *(draw_year(year, YEAR * row) for row, year in enumerate(years)),
            *(draw_area(area, 4 * YEAR + 24 * row) for row, area in enumerate(AREAS)),
            *(draw_line(line) for line in find_lines(systems).values()),
            *(draw_box(system, boxes[system.name]) for system in systems),
            "</svg>\n",
        ]
    )


def place_boxes(systems: Sequence[System]) -> dict[str, Box]:
    """Returns {name of a system: its box}. A box stands in the middle of its year."""
    boxes = {}
    for system in systems:
        x, width = PLACES[system.name]
        y = YEAR * (system.year - systems[0].year + 0.5)
        height = 6 + LINE * len(split(system.title))
        boxes[system.name] = Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return boxes


def find_lines(systems: Sequence[System]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Returns {(name of a system, name of a system after it): corners of the line between them}."""
    boxes = place_boxes(systems)
    lines = {}
    for parent in systems:
        start = boxes[parent.name]
        children = {system.name: boxes[system.name] for system in systems if parent.name in system.after}
        later = {name: child for name, child in children.items() if child.top > start.bottom}
        drawn = {name: _connect_sides(start, child) for name, child in children.items() if name not in later}
        drawn |= _drop(start, later) if len(later) == 1 else _branch(start, later)
        lines |= {(parent.name, name): line for name, line in drawn.items()}
    return lines


def _connect_sides(start: Box, end: Box) -> list[tuple[float, float]]:
    """Returns the horizontal line between two boxes of a year."""
    y = end.middle[1]
    return [(start.right, y), (end.left, y)] if end.left > start.right else [(start.left, y), (end.right, y)]


def _drop(start: Box, ends: Mapping[str, Box]) -> dict[str, list[tuple[float, float]]]:
    """Returns {name: line} of the only later box: a vertical line if the box is below `start`."""
    ((name, end),) = ends.items()
    x = end.middle[0]
    if not start.left < x < start.right:
        return _branch(start, ends)
    return {name: [(x, start.bottom), (x, end.top)]}


def _branch(start: Box, ends: Mapping[str, Box]) -> dict[str, list[tuple[float, float]]]:
    """Returns {name: line}. The lines have one stem, which branches above the first of the boxes `ends`.

    No part is drawn twice: each line begins where the line to the next box nearer to the stem turns down.
    """
    middle = start.middle[0]
    y = min((end.top for end in ends.values()), default=start.bottom) - GAP
    lines: dict[str, list[tuple[float, float]]] = {}
    for is_right in (False, True):
        side = {name: end for name, end in ends.items() if (end.middle[0] > middle) == is_right}
        corner = middle
        for name, end in sorted(side.items(), key=lambda item: abs(item[1].middle[0] - middle)):
            x = end.middle[0]
            stem = [] if lines else [(middle, start.bottom)]
            lines[name] = [*stem, (corner, y), (x, y), (x, end.top)]
            corner = x
    return lines


def draw_year(year: int, y: float) -> str:
    """Returns the number of a year and the line where the year begins."""
    return (
        f'<path d="M0 {y}H{WIDTH}" stroke="{FAINT}" stroke-opacity="0.2"/>'
        f'<text x="15" y="{y + YEAR / 2 + 4}" fill="{FAINT}">{year}</text>'
    )


def draw_area(area: str, y: float) -> str:
    """Returns the colour of an area and its name."""
    fill, stroke = COLOURS[area]
    return (
        f'<rect x="210" y="{y}" width="18" height="12" rx="3" fill="{fill}" stroke="{stroke}"/>'
        f'<text x="236" y="{y + 10}" fill="{FAINT}" text-anchor="start">{area}</text>'
    )


def draw_line(corners: Sequence[tuple[float, float]]) -> str:
    """Returns an arrow along the corners."""
    path = "L".join(f"{x:g} {y:g}" for x, y in corners)
    return f'<path d="M{path}" fill="none" stroke="{FAINT}" marker-end="url(#tip)"/>'


def draw_box(system: System, box: Box) -> str:
    """Returns a box with the name of a system."""
    fill, stroke = COLOURS[system.area]
    x, y = box.middle
    names = split(system.title)
    first = y + 4 - LINE * (len(names) - 1) / 2
    labels = "".join(
        f'<text x="{x:g}" y="{first + LINE * row:g}">{escape(name)}</text>' for row, name in enumerate(names)
    )
    title = f"{system.title} ({system.authors}, {system.year}): {system.change}"
    return "\n".join(
        [
            f'<a href="../{find_page(system)}">',
            f"<title>{escape(title)}</title>",
            f'<rect x="{box.left:g}" y="{box.top:g}" width="{box.right - box.left:g}" '
            f'height="{box.bottom - box.top:g}" rx="5" fill="{fill}" stroke="{stroke}"/>',
            f'<g fill="{TEXT}">{labels}</g>',
            "</a>",
        ]
    )


def split(name: str) -> list[str]:
    """Splits a name into one or two lines of a box."""
    words = name.split()
    if len(name) <= 14:
        return [name]
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(" ".join(words[i:]))))
    return [" ".join(words[:cut]), " ".join(words[cut:])]


if __name__ == "__main__":
    main()
