"""Tests of the selection of the attention that a figure shows."""

import re

import numpy as np
import pytest

from tests.support.observations import SOURCE, TARGET, make_image, make_observation, make_scene
from tfm.errors import UserError
from tfm.interpret import reductions
from tfm.visualize.panels import Selection, parse_head, select, selectable_kinds, summarize


@pytest.fixture(scope="module")
def observation():
    return make_observation()


def test_all_layers_and_heads_are_selected_by_default(observation):
    for kind, attention in observation.attention.items():
        weights = attention.weights
        panels = select(observation, kind)
        np.testing.assert_array_equal(panels.weights, weights)
        assert panels.titles[1][2] == "layer 1, head 2"
        assert weights.shape[2:] == (len(panels.queries.labels), len(panels.keys.labels))
        assert ("predicted" in panels.queries.title) == (kind != "encoder")
    panels = select(observation, "decoder")
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
            lambda w: reductions.attention_rollout(w)[1:, None],
        ),
    ],
)
def test_selection_picks_layers_and_heads(observation, selection, titles, expected):
    panels = select(observation, "encoder", selection)
    np.testing.assert_allclose(panels.weights, expected(observation.attention["encoder"].weights), rtol=1e-6)
    assert panels.titles == titles
    assert panels.keys.labels == list(SOURCE)


def test_selected_words_sum_the_weights_of_their_pieces(observation):
    panels = select(observation, "cross", Selection(words=True))
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
def test_names_of_heads_are_parsed(text, head):
    assert parse_head(text) == head


@pytest.mark.parametrize("text", ["-1", "1" * 9, "all", "1.5", "٣", "", "²"])
def test_invalid_names_of_heads_are_errors(text):
    with pytest.raises(UserError, match=f"--head .*mean .*rollout.*{re.escape(repr(text))}"):
        parse_head(text)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(2), r"--layer .*0 to 1 .*cross.*\b2\b"),
        (Selection(-1), r"--layer .*0 to 1 .*cross.*-1"),
        (Selection(head=3), r"--head .*0 to 2 .*cross.*\b3\b"),
        (Selection(head="rollout"), r"encoder.*--head"),
        (Selection(head="rollout", measure="norms"), r"--head.*--measure"),
    ],
)
def test_selecting_missing_attention_is_an_error(selection, message):
    observation = make_observation(kinds=("cross",))
    select(observation, "cross", Selection(1, 2))
    with pytest.raises(UserError, match=message):
        select(observation, "cross", selection)


def test_kinds_without_a_rollout_are_skipped():
    image, scene = make_image(), make_scene()
    attention = image.attention | scene.attention
    assert selectable_kinds(attention, Selection(head="rollout")) == ["encoder"]
    assert selectable_kinds(scene.attention, Selection(head="rollout")) == ["cross"]  # `select` fails


def test_rollout_of_an_encoder_equals_the_rollout_of_self_attention():
    attention = make_image().attention
    expected = reductions.attention_rollout(attention["encoder"].weights)
    np.testing.assert_array_equal(summarize(attention, "encoder", "rollout"), expected)


def test_selected_norms_replace_the_weights(observation):
    panels = select(observation, "cross", Selection(layer=0, measure="norms"))
    np.testing.assert_array_equal(panels.weights, observation.attention["cross"].norms[:1])
    assert panels.largest == observation.attention["cross"].norms[:1].max()
    assert panels.unit.startswith("norm")
    joint = select(observation, "cross", Selection(head="mean", measure="norms"))
    np.testing.assert_array_equal(joint.weights[:, 0], observation.attention["cross"].joint_norms)
    assert joint.titles[0] == ["layer 0, all heads"]
    without_norms = observation.attention["cross"]._replace(norms=None, joint_norms=None)
    with pytest.raises(UserError, match=r"cross .*--measure"):
        select(observation._replace(attention={"cross": without_norms}), "cross", Selection(measure="norms"))
