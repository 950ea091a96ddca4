"""The opened data of a language model's run: tokenised, cut into rows, and described."""

import logging
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tfm.data.batches.documents import train_batches
from tfm.data.batches.schedule import prefetch
from tfm.data.character_tokenizers import TextTokenizer
from tfm.data.sources.documents import open_documents
from tfm.data.token_cache import TEXT, TokenCache
from tfm.training.task import Batch

PADDING_ADVICE = "over a quarter of each batch is padding: lower data.row_length or data.batch_tokens."
log = logging.getLogger(__name__)


class LanguageModelingData:
    """Training and validation documents of a run; a `tfm.training.task.Data`.

    Attributes:
      validation: `TokenizedDocuments` that each evaluation scores.
    """

    def __init__(self, config: Any, tokenizer: TextTokenizer):
        self._identity = {"tokenizer": tokenizer.fingerprint}
        documents = open_documents(config.data, "train")
        self._identity["train"] = documents.fingerprint
        cache = TokenCache.open(documents, tokenizer, config.data.cache, TEXT)
        self._train = train_batches(
            cache,
            config.data,
            config.training.seed,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        self.validation = TokenizedDocuments(config, tokenizer, "validation", config.validation_documents)
        self._identity["validation"] = self.validation.fingerprint
        self._tokens = len(cache.stream()[0])
        log.info(
            "%s training documents, %s tokens, vocabulary %s, %s batches of %s rows an epoch",
            f"{len(documents):,}",
            f"{self._tokens:,}",
            f"{len(tokenizer):,}",
            f"{self._train.batches:,}",
            f"{self._train.shapes[0][0]:,}",
        )

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Endless batches from `start_step` on, prefetched."""
        return prefetch(self._train, start_step)

    def identity(self) -> dict[str, str]:
        """Hashes of the splits and of the tokenizer, by name."""
        return self._identity

    def describe_batch(self, step: int) -> dict[str, Any]:
        """See `Batches.describe`."""
        return self._train.describe(step)

    def count(self, batch: Batch) -> int:
        """Tokens of a host batch, no padding."""
        return int(batch["weights"].sum())

    def example(self) -> Batch:
        """A batch of zeros."""
        return self._train.largest_batch()

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Shapes, padding and arithmetic, with advice where a row is longer than the texts."""
        (rows, length), padding = self._train.shapes[0], self._train.padding_fraction
        tokens = rows * length * jax.process_count() * (1 - padding)
        lines = [
            ("batches", f"1 shape, {rows} x {length}; padding {100 * padding:.1f} %"),
            ("epoch", f"{self._train.batches:,} batches, {self._tokens:,} tokens"),
            (
                "arithmetic",
                f"about {6e-9 * parameters * tokens:,.0f} GFLOP a step (6 x parameters x tokens)",
            ),
        ]
        if padding > 0.25:
            lines.append(("warning", PADDING_ADVICE))
        return lines


class TokenizedDocuments:
    """The first documents of a split, with their tokens.

    Args:
      config: of the task.
      tokenizer: of the run.
      split: its name.
      most: how many documents; 0 is all.

    Attributes:
      texts: the documents.
      tokens, ends: int [N] tokens, each document ending in EOS, and int [documents] where each ends.
      fingerprint: identity of the whole split.
    """

    def __init__(self, config: Any, tokenizer: TextTokenizer, split: str, most: int = 0):
        documents = open_documents(config.data, split)
        self.fingerprint = documents.fingerprint
        self.texts = [text for (text,) in documents[: most or len(documents)]]
        tokens, ends = TokenCache.open(documents, tokenizer, config.data.cache, TEXT).stream()
        self.ends = np.asarray(ends[: len(self.texts)])
        self.tokens = np.asarray(tokens[: self.ends[-1]])
