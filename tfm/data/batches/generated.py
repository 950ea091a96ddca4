"""Endless batches of generated examples. Each example is a function of its split and of a few numbers."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from tfm.data.batches.schedule import PrefetchedData
from tfm.data.config import SPLITS
from tfm.errors import UserError

Batch = dict[str, np.ndarray]
EVALUATION = 1 << 32  # seed of the examples of validation and test; seeds of training are smaller


class Generator(Protocol):
    """The examples of a split.

    Attributes:
      fingerprint: identifies the content.
    """

    fingerprint: str

    def make(self, *numbers: int) -> Any:
        """Returns the example of these numbers."""
        ...

    def assemble(self, examples: list[Any], rows: int) -> Batch:
        """Returns a batch of examples. Padding fills it up to `rows`, and has "weights" 0."""
        ...


class GeneratedBatches:
    """An endless sequence of batches of new examples, each a function of the step, the seed and the host.

    Args:
      generator: the training split.
      batch_size: examples of a batch over all hosts.
      seed: seed of the run.
      host_index, host_count: host i has the examples i, i + host_count, ... of each batch.
    """

    def __init__(
        self, generator: Generator, batch_size: int, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._generator, self._seed = generator, seed
        self._mine = range(host_index, batch_size, host_count)
        self._rows = -(-batch_size // host_count)

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0."""
        examples = [self._generator.make(self._seed, step, row) for row in self._mine]
        return self._generator.assemble(examples, self._rows)

    def describe(self, step: int) -> dict[str, Any]:
        """Returns the numbers that determine the examples of a batch."""
        return {"seed": self._seed, "step": step}

    def largest_batch(self) -> Batch:
        """Returns a batch of padding rows. All batches have its shape."""
        return self._generator.assemble([], self._rows)


class GeneratedData(PrefetchedData):
    """The generated training batches of a run and its validation split. Implements `tfm.training.task.Data`.

    Args:
      train, validation: the two splits.
      batch_size, seed, hosts: see `GeneratedBatches`.
      description: text about the examples.
    """

    def __init__(
        self,
        train: Generator,
        validation: Generator,
        *,
        batch_size: int,
        seed: int,
        hosts: dict[str, int],
        description: str,
    ):
        batches = GeneratedBatches(train, batch_size, seed, **hosts)
        super().__init__(batches, {"train": train.fingerprint, "validation": validation.fingerprint})
        self.validation = validation
        self._description = description

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        """Returns the number of examples of a host batch, without padding."""
        return int(batch["weights"].sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns the (name, text) line about the examples."""
        return [("examples", self._description)]


def evaluation_batches(generator: Generator, count: int, rows: int) -> Iterator[Batch]:
    """Yields batches of the `count` examples of a validation or test split, each with `rows` rows."""
    for start in range(0, count, rows):
        examples = [generator.make(EVALUATION, index) for index in range(start, min(start + rows, count))]
        yield generator.assemble(examples, rows)


def find_split(split: str) -> int:
    """Returns the number of a split, from which its examples are generated.

    Raises:
      UserError: if there is no such split.
    """
    if split not in SPLITS:
        raise UserError(f"Generated examples have the splits {', '.join(SPLITS)}, got {split!r}.")
    return SPLITS.index(split)
