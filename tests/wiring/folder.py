"""The data that the cases of several tasks read: texts in files and tables, and two data sets of TFDS.

The folders `corpus` and `elsewhere` contain files with the same names and different content. The folders
`tfds` and `elsewhere` contain a data set with the same name and different content. All paths are relative to
the current folder.
"""

import pathlib

import numpy as np

from tests.support import tiny
from tfm.data.tokenizers.learning import learn_word_pieces

SPLITS = {"train": 40, "validation": 9, "test": 5, "more": 30, "check": 7, "exam": 6}
TABLE = {"kind": "table", "train": "train.tsv", "validation": "validation.tsv", "test": "test.tsv"}
OTHER_SPLITS = {"train": "more", "validation": "check", "test": "exam"}
LANGUAGES = {"en": tiny.WORDS, "de": tiny.TRANSLATED, "fr": tuple(word[::-1] for word in tiny.WORDS)}
TFDS, OTHER_TFDS = "tiny_rows", "tiny_other_rows"  # names of the classes in `tests.support.tfds_sets`


def other_files(ending: str) -> dict[str, str]:
    """Returns the files of other splits, {split: name of a file with this ending}."""
    return {split: f"{other}{ending}" for split, other in OTHER_SPLITS.items()}


def write_texts() -> None:
    """Writes the texts, the tokenizer `own.model` and the data sets into the current folder."""
    rng = np.random.default_rng(0)
    for folder in map(pathlib.Path, ("corpus", "elsewhere")):
        folder.mkdir()
        for split, size in SPLITS.items():
            lines = [rng.integers(0, len(tiny.WORDS), rng.integers(2, 9)) for _ in range(size)]
            sides = [[" ".join(words[i] for i in line) for line in lines] for words in LANGUAGES.values()]
            for language, side in zip(LANGUAGES, sides, strict=True):
                (folder / f"{split}.{language}").write_text("\n".join(side))
            texts = [[f"{line.replace(' ', '. ', 1)}." for line in side] for side in sides[:2]]
            (folder / f"{split}.txt").write_text("\n".join(texts[0]))
            labels = [["no", "yes"][len(line) % 2] for line in sides[0]], [line[0] for line in sides[0]]
            names = [*LANGUAGES, "text", "other", "label", "letter"]
            rows = ["\t".join(names), *map("\t".join, zip(*sides, *texts, *labels, strict=True))]
            (folder / f"{split}.tsv").write_text("\n".join(rows))
    learn_word_pieces(tiny.WORDS, 280, "own.model")
    write_tfds()


def write_tfds() -> None:
    """Prepares both data sets in `tfds`, and the first one in `elsewhere`, too."""
    from tests.support import tfds_sets  # registers the data sets, and takes a second

    for kind, folder in (
        (tfds_sets.TinyRows, "tfds"),
        (tfds_sets.TinyOtherRows, "tfds"),
        (tfds_sets.TinyRows, "elsewhere"),
    ):
        kind(data_dir=folder, file_format="array_record").download_and_prepare()
