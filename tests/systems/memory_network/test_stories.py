"""Tests of the generated stories: an independent reader of the sentences finds the same answers."""

import collections
import itertools

import numpy as np
import pytest

from tfm.errors import UserError
from tfm.systems.memory_network.stories import (
    KINDS,
    PEOPLE,
    PLACES,
    THINGS,
    WORDS,
    Stories,
    StoriesConfig,
)


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


def make_stories(count, **fields):
    stories = Stories(StoriesConfig(**fields), "train")
    return [stories.make(0, number) for number in range(count)]


def test_lengths_of_stories_are_uniform_from_two_to_the_maximum():
    lengths = collections.Counter(
        len(story.sentences) for story in make_stories(1400, kind="one fact", sentences=8)
    )
    assert lengths.keys() == set(range(2, 9))
    assert {n: count / 1400 for n, count in lengths.items()} == pytest.approx(
        dict.fromkeys(range(2, 9), 1 / 7), abs=0.03
    )


def follow(sentences):
    """Yields (sentence, places of people, {thing: person or place}) before each sentence."""
    places, things = {}, {}
    for sentence in sentences:
        yield sentence, dict(places), dict(things)
        person, verb, *_, last = sentence.split()
        if verb == "moved":
            places[person] = last
        else:
            things[last] = person if verb == "took" else places[person]


def test_moves_go_to_any_other_place_and_people_take_turns_at_random():
    steps, people = collections.Counter(), collections.Counter()
    for story in make_stories(300, kind="one fact"):
        for sentence, places, _ in follow(story.sentences):
            person, verb, *_, place = sentence.split()
            assert verb == "moved"
            people[person] += 1
            steps[places.get(person), place] += 1
    assert all(before != after for before, after in steps)
    total = sum(people.values())
    assert {person: count / total for person, count in people.items()} == pytest.approx(
        dict.fromkeys(PEOPLE, 1 / 4), abs=0.04
    )
    later = {pair: count for pair, count in steps.items() if pair[0]}
    share = dict.fromkeys(itertools.permutations(PLACES, 2), 1 / 30)
    assert {pair: n / sum(later.values()) for pair, n in later.items()} == pytest.approx(share, abs=0.025)


def test_half_of_the_chances_to_take_or_drop_a_thing_are_used():
    """A chance is a person who has a place, and a thing that the person has or that lies there.

    A thing that nobody has had lies everywhere.
    """
    expected, taken_or_dropped, count = 0.0, 0, 0
    for story in make_stories(300, kind="two facts", sentences=20):
        for sentence, places, things in follow(story.sentences):
            chances = [
                things.get(thing, places.get(person)) in (person, places[person])
                for person, thing in itertools.product(PEOPLE, THINGS)
                if person in places
            ]
            expected += 0.5 * sum(chances) / (len(PEOPLE) * len(THINGS))
            taken_or_dropped += sentence.split()[1] != "moved"
            count += 1
    assert taken_or_dropped / count == pytest.approx(expected / count, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_about_anything_that_has_a_place(kind):
    """Each is asked about equally often, however late in the story its last sentence is."""
    is_last, expected, asked = 0.0, 0.0, collections.Counter()
    for story in make_stories(800, kind=kind):
        ends = [words.split()[-1 if kind == "two facts" else 0] for words in story.sentences]
        known = [word for word in ends if word in THINGS + PEOPLE]
        word = story.question.split()[-1]
        asked[word] += 1
        is_last += word == known[-1]
        expected += 1 / len(set(known))
    assert is_last / 800 == pytest.approx(expected / 800, abs=0.05)
    words = THINGS if kind == "two facts" else PEOPLE
    assert {word: n / 800 for word, n in asked.items()} == pytest.approx(
        dict.fromkeys(words, 1 / len(words)), abs=0.06
    )


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_the_last_sentences_about_what_the_question_names(kind):
    for story in make_stories(100, kind=kind):
        sentences, word = list(enumerate(map(str.split, story.sentences))), story.question.split()[-1]
        fact, (person, verb, *_) = [item for item in sentences if word in item[1]][-1]
        expected = {fact}
        if verb != "moved":
            end = len(sentences) if verb == "took" else fact
            moves = [i for i, words in sentences[:end] if words[:2] == [person, "moved"]]
            expected.add(moves[-1])
        assert set(story.facts) == expected
        if kind == "two facts":
            assert story.facts[0] == (fact if verb == "took" else moves[-1])


def test_stories_follow_all_their_numbers():
    stories = Stories(StoriesConfig(sentences=20), "train")
    one, again = (stories.make(3, 4, 6) for _ in range(2))
    assert one == again
    others = [stories.make(*numbers) for numbers in ((1, 4, 6), (3, 2, 6), (3, 4, 8))]
    assert all(one.kind == other.kind and one.sentences != other.sentences for other in others)


def test_identity_of_stories_depends_on_the_split_and_what_the_stories_are():
    configs = [StoriesConfig(), StoriesConfig(kind="one fact"), StoriesConfig(sentences=11)]
    identities = {
        Stories(config, split).fingerprint for config in configs for split in ("train", "validation", "test")
    }
    assert len(identities) == 9
    assert Stories(StoriesConfig(batch_size=5), "test").fingerprint in identities


def test_sentences_have_at_most_the_words_of_a_row():
    longest = max(
        len(words.split()) for story in make_stories(50) for words in [*story.sentences, story.question]
    )
    batch = Stories(StoriesConfig(), "train").assemble([], 1)
    assert batch["stories"].shape == (1, 10, longest) == (1, 10, 5)
    assert batch["questions"].shape == (1, longest)
