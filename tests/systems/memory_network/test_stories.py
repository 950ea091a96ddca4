"""Tests of the generated stories: an independent reader of the sentences finds the same answers."""

import itertools

import numpy as np
import pytest

from tfm.errors import UserError
from tfm.systems.memory_network.stories import KINDS, PLACES, WORDS, Stories, StoriesConfig


def read(sentences):
    """Returns {person or thing: place} after all sentences, by following every thing that is carried."""
    where, carried = {}, {}
    for words in map(str.split, sentences):
        person, verb, thing = words[0], words[1], words[-1]
        if verb == "moved":
            where[person] = thing
        elif verb == "took":
            assert carried.get(thing) is None, "the thing has a holder"
            assert where.get(thing, where[person]) == where[person], "the thing is elsewhere"
            carried[thing] = person
        else:
            assert carried[thing] == person, "the person does not have the thing"
            carried[thing] = None
        for thing, holder in carried.items():
            where[thing] = where[holder] if holder else where[thing]
    return where


@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_from_the_stories(kind):
    stories = Stories(StoriesConfig(kind=kind, sentences=12), "train")
    answers = set()
    for number in range(300):
        story = stories.make(0, number)
        assert story.kind == kind
        assert 2 <= len(story.sentences) <= 12
        where, words = read(story.sentences), story.question.split()
        expected = where[words[-1]]
        assert story.answer == expected, story
        answers.add(story.answer)
    assert answers == set(PLACES)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_from_the_facts_alone(kind):
    stories = Stories(StoriesConfig(kind=kind), "train")
    for number in range(100):
        story = stories.make(0, number)
        facts = [story.sentences[fact] for fact in sorted(set(story.facts))]
        assert len(facts) == (2 if kind == "two facts" else 1)
        assert [words[-1] for words in map(str.split, facts) if words[1] == "moved"] == [story.answer]


def test_kinds_take_turns_and_splits_differ():
    config = StoriesConfig()
    kinds = [Stories(config, "train").make(0, number).kind for number in range(4)]
    assert kinds == [*KINDS, *KINDS]
    first = [Stories(config, split).make(0, 1) for split in ("train", "validation", "test")]
    assert all(a != b for a, b in itertools.combinations(first, 2))
    with pytest.raises(UserError, match="'other'"):
        Stories(config, "other")


def test_batch_has_the_words_of_the_stories():
    stories = Stories(StoriesConfig(sentences=6), "test")
    examples = [stories.make(0, number) for number in range(3)]
    batch = stories.assemble(examples, 4)
    np.testing.assert_array_equal(batch["weights"], [1, 1, 1, 0])
    for row, story in enumerate(examples):
        sentences = [" ".join(WORDS[i - 1] for i in ids if i) for ids in batch["stories"][row] if ids.any()]
        assert sentences == story.sentences
        assert " ".join(WORDS[i - 1] for i in batch["questions"][row] if i) == story.question
        assert WORDS[batch["answers"][row] - 1] == story.answer
