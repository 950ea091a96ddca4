"""What a language model of `pydoc_topics` has to beat: python -m benchmarks.ngrams [--write=FOLDER]

Prints a JSON line for each split of the texts: bits a character of held-out text by 6-grams, interpolated by
Witten and Bell's estimate (Witten and Bell 1991) and with 0.01 added to each count.

    groups       the split of the data set, whose held-out paragraphs are not in training
    last tenth   the last tenth of all topics, one after the other by their labels; it has much of what
                 stands before it, as topics contain each other

--write=FOLDER writes the second one as text files, for the same config on it:

    tfm train --config=lm_pydoc --config.data.kind=text --config.data.name= --config.data.directory=FOLDER
"""

import argparse
import collections
import json
import math
import pathlib
from pydoc_data.topics import topics

from tfm.datasets.pydoc_topics import SPLITS, documents

ORDER = 6
ADDED = 0.01
SEPARATOR = "\n\n"


def count_contexts(text: str, order: int) -> dict[str, collections.Counter]:
    """{context of 0 to order - 1 characters: how often each character follows}."""
    found = collections.defaultdict(collections.Counter)
    for i, character in enumerate(text):
        for length in range(min(order - 1, i) + 1):
            found[text[i - length : i]][character] += 1
    return found


def witten_bell(contexts: dict, alphabet: int, context: str, character: str) -> float:
    """The probability of a character, each context's share taken over by its shorter ones."""
    probability = 1 / alphabet
    for length in range(len(context) + 1):
        counts = contexts.get(context[len(context) - length :])
        if counts is None:
            break
        total, kinds = counts.total(), len(counts)
        probability = (counts[character] + kinds * probability) / (total + kinds)
    return probability


def additive(contexts: dict, alphabet: int, context: str, character: str) -> float:
    """The probability of a character by the longest context alone."""
    counts = contexts.get(context, collections.Counter())
    return (counts[character] + ADDED) / (counts.total() + ADDED * alphabet)


def bits(estimate, contexts: dict, alphabet: int, text: str) -> float:
    """Bits a character of a text."""
    lost = 0.0
    for i, character in enumerate(text):
        lost -= math.log2(estimate(contexts, alphabet, text[max(i - ORDER + 1, 0) : i], character))
    return lost / len(text)


def last_tenth() -> dict[str, str]:
    """{"train", "validation": text}."""
    text = SEPARATOR.join(topics[label] for label in sorted(topics))
    cut = int(0.9 * len(text))
    return {"train": text[:cut], "validation": text[cut:]}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=pathlib.Path, metavar="FOLDER")
    folder = parser.parse_args().write
    splits = {
        "groups": {name: SEPARATOR.join(documents(name)) for name in reversed(SPLITS)},
        "last tenth": last_tenth(),
    }
    for name, texts in splits.items():
        contexts = count_contexts(texts["train"], ORDER)
        alphabet = len(set("".join(texts.values())))
        for held_out in [each for each in texts if each != "train"]:
            found = {
                estimate.__name__: round(bits(estimate, contexts, alphabet, texts[held_out]), 3)
                for estimate in (witten_bell, additive)
            }
            print(json.dumps({"split": name, "held out": held_out, "bits a character": found}), flush=True)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in last_tenth().items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
