"""Observers of the config sections of translation, and of the models that translate."""

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_SPLITS, OTHER_TFDS, TABLE, TFDS
from tests.wiring.observers import (
    VOCABULARY,
    list_batches,
    observe_loss,
    observe_source,
    open_run,
)
from tests.wiring.searches import SENTENCES, load_tokenizer, observe_searches, zero_params
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import open_pairs
from tfm.decoding.config import DecodingConfig
from tfm.decoding.translate import search_batch
from tfm.models import TransformerConfig
from tfm.tasks import translation
from tfm.training.config import TrainingConfig

TRANSFORMER = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=8, d_ff=12, heads=2)
PAIRS = PairsConfig(
    kind="text",
    directory="corpus",
    vocabulary_size=330,
    vocabulary_pairs=30,
    max_length=16,
    batch_tokens=64,
    cache_dir="cache",
)
TWO_CORPORA = {"train": "train,more", "validation": "check,more", "test": "exam,test", "tags": "<a>,<b>"}
DECODING = DecodingConfig(max_extra_tokens=4, beam_size=2, max_input=8, batch_size=2)
FIELDS: dict[str, Any] = {
    "model": TRANSFORMER,
    "decoding": DECODING,
    "loss_chunk_size": 2,
    "validation_sentences": 3,
    "validation_samples": 1,
}
TRAINING = TrainingConfig(
    steps=6, warmup_steps=3, log_every=2, eval_every=3, checkpoint_every=2, keep=9, trackers=()
)
ARRAYS = [f"{side}{kind}" for side in ("input", "target") for kind in ("s", "_positions", "_segments")]
BATCH = {name: np.ones((2, 8), np.int32) for name in ARRAYS}


class KnowsReferences:
    """Replaces the model of a translation task by the references of the validation split.

    The first sentence has an empty translation, of which no picture is drawn, because a picture would need a
    compiled model.
    """

    answers: dict[str, str]

    def know(self, pairs: list[tuple[str, str]]) -> None:
        """Learns the references of (source, reference) pairs."""
        self.answers = {source: self.form.write_target(source, target) for source, target in pairs}
        self.answers[pairs[0][0]] = ""

    def translate(self, params, sentences, decoding=None, *, start_index=0):
        """Returns the reference of each known sentence, and other sentences as they are."""
        return [self.answers.get(sentence, sentence) for sentence in sentences]

    def score(self, params, sources, targets):
        """Returns three tokens with the probability 1 for each pair."""
        return [np.zeros(3) for _ in sources]


class KnownTranslation(KnowsReferences, translation.Translation):
    """A translation task whose model is replaced."""


def observe_validation(task: Any, data: Any) -> Observation:
    """Observes the validation split and the samples of an evaluation by a task that knows the references."""
    task.know(data.validation_pairs)
    without_batches = SimpleNamespace(validation_batches=[], validation_pairs=data.validation_pairs)
    return {
        "validation": list_batches(data.validation_batches),
        "pairs": data.validation_pairs,
        "samples": task.evaluate({"params": None}, without_batches).samples.rows,
    }


def observe_run(config: translation.Config) -> Observation:
    """Observes the data of a new run, and what its evaluations and reports read."""
    task, data, observation = open_run(config)
    known = KnownTranslation(config, task.tokenizer)
    observation |= observe_validation(known, data)
    report = next(iter(known.report({"params": None}, "test")))
    scores = [(score.name, score.signature) for score in report.scores]
    return observation | {"test": report.examples, "scores": scores}


def observe_pairs(data: PairsConfig) -> Observation:
    """Observes a run with this data section."""
    return observe_run(translation.Config(model=TRANSFORMER, data=data, validation_sentences=3))


def observe_stored_pairs(data: PairsConfig) -> Observation:
    """Observes the training pairs of a data set."""
    return observe_source(open_pairs(data, "train"))


def observe_translation(config: translation.Config) -> Observation:
    """Traces the initialization and the loss."""
    return observe_loss(translation.Translation(config, VOCABULARY), BATCH)


def observe_model(model: Any) -> Observation:
    """Traces the initialization and the loss of a model that translates."""
    decoding = DecodingConfig(max_input=8, max_extra_tokens=4)
    return observe_translation(
        translation.Config(model=model, data=PairsConfig(max_length=8), decoding=decoding)
    )


def observe_order(training: TrainingConfig) -> Observation:
    """Observes the training batches of a run with this training section."""
    _, data, _ = open_run(translation.Config(model=TRANSFORMER, data=PAIRS, training=training))
    return {"train": list_batches(itertools.islice(data.train_batches(0), 2))}


def observe_decoding(decoding: DecodingConfig) -> Observation:
    """Observes the searches of translations and their results."""
    config = translation.Config(model=TRANSFORMER, data=PAIRS, decoding=decoding)
    task = translation.Translation(config, load_tokenizer())
    decode = functools.partial(task.hypotheses, zero_params(task), SENTENCES)
    return observe_searches("tfm.decoding.translate.search_batch", search_batch, decode)


CONFIG = translation.Config(data=PAIRS, **FIELDS)
CASES = [
    *make_cases(TRANSFORMER, observe_model, {"positions": "learned"}),
    *make_cases(
        PAIRS,
        observe_pairs,
        {"batching": "packed", "row_length": 24},
        TABLE,
        TWO_CORPORA | {"mixing": "1,1"},
        {"subword_dropout": 0.4, "subword_samples": 1},
    ),
    Case(PairsConfig(kind="tfds", name=TFDS, directory="tfds"), observe_stored_pairs),
    Case(TRAINING, observe_order),
    *make_cases(DECODING, observe_decoding, {"samples": 4}, {"coverage_penalty": 0.5}),
    Case(CONFIG, observe_translation),
    Case(CONFIG, observe_run),
]
VALUES = {
    PairsConfig: {
        "kind": "table",
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "source_language": "fr",
        "target_language": "fr",
        "source_column": "fr",
        "target_column": "fr",
        "mixing": "1,3",
        "references": "fr",
        "tags": "<a>,<c>",
        "source_prefix": "<a>",
        "target_prefix": "<c>",
        "tokenizer": "own.model",
        "cache_dir": "other_cache",
    }
    | OTHER_SPLITS,
}
