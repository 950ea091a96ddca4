"""What a figure shows of the attention."""

import re

import numpy as np
import pytest

from tests.support.translations import SOURCE, TARGET, make_translated
from tfm.errors import UserError
from tfm.visualize import summaries
from tfm.visualize.selection import Selection, check_selection, parse_head, select, select_difference


@pytest.fixture(scope="module")
def translated():
    return make_translated()


def test_all_layers_and_heads(translated):
    for part, weights in translated.weights.items():
        panels = select(translated, part)
        np.testing.assert_array_equal(panels.weights, weights)
        assert panels.titles[1][2] == "layer 1, head 2"
        assert weights.shape[2:] == (len(panels.queries.labels), len(panels.keys.labels))
        assert ("predicted" in panels.queries.title) == (part != "encoder")
    panels = select(translated, "decoder")
    assert panels.queries.labels[1] == "▁Tier (▁Das)"
    assert panels.keys.labels == ["<s>", *TARGET[:-1]]


@pytest.mark.parametrize(
    ("selection", "titles", "expected"),
    [
        (Selection(layer=0), [["layer 0, head 0", "layer 0, head 1", "layer 0, head 2"]], lambda w: w[:1]),
        (Selection(head=1), [["layer 0, head 1"], ["layer 1, head 1"]], lambda w: w[:, 1:2]),
        (Selection(head=0), [["layer 0, head 0"], ["layer 1, head 0"]], lambda w: w[:, :1]),
        (Selection(1, 2), [["layer 1, head 2"]], lambda w: w[1:, 2:]),
        (Selection(1, "mean"), [["layer 1, mean of the heads"]], lambda w: w[1:].mean(1, keepdims=True)),
        (
            Selection(1, "rollout"),
            [["layer 1, rollout"]],
            lambda w: summaries.attention_rollout(w)[1:, None],
        ),
    ],
)
def test_one_layer_or_head(translated, selection, titles, expected):
    panels = select(translated, "encoder", selection)
    np.testing.assert_allclose(panels.weights, expected(translated.weights["encoder"]), rtol=1e-6)
    assert panels.titles == titles
    assert panels.keys.labels == list(SOURCE)


def test_words(translated):
    panels = select(translated, "cross", Selection(words=True))
    assert panels.keys.labels == ["The", "animal", "is", "tired.", "</s>"]
    assert panels.queries.labels == ["Das", "Tier", "ist", "müde.", "</s>"]
    assert (panels.queries.title, panels.keys.title) == (
        "query: target word predicted",
        "key: source word attended to",
    )
    assert panels.weights.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(panels.weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "head"), [(None, None), ("0", 0), ("3", 3), ("mean", "mean"), ("rollout", "rollout")]
)
def test_heads_have_names(text, head):
    assert parse_head(text) == head


@pytest.mark.parametrize("text", ["-1", "1" * 9, "all", "1.5", "٣", "", "²"])
def test_other_heads_are_refused(text):
    with pytest.raises(UserError, match=f"--head .*mean .*rollout.*{re.escape(repr(text))}"):
        parse_head(text)


def test_what_the_model_does_not_have_is_refused():
    parts = {"encoder": (3, 4), "decoder": (2, 4), "cross": (2, 4)}
    check_selection(Selection(1, 3), parts)
    with pytest.raises(UserError, match=r"--layer .*0 to 1 .*decoder.*\b2\b"):
        check_selection(Selection(2), parts)
    with pytest.raises(UserError, match=r"--layer .*0 to 2 .*encoder.*-1"):
        check_selection(Selection(-1), parts)
    with pytest.raises(UserError, match=r"--head .*0 to 3 .*encoder.*\b4\b"):
        check_selection(Selection(head=4), parts)
    with pytest.raises(UserError, match=r"encoder.*--head"):
        check_selection(Selection(head="rollout"), {"cross": (1, 1)})
    with pytest.raises(UserError, match=r"--head.*--measure"):
        check_selection(Selection(head="rollout", measure="norms"), parts)


def test_norms(translated):
    panels = select(translated, "cross", Selection(layer=0, measure="norms"))
    np.testing.assert_array_equal(panels.weights, translated.norms["cross"][:1])
    assert panels.largest == translated.norms["cross"][:1].max()
    assert panels.unit.startswith("norm")
    joint = select(translated, "cross", Selection(head="mean", measure="norms"))
    np.testing.assert_array_equal(joint.weights[:, 0], translated.joint_norms["cross"])
    with pytest.raises(UserError, match=r"cross .*--measure"):
        select(translated._replace(norms={}), "cross", Selection(measure="norms"))


def test_difference_is_of_corresponding_tokens(translated):
    """The second has another word at place 3, and a piece less there."""
    other = make_translated(1, target=[*TARGET[:3], "▁breit", *TARGET[5:]])
    panels = select_difference(translated, other, "cross", Selection(layer=1, head=0))
    first, second = (each.weights["cross"][1, 0] for each in (translated, other))
    np.testing.assert_allclose(panels.weights[0, 0], first[[0, 1, 2, 5, 6]] - second[[0, 1, 2, 4, 5]])
    assert panels.keys.labels == list(SOURCE)
    assert panels.queries.labels[3] == ". (de) / . (▁breit)"
    assert -panels.least == panels.largest == np.abs(panels.weights).max()
    words = select_difference(translated, other, "cross", Selection(words=True))
    assert words.queries.labels == ["Das", "Tier", "ist", "müde. / breit.", "</s>"]
    np.testing.assert_array_equal(select_difference(other, other, "cross").weights, 0)
