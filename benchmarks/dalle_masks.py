"""Draws the masks of DALL-E's layers (Ramesh et al. 2021, figure 11).

    python -m benchmarks.dalle_masks OUTPUT.png

Each panel shows which codes of an image of 8 x 8 codes one kind of layer may attend to while it computes the
code after the black square.
"""

import sys

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tfm.masks import causal_mask
from tfm.systems.dalle.model import KINDS, DALLEConfig, restrict_to_image_part
from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLOURS, COLUMN, TEXT

CONFIG = DALLEConfig(
    text_vocabulary=19, codes=16, text_length=5, side=8, kernel=5, layers=4, d_model=8, heads=2
)
QUERY = 5 * CONFIG.side + 3  # the code in row 5 and column 3
SQUARES = ListedColormap(["white", COLOURS[0], "black"])


def main(path: str) -> None:
    """Draws a panel for each kind of mask."""
    figure = Figure(figsize=(COLUMN, 1.4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(KINDS)), KINDS, strict=True):
        positions = np.arange(CONFIG.max_length)
        earlier = causal_mask(positions, positions)
        mask = restrict_to_image_part(earlier, positions, positions, config=CONFIG, kind=kind)
        start = 1 + CONFIG.text_length
        visible = np.array(mask)[0, start + QUERY, start:].astype(int)
        visible[QUERY] = 2
        axes.imshow(visible.reshape(CONFIG.side, -1), cmap=SQUARES, vmin=0, vmax=2)
        axes.set_xticks(np.arange(CONFIG.side + 1) - 0.5, labels=[])
        axes.set_yticks(np.arange(CONFIG.side + 1) - 0.5, labels=[])
        axes.grid(color="lightgrey")
        axes.tick_params(length=0)
        axes.set_title(kind, fontsize=TEXT)
    save(figure, path, dpi=SHARP_DPI)


if __name__ == "__main__":
    main(sys.argv[1])
