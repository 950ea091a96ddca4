"""`Observer`: shows what a trained model computes for an example."""

from collections.abc import Mapping
from typing import Any

from tfm.errors import UserError
from tfm.interpret import Edit
from tfm.interpret.observation import MAX_TOKENS, Observation, Observes, observe_example
from tfm.visualize.page import NotebookPage
from tfm.workdir import runs
from tfm.workdir.translator import edit_run


class Observer:
    """A trained model, or its export, of any task whose model can be looked into.

    Examples:
      >>> Observer.load("runs/vit").show("0", "1")  # doctest: +SKIP

    Raises:
      UserError: if the task of the run cannot observe its model, or the run is an ensemble.
    """

    def __init__(self, run: runs.Run):
        if not isinstance(run.task, Observes):
            raise UserError(f"The task {run.task.config.task!r} of the run cannot observe its model.")
        self.run = run
        self._variables = runs.single_model_variables(run)

    @classmethod
    def load(cls, workdir: str, **options: Any) -> "Observer":
        """Loads a run. `options` such as `checkpoint` and `average`: see `tfm.workdir.runs.load`."""
        return cls(runs.load(workdir, **options))

    def observe(self, example: str, max_tokens: int = MAX_TOKENS) -> Observation:
        """Returns what the model computes for an example. The example may be the path of a picture.

        See `tfm visualize --help` for the examples.

        Raises:
          UserError: if the example is empty, too long or no example of this task.
        """
        return observe_example(self.run.task, self._variables, example, max_tokens)

    def show(self, *examples: str, max_tokens: int = MAX_TOKENS) -> NotebookPage:
        """Returns the page of some examples for a notebook to display.

        Args:
          examples: the examples. None of them means the default examples of the task.
          max_tokens: maximum number of tokens of an example.

        Raises:
          UserError: if there is no example, an example cannot be used, or the page would be too large.
        """
        chosen = list(examples) or self.run.task.default_examples()
        if not chosen:
            raise UserError("The data of the run have no example to begin with. Give an example.")
        observations = [self.observe(example, max_tokens) for example in chosen]
        return NotebookPage(observations, ", ".join(each.title for each in observations))

    def with_edits(self, edits: Mapping[str, Edit]) -> "Observer":
        """Returns an observer whose model has edited activations.

        Args:
          edits: {name or glob of activations: function that edits them}, see `tfm.interpret.run`.
        """
        return Observer(edit_run(self.run, edits))
