"""A small corpus with files of questions, for word2vec."""

import pathlib

import numpy as np

WORDS = ("the", "Paris", "France", "Oslo", "Norway", "Rome", "Italy", "big", "bigger", "small", "smaller")
QUESTIONS = """\
: capital-common-countries
Paris France Oslo Norway
Oslo Norway Rome Italy
Berlin Germany Oslo Norway
: gram3-comparative
big bigger small smaller
"""
PAIRS = "Word 1,Word 2,Human (mean)\nParis,Oslo,8.1\nbig,small,4\nthe,Rome,0.5\nParis,Berlin,7\n"


def write_texts(folder: pathlib.Path) -> None:
    """Writes lines for three splits, and files of 3 and of 24 known analogies, and of 3 known pairs."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 60), ("validation", 12), ("test", 9)):
        lines = [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "questions.txt").write_text(QUESTIONS, encoding="utf-8")
    analogies = [" ".join(rng.choice(WORDS, 4, replace=False)) for _ in range(24)]
    (folder / "many.txt").write_text("\n".join(analogies), encoding="utf-8")
    (folder / "pairs.csv").write_text(PAIRS, encoding="utf-8")
