"""`Generator`: continues texts with a trained language model."""

from collections.abc import Sequence
from typing import Any

from tfm.errors import UserError, replace_fields
from tfm.workdir import runs


class Generator:
    """A trained language model or its export that continues texts.

    Examples:
      >>> Generator.load("runs/lm_pydoc").generate(["The for"], max_tokens=9)  # doctest: +SKIP
      [[' statement']]

    Raises:
      UserError: if the task of the run does not continue texts.
    """

    def __init__(self, run: runs.Run):
        if not hasattr(run.task, "generate"):
            raise UserError(
                f"The task {run.task.config.task!r} of the run does not continue texts. Give a run of the "
                "task language_modeling, or use tfm translate for a run that translates."
            )
        self.run = run

    @classmethod
    def load(cls, workdir: str, **options: Any) -> "Generator":
        """Loads a run. `options` such as `checkpoint` and `average`: see `tfm.workdir.runs.load`."""
        return cls(runs.load(workdir, **options))

    def generate(self, prefixes: Sequence[str], **decoding: Any) -> list[list[str]]:
        """Continues each text. Returns a list of continuations for each prefix, without the prefix.

        Args:
          prefixes: texts to continue. "" begins a new text.
          decoding: fields of the run's `tfm.decoding.config.GenerationConfig` to replace, such as
            samples=3, temperature=0.8, max_tokens=100.
        """
        return [[sample.text for sample in samples] for samples in self.continuations(prefixes, **decoding)]

    def continuations(
        self, prefixes: Sequence[str], *, start_index: int = 0, **decoding: Any
    ) -> list[list[Any]]:
        """Continues each text like `generate`, but returns texts with their scores.

        Args:
          prefixes: texts to continue. "" begins a new text.
          start_index: index of the first prefix. The random numbers of a sample depend on the index of its
            prefix, so chunks of a longer input need the index at which they begin.
          decoding: fields of the run's `GenerationConfig` to replace.

        Returns:
          A list of `tfm.decoding.generate.Continuation` for each prefix.
        """
        fields = replace_fields(self.run.task.config.decoding, decoding)
        return self.run.task.generate(self.run.params, prefixes, fields, start_index=start_index)
