"""A trained run as a function of texts."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfm.evaluation.alignment import to_pharaoh
from tfm.tasks.translation.pipeline import Hypothesis
from tfm.workdir import runs


class Translator:
    """A trained run, or its export, as a function of texts.

    >>> Translator.load("runs/quickstart").translate(["The dog sleeps."])  # doctest: +SKIP
    ['Der Hund schläft.']
    """

    def __init__(self, run: runs.Run):
        runs.require_translation(run.task.config, "Translator")
        self.run = run

    @classmethod
    def load(cls, workdir: str, **options: Any) -> "Translator":
        """See `tfm.workdir.runs.load`, whose options are `checkpoint`, `average_last` and `ensemble_last`."""
        return cls(runs.load(workdir, **options))

    def translate(self, sentences: Iterable[str], **decoding: Any) -> list[str]:
        """Texts -> texts. Further arguments replace fields of the run's `DecodingConfig`: beam_size=1."""
        return self.run.task.translate(self.run.params, sentences, self._decoding(decoding))

    def hypotheses(
        self,
        sentences: Iterable[str],
        *,
        n_best: int = 1,
        prefixes: Iterable[str] | None = None,
        **decoding: Any,
    ) -> list[list[Hypothesis]]:
        """The best translations of each text with their scores.

        Args:
          sentences: texts.
          n_best: how many of each; at most beam_size, or samples where these are drawn.
          prefixes: texts with which the translations must begin, or None.
          decoding: fields of the run's `DecodingConfig` to replace.

        Returns:
          A list of `Hypothesis` (text, score; see `tfm.tasks.translation.pipeline`) for each sentence,
          the best first, at least one.
        """
        return self.run.task.hypotheses(
            self.run.params, sentences, self._decoding(decoding), n_best=n_best, prefixes=prefixes
        )

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[np.ndarray]:
        """Log-probabilities of each target text's pieces and of its end: a float32 array for each pair."""
        return self.run.task.score(self.run.params, sources, targets)

    def align(self, sources: Iterable[str], targets: Iterable[str]) -> list[str]:
        """Word alignment of each pair in Pharaoh format, "0-0 1-2": source word, target word, from 0."""
        return [to_pharaoh(pairs) for pairs in self.run.task.align(self.run.params, sources, targets)]

    def _decoding(self, fields):
        return dataclasses.replace(self.run.task.config.decoding, **fields)
