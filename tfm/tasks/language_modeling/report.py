"""Scores documents with a trained language model. Each token is scored exactly once."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.batches.documents import score_windows, window_batches
from tfm.data.sources.opening import fingerprint_texts
from tfm.decoding.parameters import as_ensemble
from tfm.evaluation.language_modeling_metrics import likelihood_scores
from tfm.sharding import fetch, place_rows
from tfm.tasks.language_modeling.data import TokenizedDocuments
from tfm.training.task import Report

MAX_EXAMPLE_CHARACTERS = 60  # of a document in an example


def report_split(task: Any, params: Any, split: str) -> Iterator[Report]:
    """Yields the report of a split. Its outputs are the bits per byte of each document."""
    documents = TokenizedDocuments(task.config, task.tokenizer, split)
    began = time.monotonic()
    nats = document_nats(task, params, documents)
    rate = len(documents.texts) / (time.monotonic() - began)
    sizes = [max(len(text.encode("utf-8")), 1) for text in documents.texts]
    outputs = [f"{value / np.log(2) / size:.4f}" for value, size in zip(nats, sizes, strict=True)]
    examples = [
        {"document": " ".join(text[:MAX_EXAMPLE_CHARACTERS].split()), "bits/byte": output}
        for text, output in zip(documents.texts, outputs, strict=True)
    ]
    settings = {"window": task.config.data.row_length, "stride": task.config.stride}
    scores = score_documents(task, nats, documents)
    yield Report(outputs, scores, examples, settings, rate, fingerprint_texts(documents.texts, outputs[:0]))


def score_documents(task: Any, nats: np.ndarray, documents: TokenizedDocuments) -> list[Any]:
    """Returns the `likelihood_scores` of documents. `nats` is the result of `document_nats`."""
    how = f"window {task.config.data.row_length:,}, stride {task.config.stride:,}"
    return likelihood_scores(nats, len(documents.tokens), documents.texts, how)


def document_nats(task: Any, params: Any, documents: TokenizedDocuments) -> np.ndarray:
    """Returns the negative log-probability of each document with its EOS, in nats: float64 [documents].

    The context is the same as in training: with contiguous rows the previous documents and the document, with
    packed rows only the document.
    """
    data = task.config.data
    ends = documents.ends if data.rows == "packed" else documents.ends[-1:]
    windows = score_windows(ends, data.row_length, min(task.config.stride, data.row_length))
    scores = np.full(len(documents.tokens), np.nan)
    members = as_ensemble(params)
    for batch_windows, batch in window_batches(documents.tokens, windows, data.batch_tokens):
        log_probabilities = fetch(task.log_probabilities(members, place_rows(batch, like=members)))
        for row, (start, length, counted) in enumerate(zip(*batch_windows, strict=True)):
            first = length - counted
            scores[start + first : start + length] = log_probabilities[row, first:length]
    return -np.add.reduceat(scores, np.concatenate([[0], documents.ends[:-1]]))
