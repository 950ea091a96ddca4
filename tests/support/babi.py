"""Small files in the form of bAbI."""

import pathlib

import numpy as np

PEOPLE, PLACES, THINGS = ("Mary", "John"), ("garden", "kitchen", "hall"), ("apple", "milk")
TASKS = {1: "single-supporting-fact", 8: "lists-sets"}
QUESTIONS = {"train": [2] * 12, "test": [2, 2, 3]}  # number of questions of each story


def write_babi(folder: pathlib.Path) -> None:
    """Writes two tasks, with 24 questions of each for training and 7 in the split "test"."""
    for number, name in TASKS.items():
        rng = np.random.default_rng(number)
        for split, counts in QUESTIONS.items():
            lines = [line for count in counts for line in tell_story(rng, number, count)]
            path = folder / f"qa{number}_{name}_{split}.txt"
            path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def tell_story(rng: np.random.Generator, number: int, questions: int) -> list[str]:
    """Returns the lines of a story. Answers of task 8 may have several words, such as "apple,milk"."""
    lines: list[str] = []
    for _ in range(questions):
        person, place = rng.choice(PEOPLE), rng.choice(PLACES)
        lines.append(f"{person} moved to the {place}.")
        if number == 1:
            lines.append(f"Where is {person}? \t{place}\t{len(lines)}")
            continue
        things = THINGS[: rng.integers(1, 3)]
        lines.append(f"{person} took the {' and the '.join(things)}.")
        lines.append(f"What is {person} carrying?\t{','.join(things)}\t{len(lines)} {len(lines) - 1}")
    return [f"{index} {line}" for index, line in enumerate(lines, 1)]
