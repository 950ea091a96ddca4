"""A trained language model as a function of texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfm.errors import UserError
from tfm.workdir import runs


class Generator:
    """A trained language model, or its export, as a function of texts.

    >>> Generator.load("runs/lm_pydoc").generate(["The for"], max_tokens=9)  # doctest: +SKIP
    [[' statement']]

    Raises:
      UserError: the run is of another task.
    """

    def __init__(self, run: runs.Run):
        if not hasattr(run.task, "generate"):
            raise UserError(
                f"The task {run.task.config.task!r} of the run does not continue texts: give one of the task "
                "language_modeling, or see tfm translate."
            )
        self.run = run

    @classmethod
    def load(cls, workdir: str, **options: Any) -> "Generator":
        """See `tfm.workdir.runs.load`, whose options are `checkpoint`, `average_last` and `ensemble_last`."""
        return cls(runs.load(workdir, **options))

    def generate(self, prefixes: Sequence[str], **decoding: Any) -> list[list[str]]:
        """What follows each text, one or more continuations of each.

        Args:
          prefixes: texts; "" begins a text.
          decoding: fields of the run's `tfm.decoding.config.GenerationConfig` to replace, such as
            samples=3, temperature=0.8, max_tokens=100.
        """
        return [[each.text for each in found] for found in self.continuations(prefixes, **decoding)]

    def continuations(
        self, prefixes: Sequence[str], *, start_index: int = 0, **decoding: Any
    ) -> list[list[Any]]:
        """As `generate`, with scores (`tfm.decoding.generate.Continuation`);

        A sample depends on the index of its prefix. `start_index` is the index of the first prefix.
        """
        fields = dataclasses.replace(self.run.task.config.decoding, **decoding)
        return self.run.task.generate(self.run.params, prefixes, fields, start_index=start_index)
