"""Numbers behind the plots of a run: calibration, lengths, neighbours and norms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError
from tfm.interpret.recorder import Recorder
from tfm.layers.observe import activate
from tfm.training.task import Context

LAYER = "layers_"  # what the name of a layer begins with
STACKS = ("encoder", "decoder")  # in the order of the computation; other parts come first


class Calibration(NamedTuple):
    """How often predictions of a like probability are right, a number for each bin that has some.

    Attributes:
      confidence: mean probability of the predictions.
      accuracy: fraction of them that are right.
      count: how many they are.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # hides the method of tuples, which nobody calls

    @property
    def error(self) -> float:
        """Expected calibration error (Guo et al. 2017, equation 3): mean distance of the two, by count."""
        return float(np.average(np.abs(self.confidence - self.accuracy), weights=self.count))


def calibrate(probabilities: np.ndarray, correct: np.ndarray, bins: int = 10) -> Calibration:
    """The `Calibration` of predictions in bins of equal width.

    Args:
      probabilities: [n] of the most probable tokens, in [0, 1]; at least one.
      correct: bool [n], whether these are the reference's.
      bins: how many.
    """
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    filled = count > 0
    sums = (np.bincount(index, weights=each, minlength=bins)[filled] for each in (probabilities, correct))
    confidence, accuracy = (each / count[filled] for each in sums)
    return Calibration(confidence, accuracy, count[filled])


def split_by_length(lengths: Sequence[int] | np.ndarray, groups: int) -> list[np.ndarray]:
    """Indices of at most `groups` groups of about equal size, shorter ones first; no length is in two."""
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
    """(mean words of the texts, score, sentences) of each group of `split_by_length`.

    Args:
      texts: whose words are counted; at least one.
      hypotheses, references: of each.
      score: of hypotheses and references.
      groups: how many, where the lengths differ enough.
    """
    lengths = np.array([len(text.split()) for text in texts])
    chosen = split_by_length(lengths, groups)
    scores = [score([hypotheses[i] for i in each], [references[i] for i in each]) for each in chosen]
    return [float(lengths[each].mean()) for each in chosen], scores, [len(each) for each in chosen]


def nearest_neighbours(table: np.ndarray, index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a table nearest to one of them: (indices, cosine similarities), best first, without itself.

    Args:
      table: [V, D].
      index: of the row.
      count: of neighbours.
    """
    table = np.asarray(table, np.float64)
    norms = np.linalg.norm(table, axis=1)
    similarity = table @ table[index] / np.maximum(norms * norms[index], np.finfo(float).tiny)
    similarity[index] = -np.inf
    best = np.argsort(-similarity, kind="stable")[:count]
    return best, similarity[best]


def group_norms(tree: Mapping[str, Any]) -> dict[str, float]:
    """The norm of the leaves of each layer, and of each other part of a tree of parameters or gradients.

    Layers are named "encoder.layers_0", in order; other parts by their first name.
    """
    squares: dict[str, float] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        first, second = [*(str(key.key) for key in path), ""][:2]
        is_layer = second.startswith(LAYER) and second.removeprefix(LAYER).isdecimal()
        group = f"{first}.{second}" if is_layer else first
        squares[group] = squares.get(group, 0.0) + float(np.square(np.asarray(leaf, np.float64)).sum())
    return {group: squares[group] ** 0.5 for group in sorted(squares, key=_layer_order)}


def measure_norms(task: Any, variables: Any, batch: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Norms of one batch, without dropout.

    Returns:
      ({layer or other part: norm of the gradient of the mean loss}, {name: root mean square of the output of
      each sublayer's residual connection, padding included}); the latter is empty for a model that names no
      activations.

    Raises:
      UserError: the batch has nothing to learn from.
    """
    names: list[str] = []  # in the order of the computation, which the results of jit lose

    @jax.jit
    def compute(variables, batch):
        outputs = Recorder("*_residual.output")

        def mean_loss(params):
            with activate(outputs):
                ((total, count),) = task.loss(
                    {**variables, "params": params}, batch, Context()
                ).terms.values()
            names[:] = outputs.reads
            squares = {name: jnp.mean(jnp.square(x.astype(jnp.float32))) for name, x in outputs.reads.items()}
            return total / count, (count, squares)

        return jax.grad(mean_loss, has_aux=True)(variables["params"])

    gradients, (count, squares) = jax.device_get(compute(variables, batch))
    if not count:
        raise UserError("Expected a batch with something to learn from: it has padding alone.")
    return group_norms(gradients), {name: float(squares[name]) ** 0.5 for name in names}


def _layer_order(group):
    """The place of a group: stacks last, their layers by number, 10 behind 9."""
    stack, _, layer = group.partition(".")
    number = int(layer.removeprefix(LAYER)) if layer else -1
    return STACKS.index(stack) if stack in STACKS else -1, stack, number
