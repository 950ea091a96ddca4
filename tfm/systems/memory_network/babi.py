"""bAbI's files of stories with questions (Weston et al. 2015).

A folder has the files qaN_NAME_train.txt and qaN_NAME_test.txt of each task N. Each line begins with a
number, which restarts at 1 for each story. A question has its answer and the numbers of the supporting
sentences after tabs:

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary?    bathroom    1

An answer of several words, such as "apple,milk", is one class. Words are lower-cased, and lose a full stop or
a question mark at their end, as in the authors' program.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tfm.data.batches.generated import EVALUATION, Batch
from tfm.data.config import SPLITS
from tfm.data.data_errors import DataError, MissingFile
from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError
from tfm.io.files import spell_path
from tfm.systems.memory_network.stories import StoriesConfig, Story, assemble

FILE_NAME = re.compile(r"(qa(\d+)_.+)_(train|test)(\.txt(?:\.gz|\.xz|\.bz2|\.zst)?)")
LINE = re.compile(r"(\d{1,9}) (.*)")
EXPECTED = "numbered lines of a story, such as '1 Mary moved to the bathroom.'"
VALIDATION_SHARE = 10  # the last tenth of the stories of each training file is the validation split
VOCABULARY_FILE = "babi_words.json"


class Vocabulary:
    """The words and answers of the training files of a run.

    Args:
      words: all words and answers. The id of a word is its index plus 1.
      answers: the answers that occur in training.
    """

    def __init__(self, words: Sequence[str], answers: Collection[str]):
        self.words, self.answers = list(words), frozenset(answers)

    def dump(self) -> str:
        """Returns the vocabulary as JSON."""
        return json.dumps({"words": self.words, "answers": sorted(self.answers)})


def find_files(data: StoriesConfig, split: str) -> dict[str, str]:
    """Returns {name of a task: path of its file} of the chosen tasks, in the order of their numbers.

    Args:
      data: the data section.
      split: "train", "validation" or "test". The validation split is a part of the training files.

    Raises:
      UserError: if there is no such split, no folder, a file of a chosen task is missing, or a task has two
        files of this split. The error is a `MissingFile` if the files of all chosen tasks are missing.
    """
    if split not in SPLITS:
        raise UserError(f"bAbI's files have the splits {', '.join(SPLITS)}, got {split!r}.")
    directory = spell_path(data.directory)
    if not os.path.isdir(directory or os.curdir):
        raise UserError(f"Expected a folder of bAbI's files at {data.directory}. Set data.directory.")
    file_kind = "test" if split == "test" else "train"
    files = _list_files(directory, file_kind)
    # A test split lacks no task of the training files.
    numbers = data.task_numbers or sorted(_list_files(directory, "train") or files)
    missing = [f"qa{number}_..._{file_kind}.txt" for number in numbers if number not in files]
    if missing or not numbers:
        has_files = len(missing) < len(numbers)
        raise (DataError if has_files else MissingFile)(
            f"Expected the files {', '.join(missing) or f'qaN_..._{file_kind}.txt'} in the folder "
            f"'{data.directory}', but they are missing. Set data.directory to bAbI's folder, such as "
            "tasks_1-20_v1-2/en, and data.tasks to the tasks in it."
        )
    return dict(files[number] for number in numbers)


def _list_files(directory: str, file_kind: str) -> dict[int, tuple[str, str]]:
    """Returns {number of a task: (name of the task, path)} of the files of a kind, "train" or "test"."""
    files: dict[int, tuple[str, str]] = {}
    for name in sorted(os.listdir(directory or os.curdir)):
        match = FILE_NAME.fullmatch(name)
        if not match or match[3] != file_kind:
            continue
        number = int(match[2])
        if number in files:
            raise UserError(
                f"Expected one {file_kind} file of task {number} in {directory}, got "
                f"{os.path.basename(files[number][1])} and {name}. Remove one of them."
            )
        files[number] = match[1], os.path.join(directory, name)
    return files


def read_stories(path: str, kind: str, sentences: int) -> Iterator[list[Story]]:
    """Yields the questions of each story of a file.

    Args:
      path: path of the file.
      kind: name of the task.
      sentences: number of the most recent sentences before a question to keep.

    Raises:
      UserError: if a line has another form. The message has the number of the line.
    """
    file = TextFile(path, EXPECTED)
    texts: dict[int, str] = {}  # {number of a line of this story: its sentence}
    questions: list[Story] = []
    last = 0
    for number, line in enumerate(file, 1):
        match = LINE.fullmatch(line.rstrip())
        if not match:
            raise file.error(number, f"has no number and text: expected {EXPECTED}")
        index, text = int(match[1]), match[2]
        if index not in (1, last + 1):
            raise file.error(
                number,
                f"has the number {index:,} after {last:,}: expected {last + 1:,}, or 1 for a new story",
            )
        if index == 1:
            yield questions
            texts, questions = {}, []
        last = index
        if "\t" in text:
            try:
                questions.append(_read_question(text.split("\t"), kind, texts, sentences))
            except ValueError as error:
                raise file.error(number, str(error)) from None
        elif text.endswith("?"):
            raise file.error(number, "is a question without an answer: add a tab and the answer")
        else:
            texts[index] = " ".join(split_words(text))
    yield questions


def _read_question(fields: Sequence[str], kind: str, texts: dict[int, str], sentences: int) -> Story:
    """Returns the question of a line. Raises a ValueError with the problem if it is invalid."""
    question, answer, *rest = (field.strip() for field in fields)
    if not question or not answer:
        raise ValueError("needs a question and an answer, but one of both is empty")
    if len(rest) > 1:
        raise ValueError(
            f"has {len(rest) + 2} fields: expected a question, its answer and the supporting sentences, "
            "separated by tabs"
        )
    if not texts:
        raise ValueError("is a question before the first sentence of its story")
    numbers = list(texts)
    try:
        facts = [numbers.index(int(fact)) for fact in " ".join(rest).split()]
    except ValueError:
        raise ValueError(
            f"has the supporting sentences {rest[0]!r}: expected the numbers of sentences of this story that "
            "stand before the question"
        ) from None
    first = max(len(texts) - sentences, 0)
    return Story(
        kind,
        list(texts.values())[first:],
        " ".join(split_words(question)),
        answer.lower(),
        tuple(fact - first for fact in facts if fact >= first),
    )


def split_words(text: str) -> list[str]:
    """Returns the lower-case words of a sentence, without a full stop or a question mark at their end."""
    words = (word.removesuffix(".").removesuffix("?") for word in text.lower().split())
    return [word for word in words if word]


def read_split(data: StoriesConfig, split: str) -> list[Story]:
    """Returns all questions of a split, task by task.

    The last tenth of the stories of each training file, but at least one story, is the validation split.

    Raises:
      UserError: if files are missing or damaged, or a training file has fewer than two stories with
        questions.
    """
    stories = []
    for kind, path in find_files(data, split).items():
        groups = [group for group in read_stories(path, kind, data.last_sentences) if group]
        if not groups:
            raise UserError(f"{path} has no question. A question has its answer after a tab.")
        if split != "test":
            if len(groups) < 2:
                raise UserError(
                    f"{path} has one story with questions, but the last tenth of the stories becomes the "
                    "validation split. Number the lines of each story from 1, or add stories."
                )
            count = max(len(groups) // VALIDATION_SHARE, 1)
            groups = groups[-count:] if split == "validation" else groups[:-count]
        stories += [story for group in groups for story in group]
    return stories


def learn_vocabulary(data: StoriesConfig) -> Vocabulary:
    """Returns the words of the training files in alphabetical order, with answers as words."""
    stories = [story for split in ("train", "validation") for story in read_split(data, split)]
    answers = {story.answer for story in stories}
    words = {
        word for story in stories for text in (*story.sentences, story.question) for word in text.split()
    }
    return Vocabulary(sorted(words | answers), answers)


def parse_vocabulary(fields: Any) -> Vocabulary:
    """Returns the vocabulary of the fields that `Vocabulary.dump` writes.

    Raises:
      ValueError, TypeError, KeyError: if the fields are different.
    """
    words, answers = fields["words"], fields["answers"]
    if not all(isinstance(word, str) for word in (*words, *answers)) or not {*answers} <= {*words}:
        raise ValueError("expected words, and answers among them")
    return Vocabulary(words, answers)


def fingerprint_stories(stories: list[Story]) -> str:
    """Returns a hash of the questions of a split."""
    return hashlib.sha256(json.dumps(stories).encode()).hexdigest()


class BabiStories:
    """The questions of a split of bAbI's files, see `tfm.data.batches.generated.Generator`.

    In training, each epoch has all questions in a new order.

    Args:
      data: the data section.
      split: "train", "validation" or "test".
      vocabulary: words of the run. Other words of a story are left out.

    Attributes:
      stories: the questions.

    Raises:
      UserError: see `read_split`.
    """

    def __init__(self, data: StoriesConfig, split: str, vocabulary: Vocabulary):
        self.stories = read_split(data, split)
        self._vocabulary, self._batch_size = vocabulary, data.batch_size
        self._ids = {word: number for number, word in enumerate(vocabulary.words, 1)}
        self._shape = (
            max(len(story.sentences) for story in self.stories),
            max(len(text.split()) for story in self.stories for text in (*story.sentences, story.question)),
        )
        self.fingerprint = fingerprint_stories(self.stories)
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)

    @property
    def unknown_answers(self) -> int:
        """Number of questions whose answer does not occur in training."""
        return sum(story.answer not in self._vocabulary.answers for story in self.stories)

    def make(self, *numbers: int) -> Story:
        """Returns the question of these numbers: (`EVALUATION`, index) or (seed, step, row)."""
        if numbers[0] == EVALUATION:
            return self.stories[numbers[1]]
        seed, step, row = numbers
        epoch, place = divmod(step * self._batch_size + row, len(self.stories))
        return self.stories[self._order(seed, epoch)[place]]

    def _draw_order(self, seed: int, epoch: int) -> list[int]:
        return np.random.default_rng((seed, epoch)).permutation(len(self.stories)).tolist()

    def assemble(self, examples: list[Story], rows: int) -> Batch:
        """Returns a batch of stories. Padding fills it up to `rows`."""
        return assemble(examples, rows, self._ids, *self._shape)
