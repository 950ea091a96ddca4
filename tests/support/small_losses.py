"""Losses that compile quickly, for tests of the general step."""

import jax
import jax.numpy as jnp
import numpy as np

from tfm.training.task import Context, LossOutput

FEATURES, BOXES = 4, 7


def detection_batch(rows, seed=0, boxes=BOXES + 1):
    """Returns a batch of images that have 0 to `boxes` - 1 boxes each."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, FEATURES)).astype(np.float32),
        "image": np.ones(rows, np.float32),
        "score": rng.normal(size=rows).astype(np.float32),
        "is_box": (np.arange(BOXES) < rng.integers(0, boxes, rows)[:, None]).astype(np.float32),
        "box": rng.normal(size=(rows, BOXES)).astype(np.float32),
    }


def detection_params():
    """Returns parameters for `detection_loss`."""
    rng = np.random.default_rng(1)
    return {
        "score": rng.normal(size=FEATURES).astype(np.float32),
        "box": rng.normal(size=(FEATURES, BOXES)).astype(np.float32),
    }


def detection_loss(variables, batch, context):
    """Returns a loss of two terms, of which one counts images and the other counts boxes."""
    params = variables["params"]
    score = (batch["x"] @ params["score"] - batch["score"]) ** 2 * batch["image"]
    box = (jnp.tanh(batch["x"] @ params["box"]) - batch["box"]) ** 2 * batch["is_box"]
    return LossOutput(
        {"score": (score.sum(), batch["image"].sum()), "box": (box.sum(), batch["is_box"].sum())},
        {"images": (batch["image"].sum(), 1.0)},
    )


def whole_gradient(params, batch):
    """Returns the loss and its gradient for a whole batch, computed without the training step."""

    def loss(params):
        terms = detection_loss({"params": params}, batch, Context()).terms
        return sum(total / jnp.maximum(count, 1) for total, count in terms.values())

    return jax.jit(jax.value_and_grad(loss))(params)
