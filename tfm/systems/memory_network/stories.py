"""The config of stories with questions, and generated stories like the tasks 1 and 2 of bAbI.

    one fact     Mary moved to the garden. ...                               Where is Mary? garden
    two facts    John took the apple. ... John moved to the hall. ...        Where is the apple? hall

A batch is a dict of

    stories     int32 [B, S, W], the ids of the words of each sentence, padded with 0
    questions   int32 [B, W]
    answers     int32 [B]
    weights     float32 [B]; 1, or 0 in padding rows
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import EVALUATION, Batch, find_split
from tfm.data.config import require_local
from tfm.errors import UserError

PEOPLE = ("mary", "john", "sandra", "daniel")
PLACES = ("garden", "kitchen", "hall", "office", "bedroom", "bathroom")
THINGS = ("apple", "football", "milk")
KINDS = ("one fact", "two facts")
OTHER_WORDS = ("moved", "to", "the", "took", "dropped", "where", "is")
WORDS = (*PEOPLE, *PLACES, *THINGS, *OTHER_WORDS)  # the id of a word is its index plus 1
IDS = {word: number for number, word in enumerate(WORDS, 1)}
SENTENCE_WORDS = 5
FEWEST_SENTENCES = 2
BABI = "babi"  # the kind of bAbI's files, see `tfm.systems.memory_network.babi`
ALL_TASKS = "all"
TASKS = re.compile(rf"{ALL_TASKS}|\d{{1,6}}(-\d{{1,6}})?(,\d{{1,6}}(-\d{{1,6}})?)*", re.ASCII)
MAX_TASKS = 10_000


@dataclasses.dataclass(frozen=True)
class StoriesConfig:
    """The stories with questions, and how they become batches."""

    kind: str = field(
        "all",
        "Kind of the questions. one fact: where a person is, in generated stories. two facts: where a thing "
        "is, in generated stories. all: both in turn. babi: bAbI's files in data.directory.",
        choices=("all", *KINDS, BABI),
        resume=OnResume.FIXED,
    )
    directory: str = field(
        "",
        "babi: folder of the files qaN_NAME_train.txt and qaN_NAME_test.txt. A resumed run may read from "
        "another folder if the content of the training data is the same.",
        resume=OnResume.FREE,
    )
    tasks: str = field(
        ALL_TASKS,
        "babi: numbers N of the tasks that one model learns, such as 1, 2,3 or 1-20. all: all tasks in the "
        "folder.",
        pattern=TASKS,
        form="all, or numbers and ranges separated by commas",
        resume=OnResume.FIXED,
    )
    last_sentences: int = field(
        50,
        "babi: number of sentences before a question that are kept. Older sentences are left out.",
        minimum=1,
        maximum=100_000,
        unit="sentences",
    )
    sentences: int = field(
        10, "Generated stories: maximum number of sentences.", minimum=4, maximum=1000, unit="sentences"
    )
    batch_size: int = field(32, "Stories of a batch.", minimum=1, maximum=10**6, unit="stories")
    evaluated: int = field(
        1000,
        "Generated stories: number of stories of the validation split and of the test split.",
        minimum=1,
        maximum=10**6,
        unit="stories",
    )

    def __post_init__(self):
        check_fields(self, "data")
        require_local(self)
        for first, last in self._task_ranges:
            if not 0 < first <= last < first + MAX_TASKS:
                raise UserError(
                    f"data.tasks must have numbers from 1 and ranges such as 1-20, got {self.tasks!r}."
                )

    @property
    def _task_ranges(self) -> list[tuple[int, int]]:
        """The first and the last number of each range of tasks. [] for all tasks."""
        parts = [] if self.tasks == ALL_TASKS else self.tasks.split(",")
        numbers = (part.split("-") for part in parts)
        return [(int(first), int(last[0] if last else first)) for first, *last in numbers]

    @property
    def task_numbers(self) -> list[int]:
        """The numbers of the chosen tasks, each once. [] for all tasks."""
        numbers = [number for first, last in self._task_ranges for number in range(first, last + 1)]
        return sorted(set(numbers))

    @property
    def summary(self) -> str:
        """Description of the data for a line of the model card."""
        if self.kind == BABI:
            return f"bAbI, tasks {self.tasks}, the last {self.last_sentences:,} sentences of each story"
        return f"generated stories ({self.kind}) of up to {self.sentences:,} sentences"


class Story(NamedTuple):
    """A story with a question.

    Attributes:
      kind: one of `KINDS`, or the name of a task of bAbI.
      sentences: the words of each sentence.
      question: the words of the question.
      answer: the answer, a word. Answers of bAbI with several words count as one word.
      facts: indices of the sentences that the answer follows from.
    """

    kind: str
    sentences: list[str]
    question: str
    answer: str
    facts: tuple[int, ...]


class World:
    """The places of people and things, and the sentences about them.

    Attributes:
      sentences: what happened.
      places: {person: (place, index of the sentence that says so)}.
      things: {thing: (place or person who has it, index of the sentence)} of taken and dropped things.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self.sentences: list[str] = []
        self.places: dict[str, tuple[str, int]] = {}
        self.things: dict[str, tuple[str, int]] = {}

    def act(self, with_things: bool) -> None:
        """Adds a sentence: a random person moves, takes a thing, or drops a thing."""
        person = str(self._rng.choice(PEOPLE))
        here = self.places.get(person, ("", 0))[0]
        thing = str(self._rng.choice(THINGS))
        holder = self.things.get(thing, (here, 0))[0]
        if not with_things or not here or self._rng.random() < 0.5 or holder not in (person, here):
            place = str(self._rng.choice([other for other in PLACES if other != here]))
            self.places[person] = place, len(self.sentences)
            self.sentences.append(f"{person} moved to the {place}")
        elif holder == person:
            self.things[thing] = here, len(self.sentences)
            self.sentences.append(f"{person} dropped the {thing}")
        else:  # a thing that nobody had before lies where somebody takes it
            self.things[thing] = person, len(self.sentences)
            self.sentences.append(f"{person} took the {thing}")

    def locate(self, thing: str) -> tuple[str, tuple[int, ...]]:
        """Returns the place of a taken or dropped thing, and the sentences that it follows from."""
        holder, fact = self.things[thing]
        if holder in PEOPLE:
            place, moved = self.places[holder]
            return place, (fact, moved)
        dropper = self.sentences[fact].split()[0]
        moves = [i for i in range(fact) if self.sentences[i].startswith(f"{dropper} moved")]
        return holder, (moves[-1], fact)


