"""`Translator`: translates texts with a trained run."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.errors import replace_fields
from tfm.evaluation.alignment import to_pharaoh
from tfm.interpret import Edit
from tfm.interpret.edited_model import EditedModel
from tfm.interpret.observation import MAX_TOKENS
from tfm.tasks.translation.pipeline import Hypothesis
from tfm.workdir import runs


def edit_run(run: runs.Run, edits: Mapping[str, Edit]) -> runs.Run:
    """Returns a run whose model has edited activations. The given run does not change.

    Args:
      run: the run.
      edits: {name or glob of activations: function that edits them}, see `tfm.interpret.run`.
    """
    task = copy.copy(run.task)
    task.model = EditedModel(task.model, edits)
    return run._replace(task=task)


class Translator:
    """A trained translation model or its export that translates texts.

    Examples:
      >>> Translator.load("runs/quickstart").translate(["The dog sleeps."])  # doctest: +SKIP
      ['Der Hund schläft.']

    A translator can be pickled, for example for worker processes.
    """

    def __init__(self, run: runs.Run):
        runs.require_translation(run.task.config, "Translator")
        self.run = run

    @classmethod
    def load(cls, workdir: str, **options: Any) -> "Translator":
        """Loads a run. `options` such as `checkpoint` and `average`: see `tfm.workdir.runs.load`."""
        return cls(runs.load(workdir, **options))

    def translate(self, sentences: Iterable[str], *, start_index: int = 0, **decoding: Any) -> list[str]:
        """Returns the best translation of each text. An empty text has an empty translation.

        Further arguments replace fields of the `DecodingConfig`, such as beam_size=1. The samples of a text
        depend on its index. See `hypotheses`, also for the errors.
        """
        fields = self._decoding(decoding)
        return self.run.task.translate(self.run.params, sentences, fields, start_index=start_index)

    def hypotheses(
        self,
        sentences: Iterable[str],
        *,
        n_best: int = 1,
        prefixes: Iterable[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        start_index: int = 0,
        **decoding: Any,
    ) -> list[list[Hypothesis]]:
        """Returns the best translations of each text with their scores.

        Args:
          sentences: texts to translate.
          n_best: maximum number of translations of each text. At most `beam_size`, or `samples` if the config
            draws samples.
          prefixes: for each text, the beginning that its translations must have. None forces no beginning.
          phrases: for each text, phrases that its translations must contain. None requires no phrase.
          start_index: index of the first text. The random numbers of a sample depend on the index of its
            text, so chunks of a longer input need the index at which they begin.
          decoding: fields of the run's `DecodingConfig` to replace.

        Returns:
          A list of `Hypothesis` (text, score; see `tfm.tasks.translation.pipeline`) for each sentence, with
          the best first. Each list has at least one hypothesis.

        Raises:
          UserError: if a field of `decoding` does not exist or has an invalid value, or
            `tfm.tasks.translation.pipeline.TextTranslation.hypotheses` raises it.
        """
        return self.run.task.hypotheses(
            self.run.params,
            sentences,
            self._decoding(decoding),
            n_best=n_best,
            prefixes=prefixes,
            phrases=phrases,
            start_index=start_index,
        )

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[np.ndarray]:
        """Returns a float32 array for each pair: the log-probabilities of the target's pieces and its end.

        Raises:
          UserError: if the arguments are not lists of texts with equal lengths, or a text has more tokens
            than the model has positions.
        """
        return self.run.task.score(self.run.params, sources, targets)

    def align(self, sources: Iterable[str], targets: Iterable[str]) -> list[str]:
        """Returns the word alignment of each pair in Pharaoh format.

        The text "0-0 1-2" aligns source word 0 with target word 0 and source word 1 with target word 2. For
        pairs whose text is empty and for the errors, see
        `tfm.tasks.translation.pipeline.TextTranslation.align`.
        """
        return [to_pharaoh(pairs) for pairs in self.run.task.align(self.run.params, sources, targets)]

    def show(self, *sentences: str, max_tokens: int = MAX_TOKENS) -> Any:
        """Returns the page of some sentences for a notebook to display. See `tfm.Observer.show`."""
        from tfm.workdir.observer import Observer  # takes a second, because it draws pictures

        return Observer(self.run).show(*sentences, max_tokens=max_tokens)

    def with_edits(self, edits: Mapping[str, Edit]) -> "Translator":
        """Returns a translator whose model has edited activations.

        Args:
          edits: {name or glob of activations: function that edits them}, see `tfm.interpret.run`.
        """
        return Translator(edit_run(self.run, edits))

    def _decoding(self, fields: dict[str, Any]) -> Any:
        """Returns the decoding config of the run with some fields replaced."""
        return replace_fields(self.run.task.config.decoding, fields)
