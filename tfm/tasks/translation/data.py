"""The data of a translation run: opens, tokenizes, plans into batches and describes them."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax

from tfm.data.batches.pairs import eval_batches, open_train_batches
from tfm.data.batches.schedule import PrefetchedData
from tfm.data.config import PairsConfig
from tfm.data.source import Row, Source
from tfm.data.sources.opening import open_corpora, open_pairs, without_prefixes
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.normalization import make_normalizer
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.training.task import Batch

PAPER_TOKENS = 25_000  # tokens of a batch on each side (section 5.1)
ADVICE_RATIO = 2.0  # advise if a batch has more or fewer tokens than the paper's by this factor
log = logging.getLogger(__name__)


def take_from_each(corpora: Sequence[Source], count: int) -> list[Row]:
    """Returns `count` rows, the first ones of each corpus, about equally many of each.

    A corpus with fewer rows gives all its rows, and the result has fewer than `count`.
    """
    shares = [len(range(index, count, len(corpora))) for index in range(len(corpora))]
    return [row for corpus, share in zip(corpora, shares, strict=True) for row in corpus[:share]]


class TranslationData(PrefetchedData):
    """The training and validation pairs of a run. Implements `tfm.training.task.Data`.

    Attributes:
      validation_batches: list of the batches of the validation split.
      validation_pairs: (source, reference) texts of the user, without prefixes, that are translated at each
        evaluation.
    """

    def __init__(self, config: Any, tokenizer: Tokenizer):
        self._config = config
        batches, train_fingerprint = open_train_batches(
            config.data,
            config.training.seed,
            tokenizer,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        validation = open_pairs(config.data, "validation")
        cache = TokenCache.open(validation, tokenizer, config.data.cache)
        self.validation_batches = list(eval_batches(cache, config.data))
        normalize = make_normalizer(config.data.normalization)
        corpora = open_corpora(without_prefixes(config.data), "validation")
        pairs = take_from_each(corpora, config.validation_sentences)
        self.validation_pairs = [(source, normalize(reference)) for source, reference, *_ in pairs]
        fingerprints = {
            "vocabulary": tokenizer.fingerprint,
            "train": train_fingerprint,
            "validation": validation.fingerprint,
        }
        super().__init__(batches, fingerprints)
        log.info(
            "%s, vocabulary %s, batch shapes %s, padding %.1f%%",
            describe_training_texts(config.data, batches.pieces),
            f"{len(tokenizer):,}",
            batches.shapes,
            100 * batches.padding_fraction,
        )

    def count(self, batch: Batch) -> int:
        """Returns the number of source and target tokens of a host batch, without padding."""
        return count_tokens(batch)

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the batches, with advice if their size is far from the paper's."""
        shapes, padding = self.batches.shapes, self.batches.padding_fraction
        rows, length = max(shapes, key=math.prod)
        tokens = rows * length * jax.process_count() * (1 - padding)
        largest = f"the largest {rows} x {length}"
        operations = f"about {6e-9 * parameters * tokens:,.0f} GFLOP a step (6 x parameters x tokens)"
        lines = [
            ("batches", f"{len(shapes)} shape(s), {largest}; padding {100 * padding:.1f} %"),
            ("tokens of a batch", f"about {tokens:,.0f} on each side"),
            ("arithmetic", operations),
        ]
        advice = advise_batch_size(tokens, self._config.training.gradient_accumulation_steps)
        return [*lines, ("warning", advice)] if advice else lines


def describe_training_texts(config: PairsConfig, usable: int) -> str:
    """Returns the number of training texts and, if neighbours are joined, the number of pairs.

    For example, "29,000 training pairs", or "20,000 training texts joined from 29,000 pairs".

    Args:
      config: data section of the config.
      usable: number of texts that training uses.
    """
    if not config.joined_share:
        return f"{usable:,} training pairs"
    pairs = sum(map(len, open_corpora(dataclasses.replace(config, joined_share=0.0), "train")))
    return f"{usable:,} training texts joined from {pairs:,} pairs"


def advise_batch_size(tokens: float, gradient_accumulation_steps: int) -> str:
    """Returns advice if a batch has far more or fewer tokens on each side than the paper's, otherwise ""."""
    if PAPER_TOKENS / ADVICE_RATIO <= tokens <= PAPER_TOKENS * ADVICE_RATIO:
        return ""
    parts = max(round(gradient_accumulation_steps * PAPER_TOKENS / tokens), 1)
    return (
        f"the paper's batches have about {PAPER_TOKENS:,} tokens on each side. To get them in about the same "
        f"memory, set data.batch_tokens={PAPER_TOKENS} and training.gradient_accumulation_steps={parts}."
    )


def count_tokens(batch: Batch) -> int:
    """Returns the number of source and target tokens of a batch, without padding."""
    return int((batch["input_segments"] > 0).sum() + (batch["target_segments"] > 0).sum())
