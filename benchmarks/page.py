"""How large the page to explore is, and how fast it opens: python -m benchmarks.page

A sentence of 60 tokens and its translation of 60, 6 + 6 layers of 8 heads, random numbers; opened in a
headless Chromium, which has to be installed.
"""

import pathlib
import tempfile
import time

from tests.support.browser import find_chromium, open_browser
from tests.support.observations import make_observation
from tfm.visualize.page import make_page

TURNS = 5


def main():
    pieces = [*(f"\u2581w{i}" for i in range(59)), "</s>"]
    text = make_page([make_observation(0, pieces, pieces, layers=6, heads=8)], "run")
    print(f"{len(text.encode()) / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as folder, open_browser(find_chromium(), f"{folder}/profile") as page:
        path = pathlib.Path(folder, "page.html")
        path.write_text(text, encoding="utf-8")
        for _ in range(TURNS):
            start = time.perf_counter()
            page.open(path.as_uri())
            print(f"{time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
