"""Tests of bAbI's files: reading, splits, batches, scores, and what is wrong with them."""

import collections
import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.support.babi import TASKS, write_babi
from tests.systems.memory_network.numpy_memory_network import encode, memory_network
from tfm.data.batches.generated import EVALUATION
from tfm.errors import UserError
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.babi import BabiStories, Vocabulary, read_split, read_stories
from tfm.systems.memory_network.model import MemoryNetwork, MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.config import TrainingConfig
from tfm.training.task import Context

# In the form of the released files: a blank before the tab, questions between sentences, and two stories.
TEXT = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel picked up the Apple there.
5 What is Daniel carrying?\tapple,milk\t4 2
1 Sandra journeyed to the garden.
2 Where is Sandra? \tGarden\t1
"""


def write(folder, text, name="qa1_own_train.txt"):
    path = folder / name
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def read(path, sentences=50):
    return [story for group in read_stories(str(path), "qa1_own", sentences) for story in group]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("babi")
    write_babi(folder)
    return folder


def make_data(folder, **fields):
    return StoriesConfig(kind="babi", directory=str(folder), batch_size=5, **fields)


@pytest.fixture(scope="module")
def task(folder, tmp_path_factory):
    config = question_answering.Config(
        model=MemoryNetworkConfig(features=6), data=make_data(folder), training=TrainingConfig(seed=3)
    )
    return question_answering.create(config, str(tmp_path_factory.mktemp("run")))


def test_questions_have_the_sentences_before_them(tmp_path):
    first, second, third = read(write(tmp_path, TEXT))
    assert first.sentences == ["mary moved to the bathroom", "john went to the hallway"]
    assert (first.question, first.answer, first.facts) == ("where is mary", "bathroom", (0,))
    assert second.sentences == [*first.sentences, "daniel picked up the apple there"]
    assert (second.answer, second.facts) == ("apple,milk", (2, 1))  # line 4 is the third sentence
    assert third == ("qa1_own", ["sandra journeyed to the garden"], "where is sandra", "garden", (0,))


def test_only_the_last_sentences_are_kept(tmp_path):
    _, second, _ = read(write(tmp_path, TEXT), sentences=2)
    assert second.sentences == ["john went to the hallway", "daniel picked up the apple there"]
    assert second.facts == (1, 0)
    assert read(write(tmp_path, TEXT), sentences=1)[1].facts == (0,)  # the other fact is forgotten


def test_windows_line_ends_and_missing_facts_are_read(tmp_path):
    plain = read(write(tmp_path, TEXT))
    assert read(write(tmp_path, TEXT.replace("\n", "\r\n"))) == plain
    assert [story.facts for story in read(write(tmp_path, TEXT.replace("\t4 2", "")))] == [(0,), (), (0,)]


def test_validation_split_is_the_last_tenth_of_the_stories_of_each_task(folder):
    data = make_data(folder)
    train, validation, test = (read_split(data, split) for split in ("train", "validation", "test"))
    kinds = [f"qa{number}_{name}" for number, name in TASKS.items()]
    assert collections.Counter(story.kind for story in train) == dict.fromkeys(kinds, 22)
    assert collections.Counter(story.kind for story in validation) == dict.fromkeys(kinds, 2)
    assert collections.Counter(story.kind for story in test) == dict.fromkeys(kinds, 7)
    whole = read(folder / "qa1_single-supporting-fact_train.txt")
    strip = [story._replace(kind="") for story in (*train[:22], *validation[:2])]
    assert strip == [story._replace(kind="") for story in whole]


def test_tasks_are_chosen_by_number(folder):
    for tasks, expected in {"8": {8}, "1,8": {1, 8}, "1-1,8": {1, 8}, "all": {1, 8}}.items():
        kinds = {story.kind for story in read_split(make_data(folder, tasks=tasks), "train")}
        assert kinds == {f"qa{number}_{TASKS[number]}" for number in expected}
    with pytest.raises(UserError, match=r"qa3_.*data\.tasks"):
        read_split(make_data(folder, tasks="1-3"), "train")
    with pytest.raises(UserError, match=r"data\.tasks.*'5-2'"):
        make_data(folder, tasks="5-2")
    with pytest.raises(UserError, match="'dev'"):
        read_split(make_data(folder), "dev")


LINES = {
    "a question without an answer": ("1 Mary left.\n2 Where is Mary?\n", "Line 2 .* without an answer"),
    "an empty answer": ("1 Mary left.\n2 Where is Mary?\t\t1\n", "Line 2 .* empty"),
    "a fact that does not exist": ("1 Mary left.\n2 Where is Mary?\thome\t7\n", "Line 2 .*'7'"),
    "a fact that is a question": ("1 A.\n2 B?\tc\t1\n3 D?\te\t2\n", "Line 3 .*'2'"),
    "a fact that is no number": ("1 Mary left.\n2 Where is Mary?\thome\tx\n", "Line 2 .*'x'"),
    "numbers that do not restart": ("1 A.\n2 B?\tc\t1\n7 D.\n", "Line 3 .* 7 after 2: expected 3, or 1"),
    "a line without a number": ("1 A.\nMary left.\n", "Line 2 .* no number"),
    "a line without a text": ("1 A.\n2\n", "Line 2 .* no number and text"),
    "a question first": ("1 Where is Mary?\thome\n", "Line 1 .* before the first sentence"),
    "too many tabs": ("1 A.\n2 B?\tc\t1\t2\n", "Line 2 .* 4 fields"),
    "one story": ("1 A.\n2 B?\tc\t1\n", "one story"),
    "no question": ("1 A.\n2 B.\n1 C.\n", "no question"),
    "an empty file": ("", "empty"),
    "Latin-1": ("1 Mary went to the café.\n".encode("latin-1"), "Line 1 .* UTF-8"),
}


@pytest.mark.parametrize("case", LINES)
def test_bad_file_is_one_error_with_its_line(case, tmp_path):
    text, message = LINES[case]
    write(tmp_path, text)
    config = question_answering.Config(data=make_data(tmp_path))
    with pytest.raises(UserError, match=message) as error:
        question_answering.create(config, str(tmp_path))
    assert "qa1_own_train.txt" in str(error.value)


def test_bad_test_file_is_an_error_before_training(tmp_path):
    write_babi(tmp_path)
    write(tmp_path, "1 Mary left.\n2 Where is Mary?\n", "qa1_single-supporting-fact_test.txt")
    task = question_answering.create(question_answering.Config(data=make_data(tmp_path)), str(tmp_path))
    with pytest.raises(UserError, match=r"Line 2 .*_test\.txt"):
        task.open_data()
    (tmp_path / "qa1_single-supporting-fact_test.txt").unlink()
    with pytest.raises(UserError, match=r"qa1_\.\.\._test\.txt in .*missing"):
        task.open_data()
    for path in tmp_path.glob("*_test.txt"):
        path.unlink()
    task.open_data()  # a missing test split is no error
    with pytest.raises(UserError, match=r"qa1_.*_test\.txt.*missing"):
        question_answering.inspect_split(task.config, "test")


def test_two_files_of_a_task_are_an_error(folder, tmp_path):
    write_babi(tmp_path)
    write(tmp_path, TEXT, "qa8_other_train.txt")
    with pytest.raises(UserError, match=r"qa8_lists-sets_train\.txt and qa8_other_train\.txt"):
        read_split(make_data(tmp_path), "train")
    with pytest.raises(UserError, match=r"data\.directory"):
        read_split(make_data(tmp_path / "missing"), "train")


def test_words_of_a_run_are_those_of_its_training_files(task, folder):
    texts = [(folder / f"qa{n}_{name}_train.txt").read_text() for n, name in TASKS.items()]
    lines = [line.split(" ", 1)[1].lower() for text in texts for line in text.splitlines()]
    expected = {line.split("\t")[1] for line in lines if "\t" in line}
    answers = set(expected)
    for line in lines:
        expected |= set(line.split("\t")[0].replace(".", "").replace("?", "").split())
    assert "apple,milk" in answers
    assert task.vocabulary.words == sorted(expected)
    assert task.vocabulary.answers == answers
    assert list(task.assets()) == ["babi_words.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"words": [1], "answers": []}', '{"words": [], "answers": ["a"]}']
)
def test_damaged_words_are_an_error(content, folder, tmp_path):
    (tmp_path / "babi_words.json").write_text(content)
    config = question_answering.Config(data=make_data(folder))
    with pytest.raises(UserError, match=r"babi_words\.json.*damaged"):
        question_answering.create(config, str(tmp_path), new=False)
    with pytest.raises(UserError, match=r"babi_words\.json.*missing"):
        question_answering.create(config, str(tmp_path / "empty"), new=False)


def test_epoch_has_each_question_once_in_an_order_of_its_own(folder):
    stories = BabiStories(make_data(folder), "train", Vocabulary([], []))
    count = len(stories.stories)  # 44 in batches of 5
    drawn = [stories.make(7, *divmod(place, 5)) for place in range(2 * count)]
    key = json.dumps
    for epoch in (drawn[:count], drawn[count:]):
        assert sorted(map(key, epoch)) == sorted(map(key, stories.stories))
    assert drawn[:count] != drawn[count:]
    assert drawn[:count] != [stories.make(8, *divmod(place, 5)) for place in range(count)]
    assert stories.make(EVALUATION, 3) == stories.stories[3]


def test_batch_has_the_words_of_stories_and_leaves_out_unknown_words(tmp_path):
    write(tmp_path, TEXT)
    write(
        tmp_path, TEXT.replace("apple,milk", "pear").replace("Apple there", "Apple here"), "qa1_own_test.txt"
    )
    config = question_answering.Config(data=make_data(tmp_path))
    task = question_answering.create(config, str(tmp_path))
    words, split = task.vocabulary.words, BabiStories(config.data, "test", task.vocabulary)
    batch = split.assemble(split.stories, 4)
    assert split.unknown_answers == 1
    assert batch["weights"].tolist() == [1, 1, 1, 0]
    assert [words[number - 1] if number else None for number in batch["answers"][:3]] == [
        "bathroom",
        None,
        "garden",
    ]
    shown = [[words[number - 1] for number in row if number] for row in batch["stories"][1]]
    assert [" ".join(row) for row in shown] == [
        "mary moved to the bathroom",
        "john went to the hallway",
        "daniel picked up the apple",
    ]


@pytest.mark.long
def test_scores_are_the_mean_of_the_tasks_and_the_failed_tasks(task):
    params = random_parameters(task.model, np.ones((1, 2, 3), int), np.ones((1, 3), int), deviation=1.0)
    (report,) = task.report({"params": params}, "test")
    scores = {score.name: score for score in report.scores}
    stories, answers, _ = task.answer({"params": params}, "test")
    rights = collections.defaultdict(list)
    for story, answer in zip(stories, answers, strict=True):
        rights[story.kind].append(100 * (story.answer == answer))
    means = {kind: np.mean(values) for kind, values in rights.items()}
    assert {name: scores[f"accuracy, {name}"].value for name in means} == pytest.approx(means)
    assert scores["accuracy"].value == pytest.approx(np.mean(list(means.values())))
    assert scores["failed tasks"].value == 2
    right = np.ones(len(stories), bool)
    right[0] = False  # 1 of 7 is an error of 14 per cent
    scores = {score.name: score.value for score in task.score_answers(stories, right)}
    assert (scores["failed tasks"], scores["accuracy"]) == (1, pytest.approx(100 * (1 - 1 / 14)))


def test_answer_that_training_never_saw_is_wrong_and_counted(folder, tmp_path):
    write_babi(tmp_path)
    path = tmp_path / "qa8_lists-sets_test.txt"
    text = path.read_text()
    path.write_text(text.replace("\tapple\t", "\tpear\t"))
    count = text.count("\tapple\t")
    config = question_answering.Config(model=MemoryNetworkConfig(features=6), data=make_data(tmp_path))
    task = question_answering.create(config, str(tmp_path))
    stories = BabiStories(config.data, "test", task.vocabulary).stories
    scores = task.score_answers(stories, np.zeros(len(stories), bool))
    assert count > 0
    assert f"{count} wrong because" in scores[0].signature
    summary = question_answering.inspect_split(config, "test")
    assert summary.values["unknown_answers"] == count
    assert len(summary.hints) == 1


def test_summary_counts_questions_answers_and_tasks(folder):
    summary = question_answering.inspect_split(question_answering.Config(data=make_data(folder)), "test")
    assert summary.title == "14 questions of 2 tasks"
    assert summary.values["questions"] == 14
    assert summary.values["tasks"] == {f"qa{number}_{name}": 7 for number, name in TASKS.items()}
    assert sum(summary.values["answers"].values()) == 14
    assert len(summary.hashes) == 14
    config = question_answering.Config(data=StoriesConfig(evaluated=9))
    generated = question_answering.inspect_split(config, "validation")
    assert generated.values["questions"] == 9
    assert generated.values["unknown_answers"] is None


def test_published_config_has_no_folder_of_this_machine(task):
    assert task.config.without_paths().data == dataclasses.replace(task.config.data, directory="")
    assert "bAbI" in task.config.data.summary


def test_linear_start_removes_the_softmax_of_the_hops():
    """Without the softmax, a hop is linear in the sentences: o = sum_i (u . m_i) c_i."""
    config = MemoryNetworkConfig(features=4, hops=2, time_noise=0.0)
    model = MemoryNetwork(config, 9)
    stories, questions = np.array([[[1, 2], [3, 4], [0, 0]]]), np.array([[5, 6]])
    params = random_parameters(model, stories, questions)

    @quick_jit
    def apply(params, linear):
        return model.apply({"params": params}, stories, questions, train=False, linear=linear)

    def add_ages(table, hop):
        return [
            encode(config, table, [1, 2]) + params[f"ages_{hop}"][1],
            encode(config, table, [3, 4]) + params[f"ages_{hop}"][0],
        ]

    u = encode(config, params["words_0"], [5, 6])
    for hop in range(2):
        keys, values = (add_ages(params[f"words_{k}"], k) for k in (hop, hop + 1))
        u = u + sum((u @ key) * value for key, value in zip(keys, values, strict=True))
    np.testing.assert_allclose(apply(params, True)[0], params["words_2"] @ u, rtol=1e-4)
    usual, _ = memory_network(config, params, stories[0].tolist(), [5, 6])
    np.testing.assert_allclose(apply(params, False)[0], usual, rtol=1e-4)


@pytest.mark.long
def test_linear_start_ends_after_its_steps(task):
    config = dataclasses.replace(
        task.config, linear_steps=2, model=MemoryNetworkConfig(features=6, time_noise=0.0)
    )
    task = question_answering.QuestionAnswering(config, task.vocabulary)
    batch = task.open_data().example() | {"weights": np.ones(5, np.float32)}
    batch["stories"] = batch["stories"] + 1
    variables = {"params": random_parameters(task.model, batch["stories"], batch["questions"])}

    @quick_jit
    def compute(variables, step, key):
        trained = task.loss(variables, batch, Context(step, key)).terms["loss"][0]
        return trained, task.loss(variables, batch, Context()).terms["loss"][0]

    losses = [compute(variables, step, jax.random.key(0)) for step in range(4)]
    trained = [float(loss) for loss, _ in losses]
    assert trained[0] == trained[1] != trained[2] == trained[3]
    assert trained[3] == pytest.approx(float(losses[3][1]), rel=1e-5)
