"""Generated reports with a known summary, as a function for `data.kind`.

A report has sentences about nothing, and among them one sentence for each of some attributes, such as "They
noted the colour red." `SEPARATOR` and the summary follow. The summary has the attributes in alphabetical
order with their values: "colour red, metal iron". Only a model that sees the whole report can write it.
"""

import random

from tfm.data.config import DocumentsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.source import Source, hash_rows, hold

SEPARATOR = " Summary: "
SIZES = {"train": 20_000, "validation": 200, "test": 200}
VALUES = {
    "animal": ["cat", "dog", "fox", "owl", "pig", "cow", "hen", "rat"],
    "colour": ["red", "blue", "green", "black", "white", "brown", "grey", "pink"],
    "fruit": ["apple", "pear", "plum", "grape", "lemon", "fig", "date", "lime"],
    "metal": ["iron", "gold", "silver", "tin", "copper", "zinc", "lead", "steel"],
    "month": ["january", "march", "april", "may", "june", "july", "august", "october"],
    "river": ["rhine", "elbe", "oder", "main", "weser", "spree", "ems", "isar"],
}
FACTS = 4  # attributes of a report
FILLERS = (
    "The committee met again and nothing was decided.",
    "Several members asked for more time.",
    "It was raining all day long.",
    "Nobody remembered who had made the list.",
    "The chairman thanked everybody for coming.",
    "Coffee was served in the hall at noon.",
    "Some papers had been lost on the way.",
    "The next meeting will be held in spring.",
    "A letter from the council was read aloud.",
    "There were no further questions.",
)
SENTENCES = (4, 16)  # fewest and most sentences about nothing


def reports(config: DocumentsConfig, split: str) -> Source:
    """Returns the reports of a split with their summaries. Raises MissingFile if there is no such split."""
    if split not in SIZES:
        raise MissingFile(f"Expected a split out of {', '.join(SIZES)}, got {split!r}.")
    rng = random.Random(split)
    rows = [(_draw_report(rng),) for _ in range(SIZES[split])]
    return hold(rows, f"reports-{hash_rows(rows)}")


def _draw_report(rng: random.Random) -> str:
    """Returns a random report with its summary."""
    facts = {name: rng.choice(VALUES[name]) for name in sorted(rng.sample(sorted(VALUES), FACTS))}
    sentences = rng.choices(FILLERS, k=rng.randint(*SENTENCES))
    for name, value in facts.items():
        sentences.insert(rng.randint(0, len(sentences)), f"They noted the {name} {value}.")
    summary = ", ".join(f"{name} {value}" for name, value in facts.items())
    return " ".join(sentences) + SEPARATOR + summary
