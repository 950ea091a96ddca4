"""Samples of a language model during training: continuations of a few documents."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfm.training.task import Samples

PROMPT_WORDS = 6  # words of a document that the model continues
MAX_TOKENS = 64  # of a continuation


def make_samples(task: Any, params: Any, texts: Sequence[str]) -> Samples:
    """Continues the first words of `validation_samples` documents.

    The model continues all prompts greedily in one batch, so every evaluation runs the same compiled program.
    Blank documents are skipped.

    Args:
      task: a `tfm.tasks.language_modeling.LanguageModeling`.
      params: parameters of the model.
      texts: the documents.

    Returns:
      `Samples` with the prompt, the rest of the document and the continuation of each document.
    """
    documents = [text for text in texts if text.strip()][: task.config.validation_samples]
    if not documents:
        return Samples([], {})
    prompts = [" ".join(text.split()[:PROMPT_WORDS]) for text in documents]
    decoding = task.config.decoding
    greedy = dataclasses.replace(
        decoding,
        samples=0,
        beam_size=1,
        max_tokens=min(decoding.max_tokens, MAX_TOKENS),
        batch_size=len(prompts),
    )
    rows = [
        {"prompt": prompt, "reference": " ".join(text.split()[PROMPT_WORDS:]), "continuation": best.text}
        for prompt, text, (best, *_) in zip(
            prompts, documents, task.generate(params, prompts, greedy), strict=True
        )
    ]
    return Samples(rows, {})
