"""Tests of the scores of word vectors against loops over all words, and of the map of words."""

import collections
import functools
import itertools
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tfm.datasets import toy_language
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec import word_map
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig
from tfm.systems.word2vec.word_map import NAMED_WORDS, choose_names, draw_word_map
from tfm.systems.word2vec.word_questions import (
    find_neighbours,
    list_pairs,
    make_analogies,
    read_sentences,
    read_word_classes,
    solve_analogies,
)

RELATIONS = ("plural", "third person", "past", "gender")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Returns a task with the words of 2,000 sentences."""
    config = word_vectors.Config(
        model=Word2VecConfig(features=8), data=SkipGramsConfig(sentences=2000), validation_samples=3
    )
    return word_vectors.create(config, str(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def vectors(task):
    """Returns vectors [V, D] of different lengths that solve some analogies."""
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=8) for word in task.words}
    for relation in RELATIONS:
        change = 2 * rng.normal(size=8)
        for first, second in list_pairs(relation):
            if {first, second} <= vectors.keys():
                vectors[second] = vectors[first] + change + 0.3 * rng.normal(size=8)
    return np.array(list(vectors.values())) * rng.uniform(0.2, 3, (len(vectors), 1))


@functools.cache
def find_classes():
    """Returns the most frequent tag of each word, from another reading of the trees."""
    counts = collections.defaultdict(collections.Counter)
    for tree in toy_language.read_trees("train"):
        parts = tree.replace("(", " ( ").replace(")", " ) ").split()
        for bracket, tag, word, end in zip(parts, parts[1:], parts[2:], parts[3:], strict=False):
            if bracket == "(" and end == ")" and word[0].isalpha():
                counts[word.lower()][tag] += 1
    # Of equally frequent tags, the first by alphabet counts: "as" is as often IN as RB.
    return {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in counts.items()}


def nearest(vectors, goal, without):
    """Returns the word with the largest cosine to a goal, except for the words `without`."""
    cosines = vectors @ goal / np.sqrt((vectors**2).sum(1))
    return max(set(range(len(vectors))) - {*without}, key=cosines.tolist().__getitem__)


def score(task, vectors, split):
    """Returns the scores in per cent, and the answers, of a loop over questions and words."""
    numbers, classes = {word: number for number, word in enumerate(task.words)}, find_classes()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    answers, right = [], collections.defaultdict(list)
    for question in make_analogies(split):
        if not set(question[1:]) <= numbers.keys():
            continue
        a, b, c, d = (numbers[word] for word in question[1:])
        answer = nearest(vectors, unit[b] - unit[a] + unit[c], (a, b, c))
        answers.append(task.words[answer])
        for name in ("analogies", f"analogies, {question.relation}"):
            right[name].append(answer == d)
        right["form of the answers"].append(classes.get(task.words[answer]) == classes[task.words[d]])
    for word, number in numbers.items():
        if word in classes:
            neighbour = task.words[nearest(vectors, vectors[number], (number,))]
            right["class of the neighbours"].append(classes.get(neighbour) == classes[word])
    return {name: 100 * np.mean(values) for name, values in right.items()}, answers


def test_classes_of_words_are_their_most_frequent_tags():
    classes = read_word_classes()
    assert len(classes) > 500
    assert {word: find_classes()[word] for word in classes} == classes


def test_sentences_are_the_lower_case_words_of_the_english_texts():
    sentences = read_sentences("validation")
    for words, example in zip(sentences, toy_language.read_examples("validation"), strict=True):
        assert words == re.sub(r"[^a-z'-]+", " ", example.en.lower()).split()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_scores_of_a_report_equal_a_loop_over_questions_and_words(split, task, vectors):
    (report,) = task.report({"params": {"centers": vectors}}, split)
    expected, answers = score(task, vectors, split)
    assert expected.keys() == {f"analogies, {name}" for name in RELATIONS} | {
        "analogies",
        "form of the answers",
        "class of the neighbours",
    }
    assert 5 < expected["analogies"] < 95
    assert report.outputs == answers
    assert {score.name: score.value for score in report.scores} == pytest.approx(expected)


def test_signatures_count_questions_and_the_chance_of_a_neighbour(task, vectors):
    (report,) = task.report({"params": {"centers": vectors}}, "test")
    counts = collections.Counter(q.relation for q in make_analogies("test") if {*q[1:]} <= {*task.words})
    signatures = {score.name: score.signature for score in report.scores}
    for relation, count in counts.items():
        assert signatures[f"analogies, {relation}"] == f"per cent of {count:,}"
    classes = find_classes()
    names = [classes[word] for word in task.words if word in classes]
    chance = np.mean([names.count(name) for name in names]) / len(names)
    assert f" {len(names):,} words, by chance {100 * chance:.1f}" in signatures["class of the neighbours"]


def test_evaluation_has_shares_of_the_validation_split_and_the_neighbours_of_frequent_words(task, vectors):
    evaluation = task.evaluate({"params": {"centers": vectors}}, None)
    expected, _ = score(task, vectors, "validation")
    names = ("analogies", "class of the neighbours")
    assert evaluation.scores == pytest.approx(
        {f"validation/{name.replace(' ', '_')}": expected[name] / 100 for name in names}
    )
    assert task.best == ("validation/analogies", "max")
    classes = find_classes()
    shown = [word for word in task.words if classes.get(word) in word_vectors.SHOWN_CLASSES][:3]
    assert [row["word"] for row in evaluation.samples.rows] == shown
    for row in evaluation.samples.rows:
        without = [task.words.index(row["word"])]
        for neighbour in row["neighbours"].split(", "):
            number = nearest(vectors, vectors[without[0]], without)
            assert neighbour == task.words[number]
            without.append(number)
        assert len(without) == 6


def test_lengths_of_vectors_do_not_matter():
    rng = np.random.default_rng(0)
    vectors, questions = (
        rng.normal(size=(30, 4)),
        rng.permuted(np.tile(np.arange(30), (20, 1)), axis=1)[:, :3],
    )
    scaled = vectors * 10.0 ** rng.integers(-6, 6, (30, 1))
    np.testing.assert_array_equal(solve_analogies(scaled, questions), solve_analogies(vectors, questions))
    np.testing.assert_array_equal(
        find_neighbours(scaled, range(30), 5), find_neighbours(vectors, range(30), 5)
    )


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_pair_of_a_relation_begins_four_analogies_of_one_split(relation):
    counts = {}
    for split in ("validation", "test"):
        questions = [q for q in make_analogies(split) if q.relation == relation]
        firsts = collections.Counter(q[1:3] for q in questions)
        assert set(firsts.values()) == {min(4, len(firsts) - 1)}
        assert len(set(questions)) == len(questions)
        assert all(q[1:3] != q[3:] for q in questions)
        assert {q[3:] for q in questions} == firsts.keys()
        assert list(firsts) != sorted(firsts)  # the pairs are shuffled
        counts[split] = firsts.keys()
    assert counts["validation"] | counts["test"] == set(list_pairs(relation))
    assert len(counts["validation"]) - len(counts["test"]) in (0, 1)


def test_pairs_of_a_relation_are_all_regular_inflections():
    classes = find_classes()
    rules = {"plural": ("NN",), "third person": ("VB", "VBP"), "past": ("VB", "VBP")}
    inflected = {"plural": "NNS", "third person": "VBZ", "past": "VBD"}
    endings = {"plural": ["s"], "third person": ["s", "es"], "past": ["ed", "d"]}
    for relation, bases in rules.items():
        expected = {
            (word, word + end)
            for word in classes
            for end in endings[relation]
            if classes[word] in bases and classes.get(word + end) == inflected[relation]
        }
        assert set(list_pairs(relation)) == expected
        assert {pair[1].removeprefix(pair[0]) for pair in expected} == set(endings[relation])


def principal_components(x):
    """Returns the two principal components [N, 2] of x [N, D] from the eigenvectors of its covariance."""
    centered = x - x.mean(0)
    return centered @ np.linalg.eigh(centered.T @ centered)[1][:, [-1, -2]]


def read_points(figure):
    """Returns {class: points} of a map of words, and its names as (text, point, colour)."""
    (axes,) = figure.axes
    points = {group.get_label(): np.asarray(group.get_offsets()) for group in axes.collections}
    colours = {group.get_label(): tuple(group.get_facecolor()[0]) for group in axes.collections}
    return points, colours, axes.texts


def test_map_has_the_principal_components_of_normalized_vectors(task, vectors, monkeypatch):
    figures = []
    monkeypatch.setattr(word_map, "save", lambda figure, path, dpi: figures.append(figure))
    task.evaluate({"params": {"centers": vectors}}, None).samples.pictures["words"]("words.png")
    points, _, names = read_points(figures[0])
    classes = find_classes()
    shown = [i for i, word in enumerate(task.words) if classes.get(word) in word_vectors.SHOWN_CLASSES]
    expected = principal_components((vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[shown])
    drawn = {name: iter(values) for name, values in points.items()}
    actual = np.array([next(drawn[classes[task.words[i]]]) for i in shown])
    signs = np.sign((actual * expected).sum(0))
    np.testing.assert_allclose(actual * signs, expected, atol=1e-6)
    places = {task.words[number]: place for number, place in zip(shown, actual, strict=True)}
    assert len(names) > 10
    for text in names:
        np.testing.assert_allclose(text.xy, places[text.get_text()])


def draw_random_map(monkeypatch):
    """Returns random points on axes of different scales, their classes, and the figure of their map."""
    figures = []
    monkeypatch.setattr(word_map, "save", lambda figure, path, dpi: figures.append(figure))
    rng = np.random.default_rng(0)
    points, classes = rng.uniform(size=(90, 2)) * [1, 50], rng.choice(["a", "b"], 90, p=[0.7, 0.3]).tolist()
    draw_word_map(points, [f"word {i}" for i in range(90)], classes, "map.png")
    return points, classes, figures[0]


def test_map_shows_all_words_and_names_the_first_words_of_each_class(monkeypatch):
    points, classes, figure = draw_random_map(monkeypatch)
    drawn, colours, names = read_points(figure)
    for name in "ab":
        np.testing.assert_allclose(drawn[name], points[[label == name for label in classes]])
    assert colours["a"] != colours["b"]
    numbers = [int(text.get_text().split()[1]) for text in names]
    np.testing.assert_allclose([text.xy for text in names], points[numbers])
    counts = collections.Counter(classes[number] for number in numbers)
    assert counts["a"] == NAMED_WORDS
    assert 4 < counts["b"] <= NAMED_WORDS
    assert {classes.index("a"), classes.index("b")} <= set(numbers)


def test_names_on_the_map_do_not_overlap(monkeypatch):
    _, _, figure = draw_random_map(monkeypatch)
    renderer = FigureCanvasAgg(figure).get_renderer()
    (axes,) = figure.axes
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    frame = axes.get_window_extent(renderer)
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1 for box in boxes)


def test_a_name_gives_way_to_earlier_names_only():
    boxes = np.array([[0, 0, 2, 1], [1, 0, 3, 1], [2.5, 0, 4, 1], [0, 1, 2, 2], [3, 0.5, 5, 3]])
    assert choose_names(boxes, ["a"] * 5) == [0, 2, 3]


def test_a_class_has_no_more_names_than_the_limit():
    boxes = np.array([[0, i, 1, i + 1] for i in range(NAMED_WORDS + 2)])
    classes = ["a"] * (NAMED_WORDS + 1) + ["b"]
    assert choose_names(boxes, classes) == [*range(NAMED_WORDS), NAMED_WORDS + 1]


def test_dollar_signs_of_words_are_not_drawn_as_formulas(tmp_path, monkeypatch):
    _, _, figure = draw_random_map(monkeypatch)
    texts = [*figure.axes[0].texts, *figure.legends[0].get_texts()]
    assert texts
    assert not any(text.get_parse_math() for text in texts)
    # Otherwise, the formulas of these names are errors.
    draw_word_map(np.eye(2), ["$a_b_c$", "US$1-$2"], ["$x_y_z$", "prices"], str(tmp_path / "map.png"))
