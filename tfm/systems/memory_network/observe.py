"""Observes a memory network while it answers a question about a story of the user."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfm.data.batches.generated import Batch
from tfm.errors import UserError
from tfm.interpret.observation import MAX_CHOICES, AttentionMap, Observation, Prediction, Track
from tfm.systems.memory_network.babi import split_words
from tfm.systems.memory_network.stories import Story, assemble

SENTENCE_END = re.compile(r"[.!?\n]+")
EXAMPLE = "Mary moved to the garden. John moved to the hall. Where is Mary?"
ROUND_WORDS = 8  # words of a sentence are padded to a multiple, so that few programs are compiled
log = logging.getLogger(__name__)


def parse_story(text: str, sentences: int) -> Story:
    """Returns the story and the question of a text such as `EXAMPLE`. Its answer is empty.

    Args:
      text: sentences that end in a full stop or in a line end. The last sentence is the question.
      sentences: number of the most recent sentences to keep.

    Raises:
      UserError: if the text does not have a sentence and a question.
    """
    parts = [" ".join(split_words(part)) for part in SENTENCE_END.split(text)]
    *story, question = [part for part in parts if part] or [""]
    if not story:
        raise UserError(f"Expected a story and a question, such as {EXAMPLE!r}, got {text!r}.")
    return Story("", story[-sentences:], question, "", ())


def list_unknown_words(story: Story, words: Collection[str]) -> list[str]:
    """Returns the different words of a story and its question that a vocabulary lacks."""
    known = set(words)
    texts = (*story.sentences, story.question)
    return list(dict.fromkeys(word for text in texts for word in text.split() if word not in known))


def check_question(story: Story, words: Sequence[str]) -> None:
    """Checks that a vocabulary has a word of a question, and warns of the words that it lacks.

    Raises:
      UserError: if the vocabulary has no word of the question.
    """
    unknown = list_unknown_words(story, words)
    if set(story.question.split()) <= set(unknown):
        raise UserError(
            f"The vocabulary has no word of the question {story.question!r}. Use words of the training "
            f"stories, such as {', '.join(words[:5])}."
        )
    if unknown:
        log.warning("Left out words that the vocabulary lacks: %s", ", ".join(unknown))


def make_batch(story: Story, ids: Mapping[str, int], sentences: int) -> Batch:
    """Returns a batch of one story, padded to at least `sentences` sentences."""
    longest = max(len(text.split()) for text in (*story.sentences, story.question))
    words = -(-longest // ROUND_WORDS) * ROUND_WORDS
    return assemble([story], 1, ids, max(sentences, len(story.sentences)), words)


def describe_answer(
    story: Story, words: list[str], answers: Collection[str], probabilities: np.ndarray, weights: np.ndarray
) -> Observation:
    """Returns the record of an answer.

    Args:
      story: the story and its question.
      words: the words of the vocabulary. The first has the id 1.
      answers: the answers that occur in training.
      probabilities: float [V], of the ids from 0.
      weights: float [hops, S], the attention of each hop to the sentences and to padding.
    """
    order = [number for number in np.argsort(-probabilities[1:], kind="stable") if words[number] in answers]
    choices = [(words[number], float(probabilities[number + 1])) for number in order[:MAX_CHOICES]]
    answer, probability = choices[0]
    count = len(story.sentences)
    tracks = {
        "question": Track("question", [story.question], [0], [story.question]),
        "sentences": Track("sentence", story.sentences, list(range(count)), story.sentences),
    }
    attention = AttentionMap("question", "sentences", weights[:, None, None, :count].astype(np.float32))
    title = f"{story.question}?"
    return Observation(title, answer, tracks, {"memory": attention}, [Prediction(probability, choices)])
