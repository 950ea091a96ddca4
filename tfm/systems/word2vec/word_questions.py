"""Words of the built-in language: its English sentences, the classes of its words, and analogies.

The class of a word is its most frequent tag in the trees of the language. An analogy such as "dog dogs cat
cats" consists of two pairs of one relation. Pairs of inflected words have regular endings.
"""

import collections
import functools
import itertools
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.datasets import toy_language
from tfm.errors import UserError

WORD = re.compile(r"[a-z][a-z'-]*")
LEAF = re.compile(r"\((\S+) ([^()\s]+)\)")  # a tag and its word
QUESTIONS_OF_A_PAIR = 4
QUESTIONS_AT_ONCE = 1024  # whose cosines to all words are in memory
GENDERS = (
    ("king", "queen"),
    ("man", "woman"),
    ("brother", "sister"),
    ("son", "daughter"),
    ("father", "mother"),
    ("uncle", "aunt"),
    ("grandfather", "grandmother"),
)
# {relation: (classes of the first word, class of the second word, endings of the second word)}
INFLECTIONS = {
    "plural": (("NN",), "NNS", ("s",)),
    "third person": (("VB", "VBP"), "VBZ", ("s", "es")),
    "past": (("VB", "VBP"), "VBD", ("ed", "d")),
}
SPLITS = ("validation", "test")  # of the analogies


class Analogy(NamedTuple):
    """An analogy: `first` is to `second` as `third` is to `fourth`, the answer."""

    relation: str
    first: str
    second: str
    third: str
    fourth: str


def read_sentences(split: str) -> list[list[str]]:
    """Returns the lower-case words of the English sentences of a split, without punctuation."""
    return [WORD.findall(example.en.lower()) for example in toy_language.read_examples(split)]


@functools.cache
def read_word_classes() -> dict[str, str]:
    """Returns the class of each word that occurs in the trees of the training split."""
    tags: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for tag, word in itertools.chain.from_iterable(map(LEAF.findall, toy_language.read_trees("train"))):
        if WORD.fullmatch(word.lower()):
            tags[word.lower()][tag] += 1
    return {word: max(sorted(counts), key=counts.__getitem__) for word, counts in tags.items()}


def list_pairs(relation: str) -> list[tuple[str, str]]:
    """Returns all pairs of words of a relation, in alphabetical order.

    Args:
      relation: "gender", or a key of `INFLECTIONS`.
    """
    if relation == "gender":
        return sorted(GENDERS)
    bases, inflected, endings = INFLECTIONS[relation]
    classes = read_word_classes()
    words = sorted(word for word, name in classes.items() if name in bases)
    pairs = itertools.product(words, endings)
    return [(word, word + end) for word, end in pairs if classes.get(word + end) == inflected]


def make_analogies(split: str) -> list[Analogy]:
    """Returns the analogies of a split, "validation" or "test". Both splits have different pairs.

    A pair is the beginning of at most `QUESTIONS_OF_A_PAIR` analogies, with the next pairs of its relation.

    Raises:
      UserError: if there is no such split.
    """
    if split not in SPLITS:
        raise UserError(f"Expected a split of analogies out of {', '.join(SPLITS)}, got {split!r}.")
    analogies = []
    for relation in (*INFLECTIONS, "gender"):
        pairs = list_pairs(relation)
        random.Random(relation).shuffle(pairs)
        pairs = pairs[SPLITS.index(split) :: len(SPLITS)]
        distances = range(1, min(QUESTIONS_OF_A_PAIR + 1, len(pairs)))
        for index, distance in itertools.product(range(len(pairs)), distances):
            other = pairs[(index + distance) % len(pairs)]
            analogies.append(Analogy(relation, *pairs[index], *other))
    return analogies


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [V, D] of length 1. Zeros remain zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def find_neighbours(vectors: np.ndarray, words: Sequence[int], count: int) -> np.ndarray:
    """Returns the other words with the largest cosines, int [N, count].

    Args:
      vectors: [V, D].
      words: numbers of the N words.
      count: number of neighbours of each word.
    """
    unit = normalize(vectors)
    cosines = unit[list(words)] @ unit.T
    cosines[np.arange(len(words)), list(words)] = -np.inf
    return np.argsort(-cosines, axis=-1, kind="stable")[:, :count]


def solve_analogies(vectors: np.ndarray, questions: np.ndarray) -> np.ndarray:
    """Returns the word whose vector is closest to second - first + third of each question, int [N].

    Args:
      vectors: [V, D].
      questions: int [N, 3]. None of the three words is an answer.
    """
    unit = normalize(vectors)
    answers = [np.zeros(0, int)]
    for begin in range(0, len(questions), QUESTIONS_AT_ONCE):
        part = questions[begin : begin + QUESTIONS_AT_ONCE]
        first, second, third = unit[part].transpose(1, 0, 2)
        cosines = normalize(second - first + third) @ unit.T
        np.put_along_axis(cosines, part, -np.inf, axis=-1)
        answers.append(cosines.argmax(-1))
    return np.concatenate(answers)