class Stories:
    """The stories of a split, see `tfm.data.batches.generated.Generator`.

    Args:
      config: the data section.
      split: "train", "validation" or "test".

    Raises:
      UserError: if the split does not exist.
    """

    def __init__(self, config: StoriesConfig, split: str):
        self._config, self._split = config, find_split(split)
        content = f"stories {split} {config.kind} {config.sentences}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def make(self, *numbers: int) -> Story:
        """Returns the story of these numbers."""
        rng = np.random.default_rng((self._split, *numbers))
        kind = KINDS[numbers[-1] % len(KINDS)] if self._config.kind == "all" else self._config.kind
        world = self._play(rng, kind)
        if kind == "one fact":
            person = str(rng.choice(sorted(world.places)))
            place, fact = world.places[person]
            return Story(kind, world.sentences, f"where is {person}", place, (fact,))
        while not world.things:
            world = self._play(rng, kind)
        thing = str(rng.choice(sorted(world.things)))
        place, facts = world.locate(thing)
        return Story(kind, world.sentences, f"where is the {thing}", place, facts)

    def _play(self, rng: np.random.Generator, kind: str) -> World:
        """Returns a world after a random number of sentences."""
        world = World(rng)
        for _ in range(int(rng.integers(FEWEST_SENTENCES, self._config.sentences + 1))):
            world.act(with_things=kind == "two facts")
        return world

    @functools.cached_property
    def stories(self) -> list[Story]:
        """The stories of an evaluation."""
        return [self.make(EVALUATION, index) for index in range(self._config.evaluated)]

    def assemble(self, examples: list[Story], rows: int) -> Batch:
        """Returns a batch of stories. Padding fills it up to `rows`."""
        return assemble(examples, rows, IDS, self._config.sentences, SENTENCE_WORDS)


def assemble(examples: list[Story], rows: int, ids: Mapping[str, int], sentences: int, words: int) -> Batch:
    """Returns a batch of stories. Padding fills it up to `rows`.

    Args:
      examples: at most `rows` stories.
      rows: number of rows, B.
      ids: {word: id}. Words without an id are left out. An answer without an id gets 0. No model
        answers 0.
      sentences: sentences of a row, S.
      words: words of a sentence, W.
    """
    batch = {
        "stories": np.zeros((rows, sentences, words), np.int32),
        "questions": np.zeros((rows, words), np.int32),
        "answers": np.zeros(rows, np.int32),
        "weights": np.zeros(rows, np.float32),
    }
    for row, story in enumerate(examples):
        for number, sentence in enumerate(story.sentences):
            encode(sentence, ids, batch["stories"][row, number])
        encode(story.question, ids, batch["questions"][row])
        batch["answers"][row] = ids.get(story.answer, 0)
        batch["weights"][row] = 1
    return batch


def encode(sentence: str, ids: Mapping[str, int], row: np.ndarray) -> None:
    """Writes the ids of the words of a sentence into an array int [W]."""
    known = [ids[word] for word in sentence.split() if word in ids]
    row[: len(known)] = known
