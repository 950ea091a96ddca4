"""The contract between training and a task: what `tfm.training` and the commands call, and nothing else.

`config.task` names a module of `tfm.tasks`, or one of the user's own. It defines

    Config                                the frozen dataclass of a run, with a `training` section; has
                                          `without_paths()`, itself without paths of this machine, and
                                          `output_suffix`, in which the names of output files end
    create(config, workdir, *, new=True)  the `Task` of a run; a new run makes its assets in `workdir`

A batch is a dict of NumPy arrays that all begin with the axis of rows. A row of zeros is padding: the loss
must not count it, so that a batch can be divided over any number of devices.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

Batch = Mapping[str, np.ndarray]
SumAndCount = tuple[jax.Array, jax.Array]


class Best(NamedTuple):
    """Which evaluation is the best: a metric of `Task.evaluate`, and whether more or less is better."""

    metric: str
    order: Literal["max", "min"] = "max"

    def is_better(self, new: float, old: float | None) -> bool:
        """Whether a score is better than the best so far; one that only equals it, or is nan, is not."""
        if math.isnan(new):
            return False
        if old is None or math.isnan(old):
            return True
        return new > old if self.order == "max" else new < old


class Report(NamedTuple):
    """The outputs of a trained model on a split, and their scores.

    Attributes:
      outputs: a line of text for each example, in the split's order.
      scores: have `name`, `value` and `signature`.
      examples: what to show of each, in the same order, such as {"source": text, "hypothesis": text}.
      settings: what the outputs depend on beside the weights, such as the beam's size.
      rate: examples/s, compilation included.
      identity: hash of the split's inputs and references, so that only evaluations of the same are compared.
    """

    outputs: list[str]
    scores: list[Any]
    examples: list[dict[str, str]]
    settings: dict[str, Any]
    rate: float
    identity: str


class Samples(NamedTuple):
    """What a model in training makes of a few examples, the same ones at each evaluation.

    Attributes:
      rows: the texts of each example, such as {"source": text, "hypothesis": text}; all have the same names.
      pictures: {name: function that draws a picture into the PNG file at a path}; the first host calls it.
    """

    rows: list[dict[str, str]]
    pictures: dict[str, Callable[[str], None]]


@runtime_checkable
class Data(Protocol):
    """The opened, tokenised and planned data of a run."""

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Endless batches of this host from `start_step`, a pure function of seed and step."""
        ...

    def identity(self) -> dict[str, str]:
        """Hashes of the data and of what prepared it, by name."""
        ...

    def describe_batch(self, step: int) -> dict[str, Any]:
        """What identifies the batch of `step`, counted from 0, in the data."""
        ...

    def count(self, batch: Batch) -> int:
        """How much a batch of this host holds, in the task's `unit`, without padding."""
        ...

    def example(self) -> Batch:
        """A batch of the largest shape, to compile the step with."""
        ...

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """(name, text) of lines of the dry run: batch shapes, arithmetic; advice is named "warning"."""
        ...


@runtime_checkable
class Task(Protocol):
    """A loss over batches, and the evaluation of what was trained.

    Attributes:
      config: the task's `Config`.
      best: which evaluation is the best.
      unit: what `Data.count` counts, such as "tokens" or "images".
    """

    config: Any
    best: Best
    unit: str

    def init(self, rng: jax.Array) -> Any:
        """The random parameters."""
        ...

    def loss(
        self, params: Any, batch: Batch, rng: jax.Array | None
    ) -> tuple[SumAndCount, dict[str, SumAndCount]]:
        """The loss to minimise, and further metrics, as (sum, count); without dropout for `rng` None.

        All devices have the same `rng`. `tfm.dropout.dropout` drops the elements that a single device would
        drop. Draw other random numbers with `tfm.dropout.make_device_key(rng)`, otherwise all devices draw
        the same numbers.
        """
        ...

    def open_data(self) -> Data:
        """Opens and prepares training and validation data."""
        ...

    def evaluate(self, params: Any, data: Data) -> dict[str, float]:
        """{"validation/...": score} on the validation split, `best.metric` among them."""
        ...

    def report(self, params: Any, split: str) -> Iterator[Report]:
        """What eval.py writes and prints of a split: scores first, then with each further measurement."""
        ...

    def assets(self) -> dict[str, str]:
        """{file name: fingerprint} of files in the work directory that belong to the weights."""
        ...


@runtime_checkable
class PlanningTask(Protocol):
    """What a `Task` may have beside, so that the step is compiled while the data are opened."""

    def plan_example(self) -> Batch | None:
        """`Data.example` as the config alone foretells it; None where it depends on the data."""
        ...


@runtime_checkable
class SamplingTask(Protocol):
    """What a `Task` may have beside; a task without it has no samples.

    A subclass that overrides `evaluate` alone has no samples: those of its base would have other scores.
    """

    def evaluate_with_samples(self, params: Any, data: Data) -> tuple[dict[str, float], Samples]:
        """The scores of `Task.evaluate`, in place of which training calls it, and samples, perhaps none."""
        ...
