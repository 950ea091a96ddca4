"""Texts of the built-in language as functions for `data.kind`, for the pretraining and the tasks of BERT.

parallel        documents of two sentences: an English sentence and its translation
noun_genders    German sentences with the gender and the case of each noun
pronouns        English sentences with "it", and the German pronoun that translates "it"
translations    English and German sentences, and whether the second is the translation of the first

A split is the name of a split of the language, or a part of it such as "train[:100]".
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.data.source import Row, Source, hash_rows, hold
from tfm.data.sources.tfds import find_parts, make_infos
from tfm.datasets import toy_language
from tfm.errors import UserError


def parallel(config: Any, split: str) -> Source:
    """Returns (English sentence and its German translation,) of each pair.

    Raises:
      UserError: if there is no such split.
    """
    del config
    return _hold([(f"{example.en} {example.de}",) for example in _read_examples(split)], split)


def noun_genders(config: Any, split: str) -> Source:
    """Returns (German sentence, tags), with the tags of `toy_language.read_noun_tags`.

    These are the first sentences of each split, see `toy_language.TAGGED_SIZES`.

    Raises:
      UserError: if there is no such split.
    """
    del config
    tags = {name: toy_language.read_noun_tags(name) for name in toy_language.TAGGED_SIZES}
    rows = []
    for name, part in _find_parts(split, toy_language.TAGGED_SIZES):
        examples = toy_language.read_examples(name)[: len(tags[name])]
        rows += [(example.de, line) for example, line in zip(examples[part], tags[name][part], strict=True)]
    return _hold(rows, split)


def pronouns(config: Any, split: str) -> Source:
    """Returns (English sentence, German pronoun) of the sentences in which one word translates "it".

    Raises:
      UserError: if there is no such split, or no such sentence.
    """
    del config
    rows = []
    for example in _read_examples(split):
        english, german = (text.rstrip(".").replace(",", "").split() for text in example[:2])
        links = [link.split("-") for link in example.alignment.split()]
        words = [german[int(target)] for source, target in links if english[int(source)] == "it"]
        rows += [(example.en, words[0])] if len(words) == 1 else []
    return _hold(rows, split)


def translations(config: Any, split: str) -> Source:
    """Returns (English sentence, German sentence, "yes" or "no").

    Every second German sentence is the translation of the next English sentence instead.

    Raises:
      UserError: if there is no such split.
    """
    del config
    examples = _read_examples(split)
    shifted = [*examples[1:], *examples[:1]]
    rows = [
        (first.en, (second if number % 2 else first).de, "no" if number % 2 else "yes")
        for number, (first, second) in enumerate(zip(examples, shifted, strict=True))
    ]
    return _hold(rows, split)


def _read_examples(split: str) -> list[toy_language.Example]:
    """Returns the sentence pairs of a split or of a part of a split."""
    parts = _find_parts(split, toy_language.SIZES)
    return list(itertools.chain.from_iterable(toy_language.read_examples(name)[part] for name, part in parts))


def _find_parts(split: str, sizes: Mapping[str, int]) -> list[tuple[str, slice]]:
    """Returns [(split, slice of its examples)]."""
    if split in sizes:
        return [(split, slice(None))]
    return find_parts(split, make_infos(sizes), "The built-in language")


def _hold(rows: Sequence[Row], split: str) -> Source:
    if not rows:
        raise UserError(f"The split '{split}' has no such sentence. Choose another split or a larger part.")
    return hold(rows, f"labelled-{hash_rows(rows)}")
