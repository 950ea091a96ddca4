"""The numbers that the plots of a run show: calibration, lengths, neighbours and norms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError
from tfm.layers.observe import Recorder, activate
from tfm.training.step import find_divisor, loss_of
from tfm.training.task import Context

LAYER = "layers_"  # prefix of the name of a layer
BINS = 10  # of a calibration
STACKS = ("encoder", "decoder")  # in the order of the computation; other parts are sorted before them


class Calibration(NamedTuple):
    """How often predictions with a similar probability are correct. Bins without predictions are left out.

    Attributes:
      confidence: float [bins], mean probability of the predictions of a bin.
      accuracy: float [bins], fraction of correct predictions.
      count: int [bins], number of predictions.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # hides `tuple.count`

    @property
    def error(self) -> float:
        """Expected calibration error (Guo et al. 2017, equation 3): mean |confidence - accuracy| by count."""
        return float(np.average(np.abs(self.confidence - self.accuracy), weights=self.count))


def calibrate(probabilities: np.ndarray, correct: np.ndarray) -> Calibration:
    """Computes the `Calibration` of predictions in ten bins of equal width.

    Args:
      probabilities: float [n], n > 0, probabilities of the most probable tokens, in [0, 1].
      correct: bool [n], whether these tokens are in the reference.
    """
    index = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    count = np.bincount(index)
    filled = count > 0
    sums = (np.bincount(index, weights=values)[filled] for values in (probabilities, correct))
    confidence, accuracy = (total / count[filled] for total in sums)
    return Calibration(confidence, accuracy, count[filled])


def split_by_length(lengths: Sequence[int] | np.ndarray, groups: int) -> list[np.ndarray]:
    """Splits lengths into at most `groups` groups of about equal size. Equal lengths stay in one group.

    Returns:
      For each group an int array of indices into `lengths`. The group of the shortest lengths is the first.
    """
    lengths = np.asarray(lengths)
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, groups + 1)[1:-1]).round())
    numbers = np.searchsorted(edges, lengths)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def score_by_length(
    texts: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    score: Callable[[Sequence[str], Sequence[str]], float],
    groups: int = 6,
) -> tuple[list[float], list[float], list[int]]:
    """Scores the hypotheses of each group of `split_by_length`.

    Args:
      texts: the texts whose words are counted, at least one.
      hypotheses, references: the hypothesis and the reference of each text.
      score: function from hypotheses and references to a score.
      groups: maximum number of groups.

    Returns:
      Three lists with an element for each group: mean number of words, score, and number of texts.
    """
    lengths = np.array([len(text.split()) for text in texts])
    indices = split_by_length(lengths, groups)
    scores = [score([hypotheses[i] for i in group], [references[i] for i in group]) for group in indices]
    return [float(lengths[group].mean()) for group in indices], scores, [len(group) for group in indices]


def nearest_neighbours(table: np.ndarray, index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows of a table that are nearest to one of its rows by cosine similarity.

    Args:
      table: float [V, D].
      index: index of the row.
      count: number of neighbours.

    Returns:
      (indices, cosine similarities) of at most `count` other rows, the most similar first.
    """
    table = np.asarray(table, np.float64)
    norms = np.linalg.norm(table, axis=1)
    similarity = table @ table[index] / np.maximum(norms * norms[index], np.finfo(float).tiny)
    similarity[index] = -np.inf
    best = np.argsort(-similarity, kind="stable")[: min(count, len(table) - 1)]
    return best, similarity[best]


def group_norms(tree: Mapping[str, Any]) -> dict[str, float]:
    """Computes the norm of each layer and of each other part of a tree of parameters or gradients.

    Returns:
      A dict from the name to the norm. A layer has a name such as "encoder.layers_0". All other leaves with
      the same top-level name are one part. Parts outside the encoder and the decoder come first. The layers
      of the encoder and then of the decoder follow by number.
    """
    squares: dict[str, float] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        first, second = [*(str(key.key) for key in path), ""][:2]
        is_layer = second.startswith(LAYER) and second.removeprefix(LAYER).isdecimal()
        group = f"{first}.{second}" if is_layer else first
        squares[group] = squares.get(group, 0.0) + float(np.square(np.asarray(leaf, np.float64)).sum())
    return {group: squares[group] ** 0.5 for group in sorted(squares, key=_layer_order)}


def measure_norms(task: Any, variables: Any, batch: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Measures gradients and activations of one batch, without dropout.

    Returns:
      Two dicts. The first contains the norm of the gradient of the loss for each group of `group_norms`. The
      loss is the mean of its term, or the sum of the means of its terms.
      The second contains the root mean square of the output of each sublayer's residual connection, including
      padding, in the order of the computation. It is empty if the model has no named activations.

    Raises:
      UserError: if the batch contains only padding.
    """
    names: list[str] = []  # keeps the order of the computation, because jit sorts the keys of dicts

    @jax.jit
    def compute(variables, batch):
        outputs = Recorder("*_residual.output")

        def mean_loss(params):
            with activate(outputs):
                terms = task.loss({**variables, "params": params}, batch, Context()).terms
            names[:] = outputs.reads
            squares = {name: jnp.mean(jnp.square(x.astype(jnp.float32))) for name, x in outputs.reads.items()}
            total, count = loss_of(terms)
            return total / find_divisor(count), ([count for _, count in terms.values()], squares)

        return jax.grad(mean_loss, has_aux=True)(variables["params"])

    gradients, (counts, squares) = jax.device_get(compute(variables, batch))
    if not any(counts):
        raise UserError("Expected a batch with training tokens, got a batch with only padding.")
    return group_norms(gradients), {name: float(squares[name]) ** 0.5 for name in names}


def _layer_order(group: str) -> tuple[int, str, int]:
    """Returns the sort key of a group. Stacks come last, with their layers by number (10 after 9)."""
    stack, _, layer = group.partition(".")
    number = int(layer.removeprefix(LAYER)) if layer else -1
    return STACKS.index(stack) if stack in STACKS else -1, stack, number
