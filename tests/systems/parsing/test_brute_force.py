"""Tests of trees and of their scores by brute force, with trees as nested lists."""

import random

import pytest

from tfm.errors import UserError
from tfm.systems.parsing import task as parsing
from tfm.systems.parsing.bracketing import Parse, bracketing_scores, count_brackets
from tfm.systems.parsing.trees import list_leaves, list_spans, read_trees, restore_tree
from tfm.tasks.translation.pipeline import Hypothesis

DELETED = ["TOP", "-NONE-", ",", ".", ":", "``", "''"]
LABELS = ["NP", "NP-SBJ-1", "NP-1=2", "NP=2-1", "VP=1", "PRT", "PRT-CLR", "ADVP", "TOP", "-NONE-", ":"]
TAGS = ["NN", "VB", "PRT", *DELETED[1:]]


def draw_tree(rng, words, depth=4):
    """Returns a random tree over (tag, word) pairs as nested lists [label, child, ...]."""
    children, left = [], list(words)
    while left:
        size = rng.randint(1, len(left))
        part, left = left[:size], left[size:]
        if size == 1 and rng.random() < 0.5:
            children.append(part[0])
        elif depth == 0:
            children += part
        else:
            children.append(draw_tree(rng, part, depth - 1))
    return [rng.choice(LABELS), *children]


def draw_pair(rng):
    """Returns two random trees over the same words, or sometimes over different words or tags."""
    words = [(rng.choice(TAGS), rng.choice("abc")) for _ in range(rng.randint(1, 7))]
    others = list(words)
    if rng.random() < 0.3:
        place = rng.randrange(len(words))
        others[place] = (rng.choice(TAGS), rng.choice("abc"))
    return ["TOP", draw_tree(rng, words)], ["TOP", draw_tree(rng, others)]


def write(tree):
    if isinstance(tree, tuple):
        return f"({tree[0]} {tree[1]})"
    return f"({tree[0]} {' '.join(map(write, tree[1:]))})"


def parse(tree):
    (node,) = read_trees([write(tree)], "text")
    leaves = list_leaves(node)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(node))


def find_brackets(tree, seen, brackets):
    """Appends the remaining words of a tree to `seen`, and its brackets over them to `brackets`."""
    if isinstance(tree, tuple):
        if tree[0] not in DELETED:
            seen.append(tree[1])
        return
    start = len(seen)
    for child in tree[1:]:
        find_brackets(child, seen, brackets)
    label = tree[0]
    if label in DELETED:
        return
    for sign in "-=":
        label = label.split(sign)[0]
    if len(seen) > start:
        brackets.append(("ADVP" if label == "PRT" else label, start, len(seen)))


def count_by_hand(gold, test):
    """Returns the matched brackets, the gold and test brackets, and whether the sentence is an error."""
    sides = []
    for tree in (gold, test):
        seen, brackets = [], []
        find_brackets(tree, seen, brackets)
        sides.append((seen, brackets))
    (gold_words, golds), (test_words, tests) = sides
    if not test_words or gold_words != test_words:
        return 0, len(golds), len(tests), True
    left, matched = list(golds), 0
    for bracket in tests:
        if bracket in left:
            left.remove(bracket)
            matched += 1
    return matched, len(golds), len(tests), False


@pytest.fixture(scope="module")
def pairs():
    """Random pairs of trees."""
    rng = random.Random(0)
    return [draw_pair(rng) for _ in range(600)]


def test_brackets_equal_those_of_brute_force(pairs):
    counts = [count_brackets(parse(gold), parse(test)) for gold, test in pairs]
    assert [tuple(count) for count in counts] == [count_by_hand(*pair) for pair in pairs]
    assert 60 < sum(count.is_error for count in counts) < 400


def test_a_tree_matches_itself_completely_unless_all_its_words_are_deleted(pairs):
    for gold, _ in pairs:
        counts = count_brackets(parse(gold), parse(gold))
        assert counts.is_error or counts.matched == counts.gold == counts.test


