"""`Generator`: continues texts with a trained language model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.unknown_text import UnknownTextWarning
from tfm.errors import UserError, check_texts, replace_fields
from tfm.interpret import Edit
from tfm.interpret.observation import MAX_TOKENS
from tfm.workdir import runs
from tfm.workdir.translator import edit_run


@runtime_checkable
class TextGeneration(Protocol):
    """A task that continues texts. A task that generates pictures has no tokenizer."""

    config: Any
    tokenizer: Tokenizer

    def generate(
        self, params: Any, prefixes: list[str], decoding: Any = None, **options: Any
    ) -> list[list[Any]]:
        """Returns the continuations of each prefix."""


class Generator:
    """A trained language model or its export that continues texts.

    Examples:
      >>> Generator.load("runs/lm_pydoc").generate(["The for"], max_tokens=9)  # doctest: +SKIP
      [[' statement']]

    Raises:
      UserError: if the task of the run does not continue texts.
    """

    def __init__(self, run: runs.Run):
        if not isinstance(run.task, TextGeneration):
            raise UserError(
                f"The task {run.task.config.task!r} of the run does not continue texts. Give a run of the "
                "task language_modeling, or use tfm translate for a run that translates."
            )
        self.run = run
        self._unknown_text = UnknownTextWarning("continuations", has_normalization=False)

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

        Raises:
          UserError: see `continuations`.
        """
        return [[sample.text for sample in samples] for samples in self.continuations(prefixes, **decoding)]

    def continuations(
        self, prefixes: Sequence[str], *, start_index: int = 0, **decoding: Any
    ) -> list[list[Any]]:
        """Continues each text like `generate`, but returns texts with their scores.

        Args:
          prefixes: texts to continue. "" begins a new text. A warning names their characters and words that
            the vocabulary lacks.
          start_index: index of the first prefix. The random numbers of a sample depend on the index of its
            prefix, so chunks of a longer input need the index at which they begin.
          decoding: fields of the run's `GenerationConfig` to replace.

        Returns:
          A list of `tfm.decoding.generate.Continuation` for each prefix.

        Raises:
          UserError: if `prefixes` is not a list of texts, a field does not exist or has an invalid value, or
            `tfm.decoding.generate.generate_ids` raises it.
        """
        fields = replace_fields(self.run.task.config.decoding, decoding)
        self._unknown_text.check(self.run.task.tokenizer, check_texts("prefixes", prefixes))
        return self.run.task.generate(self.run.params, prefixes, fields, start_index=start_index)

    def show(self, *texts: str, max_tokens: int = MAX_TOKENS) -> Any:
        """Returns the page of some texts for a notebook to display. See `tfm.Observer.show`."""
        from tfm.workdir.observer import Observer  # takes a second, because it draws pictures

        return Observer(self.run).show(*texts, max_tokens=max_tokens)

    def with_edits(self, edits: Mapping[str, Edit]) -> "Generator":
        """Returns a generator whose model has edited activations.

        Args:
          edits: {name or glob of activations: function that edits them}, see `tfm.interpret.run`.
        """
        return Generator(edit_run(self.run, edits))
