"""Draws the animated picture of a click in tfm explore: python -m benchmarks.explore_click --workdir=DIR

Opens the page of a run of the quick start in a headless Chromium, turns a head off by a click, and writes the
screenshots into docs/figures/explore_click.webp. The page is as narrow as a phone, so that the picture can be
read there, too.
"""

import argparse
import io
import pathlib
import tempfile
import threading
import time

from PIL import Image, ImageDraw

from tests.support.browser import find_chromium, open_browser
from tfm.commands import explore
from tfm.commands.options import Explore

SENTENCE = "The animal didn't cross the street because it was too tired."
LAYER, HEAD = 1, 0  # of the cross-attention; without this head, the translation loses its negation
WIDTH, HEIGHT, SCALE = 390, 800, 2  # of the window in CSS pixels, and pixels of the picture for each
MILLISECONDS = (3000, 1500, 900, 3500, 4500)  # of the frames
CLICK = "rgb(184, 74, 0)"
SECONDS = 60  # for an answer


def main() -> None:
    """Writes the picture, and prints its path and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", default="runs/quickstart")
    parser.add_argument("--output", default="docs/figures/explore_click.webp")
    arguments = parser.parse_args()
    options = Explore(
        workdir=arguments.workdir, config=None, overrides={}, arguments=(SENTENCE,), no_browser=True
    )
    server = explore.open_server(options.load(), options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        frames = draw_frames(server.url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    first, *rest = frames
    path = pathlib.Path(arguments.output)
    first.save(
        path, save_all=True, append_images=rest, duration=MILLISECONDS, loop=0, lossless=True, method=6
    )
    print(path, f"{path.stat().st_size:,} bytes")


def draw_frames(url: str) -> list[Image.Image]:
    """Returns the example, its heads, the click on a head, the changed result, and changed probabilities."""
    button = f"#heads [data-layer='{LAYER}'][data-head='{HEAD}']"
    with tempfile.TemporaryDirectory() as folder, open_browser(find_chromium(), folder) as page:
        page.set_width(WIDTH, HEIGHT, scale=SCALE)
        page.prefer("light")
        page.open(f"{url}#attention=cross&layer={LAYER}&head={HEAD}&position=6")
        page.evaluate(f"byId('live-text').value = {SENTENCE!r}")
        page.evaluate("byId('live-status').textContent = data.examples[0].result")
        frames = [read_frame(page)]
        page.evaluate("byId('heads-section').scrollIntoView()")
        frames.append(read_frame(page))
        box = page.evaluate(f"document.querySelector({button!r}).getBoundingClientRect().toJSON()")
        clicked = frames[-1].copy()
        x, y = (SCALE * (box[start] + box[size] / 2) for start, size in (("x", "width"), ("y", "height")))
        for radius in (20, 52):
            ImageDraw.Draw(clicked).circle((x, y), radius, outline=CLICK, width=6)
        frames.append(clicked)
        page.evaluate(f"document.querySelector({button!r}).click()")
        deadline = time.monotonic() + SECONDS
        while not page.evaluate("pending === null && view.other >= 0"):
            if time.monotonic() > deadline:
                raise TimeoutError("The page has no answer.")
            time.sleep(0.05)
        page.evaluate("document.activeElement.blur(); byId('heads-section').scrollIntoView()")
        frames.append(read_frame(page))
        page.evaluate("byId('live-parts').scrollIntoView()")
        frames.append(read_frame(page))
    return frames


def read_frame(page) -> Image.Image:
    """Returns the visible part of the page."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


if __name__ == "__main__":
    main()
