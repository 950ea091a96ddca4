"""Files of questions about words: analogies as in questions-words.txt, and pairs with a similarity."""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from tfm.data.sources.text_files import TextFile, expand_names, find_file
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.systems.word2vec.word_questions import Analogy, normalize, solve_analogies

ANALOGIES, SIMILARITIES = "analogies", "similarities"
SEMANTIC, SYNTACTIC = "semantic", "syntactic"
GRAMMAR = "gram"  # questions-words.txt marks syntactic relations by this beginning of their names
EXPECTED_ANALOGIES = "analogies of four words, such as 'Athens Greece Oslo Norway'"
EXPECTED_PAIRS = "two words and a number, separated by tabs, commas or spaces"
COMMENTS = ("#", "//")


class Pair(NamedTuple):
    """Two words and their similarity in the judgement of people."""

    first: str
    second: str
    similarity: float


class Outcome(NamedTuple):
    """The scores of files of questions, and what the vectors answered.

    Attributes:
      scores: the scores.
      outputs: an answer for each question.
      examples: texts of each question.
    """

    scores: list[Score]
    outputs: list[str]
    examples: list[dict[str, str]]


def find_paths(directory: str, names: str) -> list[str]:
    """Returns the paths of the files of questions; see `data.analogies`. No names stand for no files."""
    return [find_file(path) for path in expand_names(directory, names)] if names else []


def read_analogies(path: str) -> list[Analogy]:
    """Returns the analogies of a file. A line such as ": capital-world" begins a section.

    Lines that begin with # or // are left out. Before the first section, its name is the name of the file.

    Raises:
      UserError: if a line has another form, or the file has no analogy.
    """
    file, section = TextFile(path, EXPECTED_ANALOGIES), os.path.basename(path)
    analogies = []
    for number, line in enumerate(file, 1):
        words = line.split()
        if not words or words[0].startswith(COMMENTS):
            continue
        if words[0].startswith(":"):
            section = line.strip().removeprefix(":").strip()
        elif len(words) == 4:
            analogies.append(Analogy(section, *words))
        else:
            raise file.error(number, f"has {len(words)} words: expected {EXPECTED_ANALOGIES}")
    if not analogies:
        raise UserError(f"Expected {path} to have {EXPECTED_ANALOGIES}, but it has none.")
    return analogies


def read_pairs(path: str) -> list[Pair]:
    """Returns the pairs of a file.

    The first two columns are words. The similarity is in the first column after them that has a number in
    the first pair, so that SimLex-999's column with the part of speech is skipped. Comments and one line of
    titles before the first pair are skipped, too.

    Raises:
      UserError: if a line has another form, or the file has no pair.
    """
    file, column, has_titles = TextFile(path, EXPECTED_PAIRS), 0, False
    pairs: list[Pair] = []
    for number, line in enumerate(file, 1):
        if not line.strip() or line.startswith(COMMENTS):
            continue
        try:
            fields = _split_fields(line)
        except csv.Error as error:  # a quotation mark may make a field of the rest of a long line
            raise file.error(number, f"is damaged ({error}): expected {EXPECTED_PAIRS}") from None
        if not column:
            column = next((i for i in range(2, len(fields)) if _read_number(fields[i]) is not None), 0)
            if not column and has_titles:
                raise file.error(number, f"has no number: expected {EXPECTED_PAIRS}")
            if not column:
                has_titles = True
                continue
        similarity = _read_number(fields[column]) if column < len(fields) else None
        if similarity is None or not math.isfinite(similarity) or not all(fields[:2]):
            raise file.error(number, f"is {line.strip()!r}: expected {EXPECTED_PAIRS} (column {column + 1})")
        pairs.append(Pair(fields[0], fields[1], similarity))
    if not pairs:
        raise UserError(f"Expected {path} to have {EXPECTED_PAIRS} in each line, but it has none.")
    return pairs


def _split_fields(line: str) -> list[str]:
    """Returns the fields of a line, separated by tabs, otherwise commas, otherwise spaces."""
    for separator in ("\t", ","):
        if separator in line:
            fields = next(csv.reader([line.rstrip("\r")], delimiter=separator), [])
            return [field.strip() for field in fields]
    return line.split()


def _read_number(text: str) -> float | None:
    """Returns a field as a number (NaN included), or None if it is no number."""
    try:
        return float(text)
    except ValueError:
        return None


class WordIndex:
    """Finds words without regard to case, as the authors' program compute-accuracy does.

    If several words differ only in their case, the most frequent counts.

    Args:
      words: the vocabulary, the most frequent word first.
      limit: number of words that can be found; 0 for all words.
    """

    def __init__(self, words: Sequence[str], limit: int = 0):
        self.words = words[:limit] if limit else words
        self._numbers: dict[str, int] = {}
        for number, word in enumerate(self.words):
            self._numbers.setdefault(word.upper(), number)

    def find(self, words: Sequence[str]) -> list[int]:
        """Returns the numbers of words, or [] if a word is unknown."""
        numbers = [self._numbers.get(word.upper(), -1) for word in words]
        return numbers if min(numbers) >= 0 else []


