"""Observers of the config sections of language modelling, and of language models."""

import functools
from typing import Any

import numpy as np

from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_TFDS, TABLE, TFDS, other_files
from tests.wiring.observers import VOCABULARY, list_batches, observe_loss, observe_source, open_run
from tests.wiring.searches import SENTENCES, load_tokenizer, observe_searches, zero_params
from tfm.data.config import DocumentsConfig
from tfm.data.sources.opening import open_documents
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import Continuation, generate_batch
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.tasks import language_modeling

MODEL = DecoderLMConfig(layers=1, d_model=8, d_ff=12, heads=2, max_positions=32)
DOCUMENTS = DocumentsConfig(
    documents="line",
    directory="corpus",
    row_length=16,
    batch_tokens=64,
    train="train.en",
    validation="validation.en",
    test="test.en",
    cache_dir="cache",
)
WORD_PIECES = {"tokenizer": "word_pieces", "vocabulary_size": 330}
GENERATION = GenerationConfig(max_tokens=6, samples=2, batch_size=2)
FIELDS: dict[str, Any] = {
    "model": MODEL,
    "stride": 8,
    "loss_chunk_size": 2,
    "validation_documents": 3,
    "validation_samples": 1,
}
ARRAYS = ("inputs", "positions", "segments", "targets", "weights")
BATCH = {name: np.ones((2, 8), np.int32) for name in ARRAYS}


class RecordsWindows:
    """Replaces the model of a task of language modelling, and records the windows that it scores."""

    def __init__(self, config, tokenizer):
        super().__init__(config, tokenizer)
        self.windows = []

    def log_probabilities(self, members, batch):
        """Records a batch, and gives each target the probability 1."""
        self.windows.append(list_batches([batch]))
        return np.zeros(batch["targets"].shape)

    def generate(self, params, prefixes, decoding=None, **options):
        """Continues each text with itself."""
        return [[Continuation(text, 0.0)] for text in prefixes]


class RecordingLanguageModeling(RecordsWindows, language_modeling.LanguageModeling):
    """Language modelling whose model is replaced."""


def observe_recorded_run(config: language_modeling.Config, kind: type[RecordsWindows]) -> Observation:
    """Observes the data of a new run, the windows that evaluations and reports score, and the samples."""
    task, data, observation = open_run(config)
    recording: Any = kind(config, task.tokenizer)
    samples = recording.evaluate({"params": None}, data).samples.rows
    report = next(iter(recording.report({"params": None}, "test")))
    return observation | {"windows": recording.windows, "samples": samples, "test": report.examples}


def observe_run(config: language_modeling.Config) -> Observation:
    """See `observe_recorded_run`."""
    return observe_recorded_run(config, RecordingLanguageModeling)


def observe_documents(data: DocumentsConfig) -> Observation:
    """Observes a run with this data section."""
    return observe_run(language_modeling.Config(model=MODEL, data=data, stride=8))


def observe_stored_documents(data: DocumentsConfig) -> Observation:
    """Observes the training documents of a data set."""
    return observe_source(open_documents(data, "train"))


def observe_language_modeling(config: language_modeling.Config) -> Observation:
    """Traces the initialization and the loss."""
    return observe_loss(language_modeling.LanguageModeling(config, VOCABULARY), BATCH)


def observe_model(model: Any) -> Observation:
    """Traces the initialization and the loss of a language model."""
    data = DocumentsConfig(row_length=8)
    return observe_language_modeling(language_modeling.Config(model=model, data=data, stride=8))


def observe_decoding(decoding: GenerationConfig) -> Observation:
    """Observes the searches of continuations and their results."""
    config = language_modeling.Config(model=MODEL, data=DOCUMENTS, decoding=decoding, stride=8)
    task = language_modeling.LanguageModeling(config, load_tokenizer())
    decode = functools.partial(task.generate, zero_params(task), SENTENCES)
    return observe_searches("tfm.decoding.generate.generate_batch", generate_batch, decode)


CONFIG = language_modeling.Config(data=DOCUMENTS, **FIELDS)
CASES = [
    *make_cases(
        MODEL,
        observe_model,
        {"norm_order": "post"},  # required by deep_norm
        {"positions": "interleaved"},
        {"attention_dropout": 0.0},
    ),
    *make_cases(DOCUMENTS, observe_documents, TABLE | {"feature": "en"}, WORD_PIECES),
    Case(DocumentsConfig(kind="tfds", name=TFDS, directory="tfds"), observe_stored_documents),
    *make_cases(GENERATION, observe_decoding, {"samples": 0, "beam_size": 2}),
    Case(CONFIG, observe_language_modeling),
    Case(CONFIG, observe_run),
]
VALUES = {
    DocumentsConfig: {
        "kind": "table",
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "feature": "fr",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
        **other_files(".en"),
    },
}
