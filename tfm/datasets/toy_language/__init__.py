"""The built-in language: English-German sentence pairs and English trees, for learning offline.

The grammar in `tools/toy_language` generated the files next to this module. It generates both sentences of a
pair from the same meaning, so that every English sentence has a German translation and an exact alignment of
the words:

    The old dogs trust the small child.
    Die alten Hunde vertrauen dem kleinen Kind.                               (gender, case, endings)

    Yesterday the woman didn't buy any apples.
    Gestern kaufte die Frau keine Äpfel.                                      (verb second, kein)

    The guest owns eight hundred and sixty-one books.
    Der Gast besitzt achthunderteinundsechzig Bücher.                         (numbers)

    The teacher says that the girl has picked him up.
    Der Lehrer sagt, dass das Mädchen ihn abgeholt hat.                       (verb last, separable)

    The animal didn't cross the street because it was too tired.
    Das Tier überquerte die Straße nicht, weil es zu müde war.                (it: the animal)

    The animal didn't cross the street because it was too wide.
    Das Tier überquerte die Straße nicht, weil sie zu breit war.              (it: the street)

Splits of pairs: `train` (at most 20 words), `validation` and `test` (the same kind, no sentence shared),
`pronoun` (sentences like the last two, in twins, with nouns and adjective never combined in training) and
`long` (each sentence is longer than any training sentence). Splits of trees with the labels and tags of the
Penn Treebank: `train`, `validation` and `test`. The nouns of some German sentences have tags of gender and
case.
"""

import functools
import lzma
from importlib.resources import files
from typing import NamedTuple

from tfm.errors import UserError

VERSION = "2.0.0"  # identifies the content of all files
SIZES = {"train": 50_000, "validation": 1_000, "test": 1_000, "pronoun": 500, "long": 500}
TREE_SIZES = {"train": 10_000, "validation": 500, "test": 500}
TAGGED_SIZES = {"train": 5_000, "validation": 1_000, "test": 1_000}  # sentences whose nouns have tags
NOUN_TAGS = tuple(f"{gender}.{case}" for gender in "mfn" for case in ("nom", "acc", "dat"))


class Example(NamedTuple):
    """A sentence pair.

    Attributes:
      en, de: the sentence in both languages.
      wrong: in the split `pronoun`, `de` with the pronoun of the other noun; otherwise "".
      alignment: pairs of word numbers in Pharaoh format, "0-0 1-2". White space separates words.
    """

    en: str
    de: str
    wrong: str
    alignment: str


class PronounWords(NamedTuple):
    """Numbers of words, from 0, in a sentence of the split `pronoun`.

    Attributes:
      subject, object: the two nouns that the pronoun may stand for.
      subject_determiner, object_determiner: the words before the nouns, such as "the"; None if there is none.
      pronoun: "it", or its translation.
      adjective: the word that decides.
    """

    subject: int
    object: int
    subject_determiner: int | None
    object_determiner: int | None
    pronoun: int
    adjective: int


def read_examples(split: str) -> list[Example]:
    """Returns the sentence pairs of a split.

    Raises:
      UserError: if there is no such split.
    """
    _require_split(split, SIZES)
    return [Example(*row[:4]) for row in _read_rows(split)]


def read_pronoun_words() -> list[tuple[PronounWords, PronounWords, bool]]:
    """Returns the decisive words of the split `pronoun`, whose examples 2 n and 2 n + 1 are twins.

    Returns:
      For each example, the English words, the German words, and whether the pronoun stands for the subject.
    """
    return [
        (_parse_words(english), _parse_words(german), referent == "subject")
        for *_, english, german, referent in _read_rows("pronoun")
    ]


def read_trees(split: str) -> list[str]:
    """Returns the trees of a split as bracketed text.

    Raises:
      UserError: if there is no such split.
    """
    _require_split(split, TREE_SIZES)
    return list(_read_lines(f"trees_{split}.mrg.xz"))


def read_noun_tags(split: str) -> list[str]:
    """Returns the gender and the case of the nouns of the first German sentences of a split of pairs.

    A line has an item for each word of a sentence: one of `NOUN_TAGS` for a noun, "-" for another word.

    Raises:
      UserError: if no nouns of the split have tags.
    """
    _require_split(split, TAGGED_SIZES)
    return list(_read_lines(f"nouns_{split}.txt.xz"))


def _require_split(split: str, sizes: dict[str, int]) -> None:
    """Checks that a split exists.

    Raises:
      UserError: if the split does not exist.
    """
    if split not in sizes:
        raise UserError(f"Expected a split out of {', '.join(sizes)}, got {split!r}. Choose one of these.")


def _read_rows(split: str) -> list[list[str]]:
    """Returns the columns of each row of a split of pairs, without the header."""
    return [line.split("\t") for line in _read_lines(f"{split}.tsv.xz")[1:]]


@functools.lru_cache(maxsize=2)  # a command opens a split several times, to check and to read it
def _read_lines(name: str) -> tuple[str, ...]:
    content = lzma.decompress(files(__package__).joinpath(name).read_bytes())
    return tuple(content.decode("utf-8").removesuffix("\n").split("\n"))


def _parse_words(numbers: str) -> PronounWords:
    """Parses numbers separated by spaces, where "-" means None."""
    return PronounWords._make(None if number == "-" else int(number) for number in numbers.split())
