"""Summarization: trains a language model on documents that end in their summary (Liu et al. 2018, section 4).

Article, the text before the summary and the summary are one sequence, and every token of it counts for the
loss. An evaluation gives the model everything before the summary and compares the continuation with it.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tfm import tasks
from tfm.config import field
from tfm.data.source import Source
from tfm.data.sources.opening import check_splits, fingerprint_texts, open_documents
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.systems.t_dmca.rouge import NAMES, summary_scores
from tfm.systems.t_dmca.summaries import (
    SummariesConfig,
    check_documents,
    cut_article,
    cut_articles,
    inspect_split,
    split_documents,
)
from tfm.tasks import language_modeling
from tfm.training.setup import has_checkpoint
from tfm.training.task import Report, parameters_of

fingerprint = language_modeling.fingerprint
log = logging.getLogger(__name__)
__all__ = ["Config", "Summarization", "create", "fingerprint", "inspect_split", "plan"]


@dataclasses.dataclass(frozen=True)
class Config(language_modeling.Config):
    """The config of a summarization run."""

    task: str = tasks.task_field("summarization")
    data: SummariesConfig = field(SummariesConfig, "Articles with summaries, and their rows.")

    SCORES: ClassVar[tuple[str, ...]] = ("exact match", *NAMES.values())
    output_suffix: ClassVar[str] = "summaries"

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        """The settings on which the scores of an evaluation depend."""
        return dataclasses.asdict(dataclasses.replace(self.decoding, samples=0))

    def cut_documents(self, documents: Source, tokenizer: Tokenizer, split: str) -> Source:
        """Cuts the articles of a split that are too long for a packed row."""
        if self.data.rows != "packed":
            return documents
        return cut_articles(documents, tokenizer, self.data, split)


class Summarization(language_modeling.LanguageModeling):
    """A task that trains a language model to summarize. For the attributes, see `LanguageModeling`."""

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Checks a split, and yields one report, whose outputs are the summaries.

        They come from the search of the config, because `decoding.samples` is ignored. For the scores, see
        `summary_scores`.

        Raises:
          UserError: if the split cannot be used, or a document does not contain `data.before_summary`.
        """
        check_splits(self.config.data, [split])
        documents = [text for (text,) in open_documents(self.config.data, split)]
        prefixes, references = split_documents(documents, self.config.data.before_summary)
        decoding = dataclasses.replace(self.config.decoding, samples=0)
        began = time.monotonic()
        continuations = self.generate(parameters_of(variables), self.cut_prefixes(prefixes), decoding)
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

    def cut_prefixes(self, prefixes: Sequence[str]) -> list[str]:
        """Cuts articles, so that a packed row has `decoding.max_tokens` more tokens, at most half of them.

        The text before the summary stays at the end. A warning counts the articles that were cut. With
        contiguous rows, nothing is cut.

        Args:
          prefixes: articles with the text before the summary, see `split_documents`.
        """
        data, tokenizer = self.config.data, self.tokenizer
        if data.rows != "packed":
            return list(prefixes)
        length = max(data.row_length - self.config.decoding.max_tokens, data.row_length // 2)
        ending = data.before_summary.rstrip(" ") or data.before_summary
        cut = [
            text
            if len(ids) < length
            else cut_article(text.removesuffix(ending), ending, tokenizer, length).text
            for text, ids in zip(prefixes, tokenizer.encode(prefixes), strict=True)
        ]
        if count := sum(new != old for new, old in zip(cut, prefixes, strict=True)):
            log.warning(
                "Cut %s of %s articles to their first tokens, because they are longer than %s tokens",
                f"{count:,}",
                f"{len(prefixes):,}",
                f"{length:,}",
            )
        return cut


def plan(config: Config) -> Summarization:
    """Returns the task of a run that has no tokenizer yet, see `language_modeling.plan`."""
    return Summarization(config, language_modeling.plan(config).tokenizer)


def create(config: Config, workdir: str, *, new: bool = True) -> Summarization:
    """Creates the task of a run, see `language_modeling.create`.

    Raises:
      UserError: if a document of a new run lacks `data.before_summary`.
    """
    if new and not has_checkpoint(workdir):
        check_documents(config.data)  # first, because a tokenizer keeps the text before a summary
    return Summarization(config, language_modeling.create(config, workdir, new=new).tokenizer)
