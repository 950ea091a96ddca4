"""Observers of the config sections of BERT: its pretraining, and the classification of texts."""

import dataclasses
from typing import Any

import numpy as np

from tests.tasks.translation.wiring import observe_stored_pairs
from tests.tasks.wiring_language_modeling import WORD_PIECES, observe_stored_documents
from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_TFDS, TABLE, TFDS, other_files
from tests.wiring.observers import VOCABULARY, list_batches, observe_loss, open_run
from tfm.systems.bert import classification, pretraining
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.masked_pairs import SentencesConfig, empty_batch
from tfm.systems.bert.model import BertConfig

MODEL = BertConfig(encoder_layers=1, d_model=8, d_ff=12, heads=2, max_positions=32)
CLASSIFIER = dataclasses.replace(MODEL, head="classes")
SENTENCES = SentencesConfig(
    documents="line",
    directory="corpus",
    row_length=16,
    batch_tokens=64,
    train="train.txt",
    validation="validation.txt",
    test="test.txt",
    cache_dir="cache",
)
LABELLED = LabelledConfig(
    directory="corpus",
    train="train.tsv",
    validation="validation.tsv",
    test="test.tsv",
    vocabulary_size=330,
    vocabulary_pairs=30,
    max_length=16,
    batch_tokens=64,
    cache_dir="cache",
)
LETTERS = 8  # classes of the column "letter"


def observe_pretraining(config: pretraining.Config) -> Observation:
    """Traces the initialization and the loss."""
    task = pretraining.MaskedLanguageModeling(config, VOCABULARY)
    return observe_loss(task, empty_batch((2, 8), config.predicted_share))


def observe_pretraining_run(config: pretraining.Config) -> Observation:
    """Observes the data of a new run, and the pairs of texts that its evaluations and reports read."""
    task, data, observation = open_run(config)
    return observation | {
        "validation": list_batches(data.validation.in_order()),
        "test": list_batches(task.open_split("test", 0)[0].in_order()),
    }


def observe_sentences(data: SentencesConfig) -> Observation:
    """Observes a run with this data section."""
    return observe_pretraining_run(pretraining.Config(model=MODEL, data=data))


def observe_classification(config: classification.Config) -> Observation:
    """Traces the initialization and the loss."""
    batch = {name: np.ones((2, 8), np.int32) for name in ("tokens", "types", "labels", "weights")}
    return observe_loss(classification.TextClassification(config, VOCABULARY, [], ""), batch)


def observe_labelled_texts(data: LabelledConfig) -> Observation:
    """Observes a run with this data section, and the texts that its evaluations and reports read."""
    classes = LETTERS if data.label_column == "letter" else 2
    model = dataclasses.replace(CLASSIFIER, classes=classes)
    task, opened, observation = open_run(classification.Config(model=model, data=data))
    splits = {"validation": opened.validation, "test": task.open_split("test")[0]}
    return observation | {
        split: list_batches(batch for _, batch in texts.in_order()) for split, texts in splits.items()
    }


def observe_model(model: Any) -> Observation:
    """Traces the initialization and the loss of the task of the model's head."""
    if model.head == "pretraining":
        return observe_pretraining(pretraining.Config(model=model, data=SentencesConfig(row_length=8)))
    return observe_classification(classification.Config(model=model, data=LabelledConfig(max_length=8)))


PRETRAINING = pretraining.Config(model=MODEL, data=SENTENCES, loss_chunk_size=2)
CASES = [
    *make_cases(MODEL, observe_model, {"attention_dropout": 0.0}, {"head": "classes"}, {"types": 0}),
    *make_cases(SENTENCES, observe_sentences, TABLE, WORD_PIECES),
    Case(SentencesConfig(kind="tfds", name=TFDS, directory="tfds"), observe_stored_documents),
    Case(LABELLED, observe_labelled_texts),
    Case(LabelledConfig(kind="tfds", name=TFDS, directory="tfds"), observe_stored_pairs),
    Case(PRETRAINING, observe_pretraining),
    Case(PRETRAINING, observe_pretraining_run),
    Case(classification.Config(model=CLASSIFIER, data=LABELLED), observe_classification),
]
VALUES = {
    SentencesConfig: {
        "kind": "table",
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "feature": "other",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
        **other_files(".txt"),
    },
    LabelledConfig: {
        "kind": "tfds",
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "text_column": "other",
        "second_column": "other",
        "label_column": "letter",
        "tokenizer": "own.model",
        "cache_dir": "other_cache",
        **other_files(".tsv"),
    },
}
