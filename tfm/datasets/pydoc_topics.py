"""English text without a download: `pydoc_data.topics` of the standard library, some 80 documents.

The texts are those of the Python that runs, and differ between its versions, so that figures compare only on
one version. Order and split follow from the texts alone. Many topics hold others: "compound" has the text of
"for" and "while". Topics that share a paragraph are therefore kept together, in one split, and what is held
out does not occur in training. Within a split a paragraph stands once, where it comes first.
"""

import hashlib
from pydoc_data.topics import topics

SPLITS = ("test", "validation", "train")
HELD_OUT = 0.05  # of all characters, about, in each of the first two splits
SHARED_CHARACTERS = 40  # of a paragraph; shorter ones are common phrases


def documents(split: str) -> list[str]:
    """The texts of a split, in the order of their labels, each paragraph once.

    Raises:
      KeyError: there is no such split.
    """
    return drop_repeats([topics[label] for label in sorted(split_labels(topics)[split])])


def drop_repeats(texts: list[str]) -> list[str]:
    """The texts without long paragraphs that an earlier text has; a text with nothing else is left out."""
    seen, found = set(), []
    for text in texts:
        kept, own = [], False
        for part in text.split("\n\n"):
            paragraph = part.strip()
            if len(paragraph) >= SHARED_CHARACTERS:
                if paragraph in seen:
                    continue
                seen.add(paragraph)
                own = True
            kept.append(part)
        if own:
            found.append("\n\n".join(kept))
    return found


def split_labels(texts: dict[str, str]) -> dict[str, list[str]]:
    """{split: labels of its texts}: test and validation each have about `HELD_OUT` of all characters.

    Args:
      texts: {label: text}.
    """
    groups = sorted(group_labels(texts), key=lambda group: hashlib.sha256(group[0].encode()).hexdigest())
    sizes = {group[0]: sum(len(texts[label]) for label in group) for group in groups}
    budget = HELD_OUT * sum(sizes.values())
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    left = dict.fromkeys(SPLITS[:2], budget)
    for group in groups:
        split = next((name for name in SPLITS[:2] if sizes[group[0]] <= left[name]), "train")
        found[split] += group
        if split != "train":
            left[split] -= sizes[group[0]]
    return found


def group_labels(texts: dict[str, str]) -> list[list[str]]:
    """Labels in groups, each sorted: two texts with a long paragraph in common are in one group."""
    group_of = {label: [label] for label in sorted(texts)}
    first_with: dict[str, str] = {}
    for label in sorted(texts):
        for paragraph in map(str.strip, texts[label].split("\n\n")):
            if len(paragraph) < SHARED_CHARACTERS:
                continue
            one, other = group_of[first_with.setdefault(paragraph, label)], group_of[label]
            if one is not other:
                one += other
                group_of |= dict.fromkeys(other, one)
    unique = {id(group): sorted(group) for group in group_of.values()}
    return sorted(unique.values())
