"""Statistics of sentences and files of questions for `tfm data`."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from tfm.data.inspection import Summary
from tfm.systems.word2vec.corpus import open_lines, split_words
from tfm.systems.word2vec.question_files import WordIndex, find_paths, read_analogies, read_pairs
from tfm.systems.word2vec.skip_grams import SkipGramsConfig
from tfm.systems.word2vec.word_questions import read_sentences

SHOWN_WORDS = 8
MAX_UNKNOWN_SHARE = 0.2  # of the words of a split


def summarize(data: SkipGramsConfig, split: str, vocabulary: Mapping[str, int]) -> Summary:
    """Returns the statistics of the sentences of a split, and of the known questions.

    Args:
      data: the data section.
      split: name of the split.
      vocabulary: {word: count} of the words that a run would learn.

    Raises:
      UserError: if the split or a file of questions is missing or damaged.
    """
    sentences: Iterable[list[str]]
    if data.is_language:
        sentences = read_sentences(split)[: data.sentences]
    else:
        sentences = (split_words(text, data.lower_case) for (text,) in open_lines(data, split))
    counts: collections.Counter[str] = collections.Counter()
    number = longest = 0
    for words in sentences:
        counts.update(words)
        number, longest = number + 1, max(longest, len(words))
    total = counts.total()
    unknown = sum(count for word, count in counts.items() if word not in vocabulary)
    frequent = ", ".join(f"{word} ({count:,})" for word, count in counts.most_common(SHOWN_WORDS))
    share = unknown / max(total, 1)
    lines = [
        ("words", f"{total:,}, of which {len(counts):,} differ"),
        ("vocabulary", f"{len(vocabulary):,} words occur {data.minimum_count:,} times or more in training"),
        ("left out", f"{unknown:,} words ({100 * share:.1f} %) are not in the vocabulary"),
        ("longest", f"{longest:,} words"),
        ("frequent", frequent),
    ]
    values: dict[str, Any] = {
        "sentences": number,
        "words": total,
        "different_words": len(counts),
        "vocabulary": len(vocabulary),
        "unknown_words": unknown,
        "longest_sentence": longest,
    }
    hints = []
    if share > MAX_UNKNOWN_SHARE:
        hints.append(f"{100 * share:.0f} % of the words are left out; a lower data.minimum_count keeps more")
    if split == "train":
        questions = count_questions(data, list(vocabulary))
        lines += [
            (name, f"{known:,} of {count:,} have known words") for name, (known, count) in questions.items()
        ]
        values["questions"] = {
            name: {"known": known, "all": count} for name, (known, count) in questions.items()
        }
    return Summary(split, f"{number:,} sentences", lines, values, hints)


def count_questions(data: SkipGramsConfig, words: list[str]) -> dict[str, tuple[int, int]]:
    """Returns {"analogies" or "pairs": (number of questions whose words are known, number of questions)}.

    Words of analogies are known if they are among the `data.most_frequent` words, and words of pairs if they
    are in the vocabulary. A kind without questions is left out, and the built-in language has none.

    Raises:
      UserError: if a file of questions is missing or damaged.
    """
    if data.is_language:
        return {}
    analogies = [q for path in find_paths(data.directory, data.analogies) for q in read_analogies(path)]
    pairs = [pair for path in find_paths(data.directory, data.similarities) for pair in read_pairs(path)]
    limited, whole = WordIndex(words, data.most_frequent), WordIndex(words)
    questions = {
        "analogies": (sum(bool(limited.find(analogy[1:])) for analogy in analogies), len(analogies)),
        "pairs": (sum(bool(whole.find(pair[:2])) for pair in pairs), len(pairs)),
    }
    return {name: counts for name, counts in questions.items() if counts[1]}
