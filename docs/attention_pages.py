"""Gives the pages in docs/figures the scripts and styles of tfm/visualize/page. Keeps their data.

    python docs/attention_pages.py

benchmarks/notes/attention_page.md has the commands that made the data.
"""

import json
import pathlib
import re

from tfm.visualize.page import fill_template

PAGES = sorted((pathlib.Path(__file__).parent / "figures").glob("attention*.html"))
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def main() -> None:
    """Rewrites the pages that have other scripts or styles, and prints their paths."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (current := refresh(page)) != page:
            path.write_text(current, encoding="utf-8")
            print(path)


def refresh(page: str) -> str:
    """Returns a page with the same data and the current scripts and styles."""
    found = DATA.search(page)
    if found is None:
        raise ValueError("Expected a page that tfm visualize has written, but it has no data.")
    data = found[1]
    return fill_template(data, json.loads(data)["title"])


if __name__ == "__main__":
    main()