def test_scores_of_a_corpus_equal_those_of_brute_force(pairs):
    counts = [count_by_hand(*pair) for pair in pairs]
    counted = [count for count in counts if not count[3]]
    matched, golds, tests = (sum(count[i] for count in counted) for i in range(3))
    all_brackets = sum(gold + test for _, gold, test, _ in counts)
    complete = sum(matched == gold == test for matched, gold, test, _ in counted)
    expected = {
        "bracketing F1": 200 * matched / (golds + tests),
        "bracketing precision": 100 * matched / tests,
        "bracketing recall": 100 * matched / golds,
        "complete match": 100 * complete / len(counted),
        "error sentences": 100 * (len(counts) - len(counted)) / len(counts),
        "bracketing F1, all": 200 * matched / all_brackets,
    }
    scores = bracketing_scores(*(list(map(parse, side)) for side in zip(*pairs, strict=True)))
    assert {score.name: score.value for score in scores} == pytest.approx(expected)


def test_complete_matches_have_neither_missing_nor_additional_brackets():
    one, two = "(TOP (NP (NN a)))", "(TOP (NP (NP (NN a))))"
    for gold, test in ((one, two), (two, one)):
        trees = [next(read_trees([text], "text")) for text in (gold, test)]
        parses = [Parse(["a"], ["NN"], list_spans(tree)) for tree in trees]
        scores = bracketing_scores(*([each] for each in parses))
        assert next(score.value for score in scores if score.name == "complete match") == 0


class Clock:
    """A clock that advances by four seconds at each look."""

    seconds = 0.0

    @classmethod
    def monotonic(cls):
        cls.seconds += 4
        return cls.seconds


def make_report(monkeypatch, pairs, answers):
    """Returns the report of a task on (sentence, tokens) pairs, with some answers of the model."""
    config = parsing.Config()
    task = parsing.Parsing(config, range(300))
    monkeypatch.setattr(parsing, "read_sides", lambda *_: tuple(map(list, zip(*pairs, strict=True))))
    monkeypatch.setattr(task, "predict", lambda *_: [[Hypothesis(answer, -1.0)] for answer in answers])
    monkeypatch.setattr(parsing, "time", Clock)
    (report,) = task.report({"params": None}, "test")
    return report


PAIRS = [("a b", "(S NN VB )S"), ("c", "(NP NN )NP")]


def test_a_report_counts_sentences_per_second(monkeypatch):
    assert make_report(monkeypatch, PAIRS, ["", ""]).rate == 0.5


def test_the_identity_of_a_report_depends_on_sentences_and_trees(monkeypatch):
    others = [PAIRS, [("a b", "(S NN NN )S"), PAIRS[1]], [("a x", "(S NN VB )S"), PAIRS[1]]]
    identities = [make_report(monkeypatch, pairs, ["", ""]).identity for pairs in others]
    assert len(set(identities)) == 3
    assert make_report(monkeypatch, PAIRS, ["(S NN", ""]).identity == identities[0]


def test_every_repair_of_an_output_is_counted():
    restored = [restore_tree(tokens.split(), ["a", "b"]) for tokens in ("(S XX", "(S XX XX", "(S XX XX )S")]
    score = parsing.count_well_formed(restored)
    assert score.value == pytest.approx(100 / 3)
    assert score.signature == "per cent; repairs: missing tags 1, unclosed 2"


def test_trees_over_other_words_are_error_sentences():
    """One bracket of two gold and two other brackets matches, and the other sentence is complete."""
    task = parsing.Parsing(parsing.Config(), range(300))
    scores = task.score_hypotheses(
        ["(TOP (S (NN a) (VB x)))", "(TOP (NP (NN c)))"], *map(list, zip(*PAIRS, strict=True))
    )
    assert scores == {"f1": 50, "complete_match": 100}


@pytest.mark.parametrize("text", ["", "(NN a) (NN b)"])
def test_a_target_has_exactly_one_tree(text):
    task = parsing.Parsing(parsing.Config(), range(300))
    with pytest.raises(UserError, match="Expected one tree"):
        task.form.read_target(text)


def test_the_best_checkpoint_has_the_largest_f1():
    assert parsing.Parsing.best == ("validation/f1", "max")
