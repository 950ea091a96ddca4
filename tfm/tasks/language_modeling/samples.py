"""Samples of a language model in training: continuations of a few documents."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfm.training.task import Samples

PROMPT_WORDS = 6
MAX_TOKENS = 64  # of a continuation


def make_samples(task: Any, params: Any, texts: Sequence[str]) -> Samples:
    """The first words of `validation_samples` documents, how these go on, and how the model continues them.

    All prompts are continued in one batch, greedily, by the same program at each evaluation.

    Args:
      task: a `tfm.tasks.language_modeling.LanguageModeling`.
      params: of the model.
      texts: the documents.
    """
    chosen = [text for text in texts if text.strip()][: task.config.validation_samples]
    if not chosen:
        return Samples([], {})
    prompts = [" ".join(text.split()[:PROMPT_WORDS]) for text in chosen]
    decoding = task.config.decoding
    greedy = dataclasses.replace(
        decoding,
        samples=0,
        beam_size=1,
        max_tokens=min(decoding.max_tokens, MAX_TOKENS),
        batch_size=len(prompts),
    )
    rows = [
        {"prompt": prompt, "reference": " ".join(text.split()[PROMPT_WORDS:]), "continuation": found[0].text}
        for prompt, text, found in zip(prompts, chosen, task.generate(params, prompts, greedy), strict=True)
    ]
    return Samples(rows, {})
