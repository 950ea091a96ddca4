"""Tests of trees of arrays and of the retention of checkpoints."""

from types import SimpleNamespace

import numpy as np
import orbax.checkpoint as ocp
import pytest

from tfm.checkpoints import trees
from tfm.checkpoints.retention import Retention, rank
from tfm.errors import UserError
from tfm.training.config import TrainingConfig

LARGE = np.random.default_rng(0).normal(size=300).astype(np.float32)
TREE = {"params": {"w": np.float32([[1, 2], [3, 4]]), "large": LARGE}, "step": np.int32(3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder in which Orbax has saved TREE."""
    path = tmp_path_factory.mktemp("tree") / "tree"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save(path, args=ocp.args.PyTreeSave(TREE))
    return str(path)


def digest(tree):
    """Returns the digests of a tree."""
    return trees.digest_tree(tree, trees.list_parts(tree))


def change(path, value):
    """Returns TREE with a new array at params/path."""
    return TREE | {"params": TREE["params"] | {path: value}}


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
def test_saved_tree_equals_its_digests(group_bytes, folder, monkeypatch):
    """The arrays are read one by one and in a single group."""
    monkeypatch.setattr(trees, "MAX_GROUP_BYTES", group_bytes)
    assert trees.find_difference(folder, digest(TREE)) == ""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("w", np.float32([[1, 2], [3, 4.0000005]])),
        ("w", np.float16([[1, 2], [3, 4]])),
        ("w", np.float32([1, 2, 3, 4])),
        ("large", -LARGE),
    ],
)
def test_find_difference_names_the_changed_array(path, value, folder):
    assert path in trees.find_difference(folder, digest(change(path, value)))


def test_missing_array_is_a_difference(folder):
    assert trees.find_difference(folder, digest(change("other", LARGE)))


@pytest.mark.parametrize("changed", [None, 0, 1])
def test_all_shards_of_an_array_are_compared(changed, folder):
    """Each half of the array is on two devices. The values of one half may be changed."""
    slices = [(slice(0, 150),), (slice(150, None),)] * 2
    shards = [
        SimpleNamespace(index=index, data=LARGE[index] + (number % 2 == changed))
        for number, index in enumerate(slices)
    ]
    x = SimpleNamespace(shape=LARGE.shape, dtype=LARGE.dtype, addressable_shards=shards)
    digests = digest(change("large", x))
    assert max(map(len, digests.parts)) == 2
    assert ("large" in trees.find_difference(folder, digests)) == (changed is not None)


@pytest.mark.parametrize(("text", "told"), [("", "ValueError"), ("\nfailed: x\ny", "failed: x")])
def test_error_while_reading_back_is_a_difference(text, told, folder, monkeypatch):
    """The text of the error may be empty or begin with a line end."""

    def fail(*_):
        raise ValueError(text)

    monkeypatch.setattr(trees.ocp, "PyTreeCheckpointHandler", fail)
    assert trees.find_difference(folder, digest(TREE)) == told


def test_shapes_are_restored_from_their_description():
    shapes = trees.shapes_of(trees.describe_arrays(TREE | {"state": (np.zeros(2, np.float16),)}))
    assert shapes["state"]["0"].dtype == np.float16
    assert {name: (x.shape, x.dtype.name) for name, x in shapes["params"].items()} == {
        "w": ((2, 2), "float32"),
        "large": ((300,), "float32"),
    }


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (TREE | {"average": TREE["params"]}, "has no average"),
        (change("w", np.zeros((2, 3))), r"params/w should be \(2, 3\) and is \(2, 2\)"),
        (change("v", np.zeros(1)), r"params/v should be \(1,\) and is absent"),
        ({"params": {"w": TREE["params"]["w"]}}, r"params/large should be absent and is \(300,\)"),
    ],
)
def test_error_of_a_different_model_names_the_array(like, message, folder):
    with pytest.raises(UserError, match=f"^mine .*{message}"):
        trees.read_tree(folder, like, trees.shapes_of(trees.describe_arrays(TREE)), "mine")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_path_that_resembles_a_bucket_is_an_error(scheme):
    with pytest.raises(UserError, match=f"{scheme}://x/y"):
        trees.orbax_path(f"/{scheme}/x/y")


def test_average_trees_computes_the_mean_in_float64():
    parts = [{"w": np.float32([1e8, 1.0])}, {"w": np.float32([1.0, 2.0])}, {"w": np.float32([-1e8, 3.0])}]
    np.testing.assert_array_equal(trees.average_trees(parts)["w"], np.float32([1 / 3, 2.0]))


def test_retention_keeps_the_newest_the_best_and_hourly_checkpoints():
    times = {step: 1200.0 * step for step in range(1, 9)}  # every 20 minutes
    scores = {step: -float(step) for step in times}
    assert Retention(2, 2, 1.0).select(times, scores) == {7, 8} | {1, 2} | {1, 4, 7}
    assert Retention(2, 0, 0.0).select(times, scores) == {7, 8}
    assert Retention(1, 1, 0.0).select(times, scores | {9: 7.0}) == {
        1,
        8,
    }  # step 9 has a score but no checkpoint
    assert rank({2: 1.0, 4: 3.0, 6: 3.0, 8: 9.0}, [2, 4, 6, 7]) == [6, 4, 2]
    config = TrainingConfig()
    assert Retention() == (config.keep, config.keep_best, config.keep_hours)
