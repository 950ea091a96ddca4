"""The data of a language-modelling run: opens, tokenizes, cuts into rows and describes them."""

import logging
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tfm.data.batches.documents import train_batches
from tfm.data.batches.schedule import prefetch
from tfm.data.sources.documents import open_documents
from tfm.data.token_cache import TEXT, TokenCache
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.training.task import Batch

PADDING_ADVICE = "over a quarter of each batch is padding. Decrease data.row_length or data.batch_tokens."
log = logging.getLogger(__name__)


class LanguageModelingData:
    """The training and validation documents of a run. Implements `tfm.training.task.Data`.

    Attributes:
      validation: the `TokenizedDocuments` that each evaluation scores.
    """

    def __init__(self, config: Any, tokenizer: Tokenizer):
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
        """Returns an endless iterator over the batches from `start_step` on. A thread prefetches them."""
        return prefetch(self._train, start_step)

    def identity(self) -> dict[str, str]:
        """Returns {"tokenizer", "train", "validation": hash of the content}."""
        return self._identity

    def describe_batch(self, step: int) -> dict[str, Any]:
        """See `Batches.describe`."""
        return self._train.describe(step)

    def count(self, batch: Batch) -> int:
        """Returns the number of tokens of a host batch, without padding."""
        return int(batch["weights"].sum())

    def example(self) -> Batch:
        """Returns a batch of zeros. All batches have this shape."""
        return self._train.largest_batch()

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the batches, with advice if over a quarter of them is padding."""
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
      config: config of the task.
      tokenizer: tokenizer of the run.
      split: name of the split.
      most: maximum number of documents; 0 reads all.

    Attributes:
      texts: the documents.
      tokens: int [N], the tokens of all documents. Each document ends in EOS.
      ends: int [documents], the index in `tokens` after the last token of each document.
      fingerprint: hash of the content of the whole split.
    """

    def __init__(self, config: Any, tokenizer: Tokenizer, split: str, most: int = 0):
        documents = open_documents(config.data, split)
        self.fingerprint = documents.fingerprint
        self.texts = [text for (text,) in documents[: most or len(documents)]]
        tokens, ends = TokenCache.open(documents, tokenizer, config.data.cache, TEXT).stream()
        self.ends = np.asarray(ends[: len(self.texts)])
        self.tokens = np.asarray(tokens[: self.ends[-1]])
