"""Generated stories with questions, like the tasks 1 and 2 of bAbI (Weston et al. 2015).

    one fact     Mary moved to the garden. ...                               Where is Mary? garden
    two facts    John took the apple. ... John moved to the hall. ...        Where is the apple? hall

A batch is a dict of

    stories     int32 [B, S, W], the ids of the words of each sentence, padded with 0
    questions   int32 [B, W]
    answers     int32 [B]
    weights     float32 [B]; 1, or 0 in padding rows
"""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from tfm.config import check_fields, field
from tfm.data.batches.generated import Batch, GeneratedData, find_split

PEOPLE = ("mary", "john", "sandra", "daniel")
PLACES = ("garden", "kitchen", "hall", "office", "bedroom", "bathroom")
THINGS = ("apple", "football", "milk")
KINDS = ("one fact", "two facts")
OTHER_WORDS = ("moved", "to", "the", "took", "dropped", "where", "is")
WORDS = (*PEOPLE, *PLACES, *THINGS, *OTHER_WORDS)  # the id of a word is its index plus 1
IDS = {word: number for number, word in enumerate(WORDS, 1)}
SENTENCE_WORDS = 5
FEWEST_SENTENCES = 2


@dataclasses.dataclass(frozen=True)
class StoriesConfig:
    """The stories with questions, and how they become batches."""

    kind: str = field(
        "all",
        "Kind of the questions: where a person is (one fact), where a thing is (two facts), or both in turn.",
        choices=("all", *KINDS),
    )
    sentences: int = field(
        10, "Maximum number of sentences of a story.", minimum=4, maximum=1000, unit="sentences"
    )
    batch_size: int = field(32, "Stories of a batch.", minimum=1, maximum=10**6, unit="stories")
    evaluated: int = field(
        1000,
        "Number of stories of the validation split and of the test split.",
        minimum=1,
        maximum=10**6,
        unit="stories",
    )

    def __post_init__(self):
        check_fields(self, "data")


class Story(NamedTuple):
    """A story with a question.

    Attributes:
      kind: one of `KINDS`.
      sentences: the words of each sentence.
      question: the words of the question.
      answer: the answer, a word.
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

    def assemble(self, examples: list[Story], rows: int) -> Batch:
        """Returns a batch of stories. Padding fills it up to `rows`."""
        length = self._config.sentences
        batch = {
            "stories": np.zeros((rows, length, SENTENCE_WORDS), np.int32),
            "questions": np.zeros((rows, SENTENCE_WORDS), np.int32),
            "answers": np.zeros(rows, np.int32),
            "weights": np.zeros(rows, np.float32),
        }
        for row, story in enumerate(examples):
            for number, sentence in enumerate(story.sentences):
                encode(sentence, batch["stories"][row, number])
            encode(story.question, batch["questions"][row])
            batch["answers"][row] = IDS[story.answer]
            batch["weights"][row] = 1
        return batch


def encode(sentence: str, ids: np.ndarray) -> None:
    """Writes the ids of the words of a sentence into an array int [W]."""
    words = sentence.split()
    ids[: len(words)] = [IDS[word] for word in words]


def open_stories(config: Any, hosts: dict[str, int]) -> GeneratedData:
    """Opens the training and validation stories of a run.

    Args:
      config: config of the task, with the sections data and training.
      hosts: index and number of hosts, see `GeneratedBatches`.
    """
    data = config.data
    return GeneratedData(
        Stories(data, "train"),
        Stories(data, "validation"),
        batch_size=data.batch_size,
        seed=config.training.seed,
        hosts=hosts,
        description=f"{data.batch_size:,} new stories of up to {data.sentences:,} sentences in each batch",
    )
