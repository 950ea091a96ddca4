"""Writes the files of `tfm.datasets.toy_language`: python -m tools.toy_language FOLDER"""

import lzma
import pathlib
import sys
from collections.abc import Iterator

from tfm.datasets.toy_language import TAGGED_SIZES, Example, PronounWords
from tools.toy_language import corpus, trees


def main(folder: str) -> None:
    """Writes all files into an existing folder. Takes ten seconds of a core."""
    for name, lines in list_files():
        content = "".join(f"{line}\n" for line in lines).encode("utf-8")
        compressed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        pathlib.Path(folder, name).write_bytes(compressed)


def list_files() -> Iterator[tuple[str, Iterator[str]]]:
    """Yields the name and the lines of each file."""
    for split in corpus.SIZES:
        yield f"{split}.tsv.xz", format_pairs(split)
    for split in TAGGED_SIZES:
        yield f"nouns_{split}.txt.xz", corpus.generate_noun_tags(split)
    for split in trees.SIZES:
        yield f"trees_{split}.mrg.xz", trees.generate(split)


def format_pairs(split: str) -> Iterator[str]:
    """Yields the lines of the file of a split, its header first."""
    is_pronoun = split == "pronoun"
    yield "\t".join((*Example._fields, *(("en_words", "de_words", "referent") if is_pronoun else ())))
    words = map(_format_words, corpus.find_pronoun_words()) if is_pronoun else iter(lambda: (), None)
    for example, positions in zip(corpus.generate(split), words, strict=False):
        yield "\t".join((*example, *positions))


def _format_words(positions: tuple[PronounWords, PronounWords, bool]) -> tuple[str, ...]:
    *languages, is_subject = positions
    numbers = (" ".join("-" if word is None else str(word) for word in words) for words in languages)
    return (*numbers, "subject" if is_subject else "object")


if __name__ == "__main__":
    main(*sys.argv[1:])
