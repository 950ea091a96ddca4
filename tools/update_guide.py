"""Program that runs the code of the guide's pages, and of the other pages that show their output.

`python -m tools.update_guide` writes the output of each block into its page, and draws the figures,
docs/guide/figures/*.png. With the paths of pages, it updates only these. Tests check that the pages contain
this output.
"""

import os
import pathlib
import sys

from tests.support.pages import BLOCK, pages_with_output, run_page


def update_page(path: pathlib.Path) -> None:
    """Writes the output of its blocks into a page and the figures next to the page."""
    printed = iter([output for _, _, output in run_page(path, path.parent)])

    def write(match):
        output = next(printed)
        return f"```python\n{match[1]}```" + (f"\n\n```text\n{output}```" if output else "")

    text = BLOCK.sub(write, path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for page in map(pathlib.Path, sys.argv[1:]) if sys.argv[1:] else pages_with_output():
        update_page(page.absolute())
