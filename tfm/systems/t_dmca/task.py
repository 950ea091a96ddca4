"""Summarization: trains a language model on documents that end in their summary (Liu et al. 2018, section 4).

Document, separator and summary are one sequence, and every token of it counts for the loss. An evaluation
gives the model everything up to the separator and compares the continuation with the summary.
"""

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tfm import tasks
from tfm.config import OnResume, field
from tfm.data.sources.opening import fingerprint_texts, open_documents
from tfm.errors import UserError
from tfm.systems.t_dmca.reports import SEPARATOR
from tfm.systems.t_dmca.rouge import NAMES, summary_scores
from tfm.tasks import language_modeling
from tfm.training.task import Report, parameters_of

fingerprint = language_modeling.fingerprint


@dataclasses.dataclass(frozen=True)
class Config(language_modeling.Config):
    """The config of a summarization run."""

    task: str = tasks.task_field("summarization")
    separator: str = field(
        SEPARATOR,
        "Text between an article and its summary in each document. Its last place in a document counts.",
        pattern=re.compile("(?s:.+)"),
        form="a text that is not empty",
        resume=OnResume.FREE,
    )

    SCORES: ClassVar[tuple[str, ...]] = ("exact match", *NAMES.values())
    output_suffix: ClassVar[str] = "summaries"

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        """The settings on which the scores of an evaluation depend."""
        return dataclasses.asdict(dataclasses.replace(self.decoding, samples=0))


class Summarization(language_modeling.LanguageModeling):
    """A task that trains a language model to summarize. For the attributes, see `LanguageModeling`."""

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the summaries of a split and their scores."""
        prefixes, references = self.split_documents(
            [text for (text,) in open_documents(self.config.data, split)]
        )
        decoding = dataclasses.replace(self.config.decoding, samples=0)
        began = time.monotonic()
        continuations = self.generate(parameters_of(variables), prefixes, decoding)
        rate = len(prefixes) / (time.monotonic() - began)
        summaries = [" ".join(best.text.split()) for best, *_ in continuations]
        examples = [
            {
                "article": " ".join(text.split())[: language_modeling.MAX_EXAMPLE_CHARACTERS],
                "reference": right,
                "summary": summary,
            }
            for text, right, summary in zip(prefixes, references, summaries, strict=True)
        ]
        scores, identity = summary_scores(summaries, references), fingerprint_texts(prefixes, references)
        yield Report(summaries, scores, examples, self.config.evaluation_settings, rate, identity)

    def split_documents(self, documents: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the text up to the end of the separator of each document, and the summary after it.

        A blank at the end of the separator is left out.

        Raises:
          UserError: if a document has no separator.
        """
        prefixes, references = [], []
        for number, text in enumerate(documents, 1):
            article, separator, summary = text.rpartition(self.config.separator)
            if not separator:
                raise UserError(
                    f"Expected the separator {self.config.separator!r} in each document, but document "
                    f"{number:,} does not contain it. Set config.separator to the text before the summary."
                )
            # Word pieces begin with the blank before a word, and a blank at the end would be another piece.
            prefixes.append(article + (separator.rstrip(" ") or separator))
            references.append(" ".join(summary.split()))
        return prefixes, references


def plan(config: Config) -> Summarization:
    """Returns the task of a run that has no tokenizer yet, see `language_modeling.plan`."""
    return Summarization(config, language_modeling.plan(config).tokenizer)


def create(config: Config, workdir: str, *, new: bool = True) -> Summarization:
    """Creates the task of a run, see `language_modeling.create`."""
    return Summarization(config, language_modeling.create(config, workdir, new=new).tokenizer)
