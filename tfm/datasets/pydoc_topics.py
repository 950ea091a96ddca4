"""English text without a download: `pydoc_data.topics` of the standard library, about 80 documents.

The texts belong to the running version of Python. They differ between versions, so scores are comparable only
on the same version. The order and the splits depend only on the texts.

Many topics contain other topics: "compound" contains the texts of "for" and "while". Topics that share a long
paragraph are therefore in the same split, so that held-out paragraphs do not occur in training. Within a
split, only the first occurrence of a long paragraph remains.
"""

import hashlib
import math
from pydoc_data.topics import topics

SPLITS = ("test", "validation", "train")
HELD_OUT = 0.05  # approximate fraction of all characters in test, and in validation
SHARED_CHARACTERS = 40  # minimum length of a long paragraph; shorter paragraphs are common phrases


def documents(split: str) -> list[str]:
    """Returns the texts of a split in the order of their labels, without repeated long paragraphs.

    Raises:
      KeyError: if there is no such split.
    """
    return drop_repeats([topics[label] for label in sorted(split_labels(topics)[split])])


def drop_repeats(texts: list[str]) -> list[str]:
    """Removes long paragraphs that occurred before, and texts without any new long paragraph.

    A paragraph ends at a blank line, and is long with `SHARED_CHARACTERS` characters or more. The shorter
    paragraphs of the other texts stay, also if they are repeated.
    """
    seen, remaining = set(), []
    for text in texts:
        kept, has_new_paragraph = [], False
        for part in text.split("\n\n"):
            paragraph = part.strip()
            if len(paragraph) >= SHARED_CHARACTERS:
                if paragraph in seen:
                    continue
                seen.add(paragraph)
                has_new_paragraph = True
            kept.append(part)
        if has_new_paragraph:
            remaining.append("\n\n".join(kept))
    return remaining


def split_labels(texts: dict[str, str]) -> dict[str, list[str]]:
    """Returns {split: labels of its texts}.

    Test and validation each have at most the fraction `HELD_OUT` of all characters.

    Args:
      texts: {label: text}.
    """
    groups = sorted(group_labels(texts), key=lambda group: hashlib.sha256(group[0].encode()).hexdigest())
    sizes = {group[0]: sum(len(texts[label]) for label in group) for group in groups}
    labels: dict[str, list[str]] = {split: [] for split in SPLITS}
    left = dict.fromkeys(SPLITS, HELD_OUT * sum(sizes.values())) | {"train": math.inf}
    for group in groups:
        split = next(name for name in SPLITS if sizes[group[0]] <= left[name])
        labels[split] += group
        left[split] -= sizes[group[0]]
    return labels


def group_labels(texts: dict[str, str]) -> list[list[str]]:
    """Returns sorted groups of labels. Two texts that share a long paragraph are in the same group."""
    group_of = {label: [label] for label in sorted(texts)}
    first_with: dict[str, str] = {}
    for label in sorted(texts):
        for paragraph in map(str.strip, texts[label].split("\n\n")):
            if len(paragraph) < SHARED_CHARACTERS:
                continue
            group, other = group_of[first_with.setdefault(paragraph, label)], group_of[label]
            if group is not other:
                group += other
                group_of |= dict.fromkeys(other, group)
    unique = {id(members): sorted(members) for members in group_of.values()}
    return sorted(unique.values())