def find_known_analogies(index: WordIndex, analogies: Sequence[Analogy]) -> dict[Analogy, list[int]]:
    """Returns {analogy: numbers of its words} of the analogies whose four words are known.

    Raises:
      UserError: if there is none.
    """
    numbers = {analogy: index.find(analogy[1:]) for analogy in analogies}
    known = {analogy: found for analogy, found in numbers.items() if found}
    if not known:
        raise UserError(
            f"The {len(index.words):,} most frequent words have all four words of none of the "
            f"{len(analogies):,} analogies. Leave data.analogies empty, use more text, or change "
            "data.most_frequent or data.minimum_count."
        )
    return known


def find_known_pairs(
    index: WordIndex, name: str, pairs: Sequence[Pair]
) -> tuple[list[Pair], list[list[int]]]:
    """Returns the pairs of a file whose words are known, and the numbers of their words.

    Raises:
      UserError: if there are fewer than two.
    """
    numbers = [index.find(pair[:2]) for pair in pairs]
    known = [pair for pair, found in zip(pairs, numbers, strict=True) if found]
    if len(known) < 2:
        raise UserError(
            f"The vocabulary has both words of {len(known)} of the {len(pairs):,} pairs in {name}, but a "
            "correlation needs two. Leave data.similarities empty, use more text, or decrease "
            "data.minimum_count."
        )
    return known, [found for found in numbers if found]


def score_analogies(vectors: np.ndarray, index: WordIndex, analogies: Sequence[Analogy]) -> Outcome:
    """Returns the right answers in per cent: in total, by kind (semantic, syntactic) and by section.

    If all sections are of one kind, there are no scores of kinds. Analogies with unknown words are left out,
    and answers are right without regard to case.

    Raises:
      UserError: if all analogies have unknown words.
    """
    numbers = find_known_analogies(index, analogies)
    known = [analogy for analogy in analogies if analogy in numbers]
    triples = np.array([numbers[analogy][:3] for analogy in known])
    answers = [index.words[number] for number in solve_analogies(vectors[: len(index.words)], triples)]
    right = [answer.upper() == q.fourth.upper() for answer, q in zip(answers, known, strict=True)]
    scores = []
    kinds = [SYNTACTIC if analogy.relation.startswith(GRAMMAR) else SEMANTIC for analogy in known]
    groups = {"": [""] * len(known)} if len(set(kinds)) < 2 else {"": [""] * len(known), "kind": kinds}
    groups["section"] = [analogy.relation for analogy in known]
    for labels in groups.values():
        for label in dict.fromkeys(labels):
            chosen = [is_right for is_right, other in zip(right, labels, strict=True) if other == label]
            signature = f"per cent of {len(chosen):,}"
            if not label:
                signature += f"; {len(analogies) - len(known):,} with unknown words are left out"
            name = f"{ANALOGIES}, {label}" if label else ANALOGIES
            scores.append(Score(name, 100 * float(np.mean(chosen)), signature))
    examples = [
        {"analogy": f"{q.first} : {q.second} = {q.third} : {q.fourth}", "answer": answer}
        for q, answer in zip(known, answers, strict=True)
    ]
    return Outcome(scores, answers, examples)


def score_similarities(vectors: np.ndarray, index: WordIndex, files: Mapping[str, Sequence[Pair]]) -> Outcome:
    """Returns Spearman's correlation between cosines and similarities, times 100: of each file, and the mean.

    With a single file, there is no mean. Pairs with unknown words are left out. The correlation of a file is
    0 if all its cosines or all its similarities are equal.

    Args:
      vectors: [V, D].
      index: finds words.
      files: {name of a file: its pairs}.

    Raises:
      UserError: if a file has fewer than two pairs of known words.
    """
    unit = normalize(vectors)
    scores, outputs, examples = [], [], []
    for name, pairs in files.items():
        known, numbers = find_known_pairs(index, name, pairs)
        cosines = np.array([unit[first] @ unit[second] for first, second in numbers])
        judgements = [pair.similarity for pair in known]
        is_constant = np.ptp(cosines) == 0 or np.ptp(judgements) == 0
        value = 0.0 if is_constant else float(scipy.stats.spearmanr(cosines, judgements).statistic)
        signature = f"Spearman's correlation x 100 of {len(known):,} pairs"
        signature += f"; {len(pairs) - len(known):,} with unknown words are left out"
        scores.append(Score(f"{SIMILARITIES}, {name}", 100 * value, signature))
        outputs += [f"{cosine:.4f}" for cosine in cosines]
        examples += [
            {
                "pair": f"{pair.first} {pair.second}",
                "similarity": f"{pair.similarity:g}",
                "cosine": f"{cosine:.4f}",
            }
            for pair, cosine in zip(known, cosines, strict=True)
        ]
    if len(files) > 1:
        mean = float(np.mean([score.value for score in scores]))
        scores.insert(0, Score(SIMILARITIES, mean, f"mean of {len(files)} files"))
    else:
        scores = [score._replace(name=SIMILARITIES) for score in scores]
    return Outcome(scores, outputs, examples)
