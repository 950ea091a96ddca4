"""Kneser-Ney n-grams, the baseline of language models of `pydoc_topics`.

    python -m benchmarks.ngrams [--order=N] [--write=FOLDER]

Prints a JSON line for each split of the texts, with the bits per character of held-out text by n-grams of
characters, smoothed by the modified Kneser-Ney method with interpolation (Chen and Goodman 1999, section 3).

    groups       the split of the data set, whose held-out paragraphs are not in training
    last tenth   the last tenth of all topics in the order of their labels; much of it repeats the text before
                 it, because topics contain each other

--write=FOLDER writes the second split as text files, to train on it:

    tfm train --config=lm_pydoc --config.data.kind=text --config.data.name= --config.data.directory=FOLDER
"""

import argparse
import collections
import json
import math
import pathlib
from pydoc_data.topics import topics

from tfm.datasets.pydoc_topics import SPLITS, documents

ORDER = 8  # longer n-grams gain less than 0.02 bits on the first split
BEFORE_TEXT = "\0"  # stands for each character before the beginning
SEPARATOR = "\n\n"
# Discounts where a corpus is too small to estimate them, as in KenLM.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
Counts = dict[str, collections.Counter]


class KneserNey:
    """An n-gram model with modified Kneser-Ney smoothing, interpolated with all shorter contexts.

        p(w | h) = (c(h w) - D(c(h w)) + sum_v D(c(h v)) * p(w | h')) / c(h)

    h' is the context h without its first character. c counts occurrences for the longest contexts. For
    shorter contexts, it counts the different characters before an n-gram. D is 0, D1, D2 or D3+ for counts of
    0, 1, 2 or more. The model without a context is interpolated with equal probabilities.

    Args:
      text: training text.
      order: number of characters of an n-gram, with the predicted character.
      alphabet: number of characters that can occur.
    """

    def __init__(self, text: str, order: int, alphabet: int):
        self.order, self.alphabet = order, alphabet
        longest: Counts = collections.defaultdict(collections.Counter)
        for character, context in zip(text, self.list_contexts(text), strict=True):
            longest[context][character] += 1
        self.counts = [longest]  # by the length of the context, after the reversal
        for _ in range(order - 1):
            self.counts.append(count_continuations(self.counts[-1]))
        self.counts.reverse()
        self.discounts = [estimate_discounts(counts) for counts in self.counts]

    def list_contexts(self, text: str) -> list[str]:
        """Returns the order - 1 characters before each character of a text."""
        length = self.order - 1
        padded = BEFORE_TEXT * length + text
        return [padded[start : start + length] for start in range(len(text))]

    def probability(self, context: str, character: str) -> float:
        """Returns the probability of a character after a context of order - 1 characters."""
        probability = 1 / self.alphabet
        for length, (counts, discounts) in enumerate(zip(self.counts, self.discounts, strict=True)):
            followers = counts.get(context[len(context) - length :])
            if followers is None:
                break
            kinds = collections.Counter(min(count, 3) for count in followers.values())
            freed = sum(discounts[kind - 1] * number for kind, number in kinds.items())
            count = followers[character]
            kept = count - discounts[min(count, 3) - 1] if count else 0.0
            probability = (kept + freed * probability) / followers.total()
        return probability

    def bits(self, text: str) -> float:
        """Returns the bits per character of a text."""
        pairs = zip(self.list_contexts(text), text, strict=True)
        return -sum(math.log2(self.probability(*pair)) for pair in pairs) / len(text)


def count_continuations(longer: Counts) -> Counts:
    """Returns how many characters stand before each n-gram, from the counts of n-grams with one more."""
    counts: Counts = collections.defaultdict(collections.Counter)
    for context, followers in longer.items():
        counts[context[1:]].update(dict.fromkeys(followers, 1))
    return counts


def estimate_discounts(counts: Counts) -> tuple[float, ...]:
    """Returns D1, D2 and D3+ (Chen and Goodman 1999, equation 26)."""
    numbers = collections.Counter(count for followers in counts.values() for count in followers.values())
    if not all(numbers[count] for count in (1, 2, 3, 4)):
        return FALLBACK_DISCOUNTS
    share = numbers[1] / (numbers[1] + 2 * numbers[2])
    discounts = [count - (count + 1) * share * numbers[count + 1] / numbers[count] for count in (1, 2, 3)]
    if not all(0 < discount <= count for count, discount in enumerate(discounts, 1)):
        return FALLBACK_DISCOUNTS
    return tuple(discounts)


def last_tenth() -> dict[str, str]:
    """Returns the texts of the split that cuts all topics in the order of their labels."""
    text = SEPARATOR.join(topics[label] for label in sorted(topics))
    cut = int(0.9 * len(text))
    return {"train": text[:cut], "validation": text[cut:]}


def main() -> None:
    """Prints the bits per character of both splits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--order", type=int, default=ORDER, metavar="N")
    parser.add_argument("--write", type=pathlib.Path, metavar="FOLDER")
    options = parser.parse_args()
    splits = {
        "groups": {name: SEPARATOR.join(documents(name)) for name in reversed(SPLITS)},
        "last tenth": last_tenth(),
    }
    for name, texts in splits.items():
        model = KneserNey(texts["train"], options.order, alphabet=len(set("".join(texts.values()))))
        bits = {name: round(model.bits(text), 3) for name, text in texts.items() if name != "train"}
        print(json.dumps({"split": name, "bits per character": bits}), flush=True)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for name, text in last_tenth().items():
            (options.write / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
