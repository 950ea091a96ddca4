"""Observers of config sections, which record what the code that reads a section builds, opens or writes.

An observer is a function of a section. It returns {part: value} with values that can be compared. Programs
are traced but not compiled, unless nothing else shows the effect of a field. Folders of data are relative to
the current folder, which `write_data` fills.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from tests.support import (
    babi,
    boxed_pictures,
    captioned_pictures,
    images,
    tiny,
    tiny_regression,
    tiny_trees,
)
from tfm import tasks
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.data.images import ImageBatches, open_images
from tfm.data.sources import opening as sources
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import Continuation, generate_batch
from tfm.decoding.translate import search_batch
from tfm.models import TransformerConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.search import Hypotheses
from tfm.systems.bert import classification as text_classification
from tfm.systems.bert import pretraining as masked_language_modeling
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.masked_pairs import SentencesConfig, empty_batch
from tfm.systems.bert.model import BertConfig
from tfm.systems.feed_forward_lm.model import FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig
from tfm.systems.parsing import task as parsing
from tfm.systems.t_dmca import task as summarization
from tfm.systems.t_dmca.summaries import SummariesConfig
from tfm.systems.vit.model import ViTConfig
from tfm.tasks import image_classification as classification
from tfm.tasks import language_modeling, translation
from tfm.testing.tasks import rows_without_times
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.task import Context
from tfm.workdir.train import train

Observation = dict[str, Any]
ADDRESS = re.compile(r"0x[0-9a-f]+")
VOCABULARY = range(40)  # replaces a tokenizer of which only the number of tokens matters
SENTENCES = ["red dog runs", "big blue cat sleeps small bird runs red green dog", "cat"]
SAMPLES = ["small dog runs", "small dog", "big cat sleeps", "dog runs small"]
SPLITS = {"train": 40, "validation": 9, "test": 5, "more": 30, "check": 7, "exam": 6}
LANGUAGES = {"en": tiny.WORDS, "de": tiny.TRANSLATED, "fr": tuple(word[::-1] for word in tiny.WORDS)}
BATCHES = 24  # number of compared training batches, which is more than an epoch

TRANSFORMER = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=8, d_ff=12, heads=2)
LM = DecoderLMConfig(layers=1, d_model=8, d_ff=12, heads=2, max_positions=32)
BERT = BertConfig(encoder_layers=1, d_model=8, d_ff=12, heads=2, max_positions=32)
PAIRS = PairsConfig(
    kind="text",
    directory="corpus",
    vocabulary_size=330,
    vocabulary_pairs=30,
    max_length=16,
    batch_tokens=64,
    cache_dir="cache",
)
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
SUMMARIES = SummariesConfig(
    kind="text",
    feature="en",
    summary_column="de",
    directory="corpus",
    row_length=16,
    batch_tokens=64,
    cache_dir="cache",
)
ENDING_IN_SUMMARIES = SummariesConfig(**vars(DOCUMENTS) | {"before_summary": " "})
RUNNING_TEXTS = SentencesConfig(
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
PICTURES = ImagesConfig(kind="arrays", file="images.npz", batch_size=8)


def write_data() -> None:
    """Writes files of pairs, documents, trees and images into the current folder."""
    rng = np.random.default_rng(0)
    for folder in map(pathlib.Path, ("corpus", "elsewhere")):
        folder.mkdir()
        for split, size in SPLITS.items():
            lines = [rng.integers(0, len(tiny.WORDS), rng.integers(2, 9)) for _ in range(size)]
            sides = [[" ".join(words[i] for i in line) for line in lines] for words in LANGUAGES.values()]
            for language, side in zip(LANGUAGES, sides, strict=True):
                (folder / f"{split}.{language}").write_text("\n".join(side))
            texts = [[f"{line.replace(' ', '. ', 1)}." for line in side] for side in sides[:2]]
            (folder / f"{split}.txt").write_text("\n".join(texts[0]))
            labels = [["no", "yes"][len(line) % 2] for line in sides[0]], [line[0] for line in sides[0]]
            names = [*LANGUAGES, "text", "other", "label", "letter"]
            rows = ["\t".join(names), *map("\t".join, zip(*sides, *texts, *labels, strict=True))]
            (folder / f"{split}.tsv").write_text("\n".join(rows))
    learn_word_pieces(tiny.WORDS, 280, "own.model")
    tiny_trees.write_treebank(pathlib.Path("corpus"))
    boxed_pictures.write_arrays(pathlib.Path())
    boxed_pictures.write_coco(pathlib.Path("coco"))
    boxed_pictures.write_yolo(pathlib.Path("yolo"))
    captioned_pictures.write_captions(pathlib.Path("captions"))
    write_questions(tiny.WORDS)
    pathlib.Path("babi").mkdir()
    babi.write_babi(pathlib.Path("babi"))
    write_pictures()
    images.write_arrays("images.npz", {split: 8 * size // 5 for split, size in SPLITS.items()})
    images.write_arrays("others.npz", {split: 6 * size // 5 for split, size in SPLITS.items()})


def write_questions(words: Sequence[str]) -> None:
    """Writes files of analogies and of pairs of words with similarities."""
    for prefix, first in (("", 0), ("other_", 1)):
        chosen = words[first : first + 6]
        analogies = [" ".join(chosen[start : start + 4]) for start in range(3)]
        pairs = [
            f"{left} {right} {number}" for number, (left, right) in enumerate(itertools.pairwise(chosen))
        ]
        pathlib.Path(f"{prefix}questions.txt").write_text("\n".join(analogies))
        pathlib.Path(f"{prefix}pairs.txt").write_text("\n".join(pairs))


# Models and losses.


def trace(function: Callable, *arguments: Any) -> tuple[str, Any]:
    """Returns (program of a function as text without memory addresses, shapes of its results)."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    constants = [show_constant(x) for x in program.consts if np.size(x) < MAX_SHOWN_CONSTANT]
    return ADDRESS.sub("", f"{program} {constants}"), shapes


def show_constant(constant: Any) -> Any:
    """Returns the numbers of a constant of a program. A key of random numbers has no array of NumPy."""
    is_key = jnp.issubdtype(jnp.result_type(constant), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(constant) if is_key else constant).tolist()


def make_batch(config: Any) -> dict[str, Any]:
    """Returns a batch of a task with arbitrary values."""
    if isinstance(config, classification.Config):
        size = config.model.image_size
        shape = (2, size, size, config.model.channels)
        return {"images": np.zeros(shape, np.float32), "labels": np.zeros(2, int), "weights": np.ones(2)}
    if isinstance(config, masked_language_modeling.Config):
        return empty_batch((2, 8), config.predicted_share)
    if isinstance(config, text_classification.Config):
        names = ["tokens", "types", "labels", "weights"]
    elif isinstance(config, language_modeling.Config):
        names = ["inputs", "positions", "segments", "targets", "weights"]
    else:
        names = [f"{side}{kind}" for side in ("input", "target") for kind in ("s", "_positions", "_segments")]
    return {name: np.ones((2, 8), np.int32) for name in names}


def observe_loss(config: Any) -> Observation:
    """Traces the initialization and the loss of a task in training mode."""
    if isinstance(config, classification.Config):
        names = [str(number) for number in range(config.model.classes)]
        task: Any = classification.Classification(config, names, "")
    elif isinstance(config, text_classification.Config):
        task = text_classification.TextClassification(config, VOCABULARY, [], "")
    else:
        kinds = {
            translation.Config: translation.Translation,
            parsing.Config: parsing.Parsing,
            language_modeling.Config: language_modeling.LanguageModeling,
            masked_language_modeling.Config: masked_language_modeling.MaskedLanguageModeling,
            summarization.Config: summarization.Summarization,
        }
        task = kinds[type(config)](config, VOCABULARY)
    key = jax.random.key(0)
    init, variables = trace(task.init, key)
    loss, _ = trace(task.loss, variables, make_batch(config), Context(0, key))
    return {"init": init, "loss": loss}


def observe_model(model: Any) -> Observation:
    """Observes the loss of the task to which a model belongs."""
    if isinstance(model, ViTConfig):
        return observe_loss(classification.Config(model=model))
    if isinstance(model, BertConfig):
        data: Any = LabelledConfig(max_length=8)
        if model.head != "pretraining":
            return observe_loss(text_classification.Config(model=model, data=data))
        data = SentencesConfig(row_length=8)
        return observe_loss(masked_language_modeling.Config(model=model, data=data))
    if isinstance(model, DecoderLMConfig | LSTMConfig | FeedForwardLMConfig):
        data = DocumentsConfig(row_length=8)
        return observe_loss(language_modeling.Config(model=model, data=data, stride=8))
    data, decoding = PairsConfig(max_length=8), DecodingConfig(max_input=8, max_extra_tokens=4)
    return observe_loss(translation.Config(model=model, data=data, decoding=decoding))


# Data.


def list_values(batches: Any) -> list[dict[str, Any]]:
    """Returns batches as lists that can be compared."""
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


def observe_run(config: Any) -> Observation:
    """Opens the data of a new run and observes what training, evaluation and reports read."""
    for path in pathlib.Path().glob("*cache"):
        shutil.rmtree(path)
    with tempfile.TemporaryDirectory() as workdir:
        task = tasks.find(config.task).create(config, workdir)
    data = task.open_data()
    return {
        "caches": list(pathlib.Path().glob("*cache")),
        "train": list_values(itertools.islice(data.train_batches(0), BATCHES)),
        "assets": task.assets(),
        "identity": data.identity(),
    } | EVALUATIONS[type(task)](task, data)


def observe_evaluated_pairs(task: Any, data: Any) -> Observation:
    """Observes the evaluation of a translation model that is replaced by the references."""
    answers = {source: task.form.write_target(source, target) for source, target in data.validation_pairs}
    task.translate = lambda params, texts, *_: [answers.get(text, text) for text in texts]
    task.score = lambda params, texts, *_: [np.zeros(3)]
    batches = list_values(data.validation_batches)
    data.validation_batches = []
    with mock.patch("tfm.tasks.translation.observe.observe_pair", return_value=None):
        samples = task.evaluate({"params": None}, data).samples.rows
    found = {"validation": batches, "pairs": data.validation_pairs, "samples": samples}
    if not isinstance(task, parsing.Parsing):
        report = next(iter(task.report({"params": None}, "test")))
        found |= {"test": report.examples, "scores": [(each.name, each.signature) for each in report.scores]}
    return found


def observe_evaluated_documents(task: Any, data: Any) -> Observation:
    """Observes the windows that the evaluation of a language model scores, and its samples."""
    windows: list[Any] = []

    def score(members: Any, batch: Any) -> np.ndarray:
        windows.append(list_values([batch]))
        return np.zeros(batch["targets"].shape)

    task.log_probabilities = score
    task.generate = lambda params, prompts, decoding: [[Continuation(text, 0.0)] for text in prompts]
    samples = task.evaluate({"params": None}, data).samples.rows
    report = next(iter(task.report({"params": None}, "test")))
    return {"windows": windows, "samples": samples, "test": report.examples}


def observe_evaluated_images(task: Any, data: Any) -> Observation:
    """Observes the images that the evaluation of a classifier reads."""
    task.classify = lambda variables, batch: np.zeros((len(batch), len(task.label_names)))
    report = next(iter(task.report({"params": None}, "test")))
    return {"validation": list_values(data.validation_batches()), "test": report.examples}


def observe_masked_documents(task: Any, data: Any) -> Observation:
    """Observes the pairs of texts that the evaluation of a pretrained model reads."""
    return {
        "validation": list_values(data.validation.in_order()),
        "test": list_values(task.open_split("test", 0)[0].in_order()),
    }


def observe_evaluated_texts(task: Any, data: Any) -> Observation:
    """Observes the labelled texts that the evaluation of a classifier reads."""
    splits = {"validation": data.validation, "test": task.open_split("test")[0]}
    return {name: list_values(batch for _, batch in texts.in_order()) for name, texts in splits.items()}


EVALUATIONS: dict[type, Callable[[Any, Any], Observation]] = {
    translation.Translation: observe_evaluated_pairs,
    parsing.Parsing: observe_evaluated_pairs,
    language_modeling.LanguageModeling: observe_evaluated_documents,
    summarization.Summarization: observe_evaluated_documents,
    classification.Classification: observe_evaluated_images,
    masked_language_modeling.MaskedLanguageModeling: observe_masked_documents,
    text_classification.TextClassification: observe_evaluated_texts,
}


def observe_data(data: Any) -> Observation:
    """Observes a run with this data section."""
    if isinstance(data, SentencesConfig):
        config: Any = masked_language_modeling.Config(model=BERT, data=data)
    elif isinstance(data, LabelledConfig):
        model = dataclasses.replace(BERT, head="classes", classes=8 if data.label_column == "letter" else 2)
        config = text_classification.Config(model=model, data=data)
    elif isinstance(data, SummariesConfig):
        config = summarization.Config(model=LM, data=data, stride=8)
    elif isinstance(data, DocumentsConfig):
        config = language_modeling.Config(model=LM, data=data, stride=8)
    elif isinstance(data, ImagesConfig):
        config = classification.Config(model=images.MODEL, data=data)
    else:
        config = translation.Config(model=TRANSFORMER, data=data, validation_sentences=3)
    return observe_run(config)


def write_pictures() -> None:
    """Writes two folders of pictures with a table of labels for each split, and normalized arrays."""
    rng = np.random.default_rng(0)
    for folder in map(pathlib.Path, ("pictures", "pictures/others")):
        folder.mkdir()
        for number in range(6):
            pixels = rng.integers(0, 256, (5, 7 + number % 2, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    rows = [f"{number}.png,{5 - number}.png,{number % 3},{'ab'[number % 2]}" for number in range(6)]
    for split, size in SPLITS.items():
        lines = ["file_name,other,label,letter", *rows[: min(size, 6)]]
        pathlib.Path("pictures", f"{split}.csv").write_text("\n".join(lines))
    floats = rng.random((6, 4, 4, 3)) / 2
    np.savez("normalized.npz", train_images=floats, train_labels=np.arange(6))


def observe_pictures(data: Any) -> Observation:
    """Observes the first batch of pictures, the names of their classes and what the cache contains."""
    source = open_images(data, "train")
    batch = ImageBatches(source, data, 0).batch(0)
    return {
        "batch": list_values(iter([batch])),
        "names": source.label_names,
        "cache": (data.cache, os.path.isdir(os.path.join(data.cache, "pictures"))),
    }


MAX_SHOWN_CONSTANT = 10  # numbers


class Recorded(list):
    """A source that records the arguments with which it was opened."""

    def __init__(self, *arguments: Any):
        super().__init__([("text",)])
        self.fingerprint = repr(arguments)
        self.find_problems, self.locate = list, str

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def observe_library(data: Any) -> Observation:
    """Observes the arguments with which a data set of TFDS or Hugging Face is found and opened."""
    builders: list[Any] = []
    replaced = {
        "tfm.data.sources.tfds.find_builder": lambda *arguments: builders.append(arguments),
        "tfm.data.sources.tfds.prepare": lambda *_: None,
        "tfm.data.sources.tfds.split_problems": lambda *_: [],
        "tfm.data.images.opening.check_builder": lambda *_: [],
        "tfm.data.sources.tfds.read_records": Recorded,
        "tfm.data.images.opening.RecordImages": Recorded,
        "tfm.data.sources.huggingface.open_dataset": Recorded,
    }
    openers = {PairsConfig: sources.open_pairs, DocumentsConfig: sources.open_documents}
    openers |= {SummariesConfig: sources.open_documents}
    openers |= {LabelledConfig: sources.open_pairs, SentencesConfig: sources.open_documents}
    with contextlib.ExitStack() as stack:
        for name, replacement in replaced.items():
            stack.enter_context(mock.patch(name, replacement))
        opened = openers.get(type(data), open_images)(data, "train")
    return {"builders": builders, "opened": opened.fingerprint}


# Training.


def observe_setup(training: TrainingConfig) -> Observation:
    """Traces the training step of the tiny regression and observes its keys, devices and checkpoints."""
    task = tiny_regression.create(tiny_regression.Config(training=training), "")
    setup = Setup(task, training)
    batch = task.open_data().example()
    placed = setup.partitioner.place_batch(batch)
    with mock.patch("tfm.training.setup.CheckpointStore") as store:
        open_checkpoints(task, training, "")
    return {
        "step": trace(setup.step, setup.state, batch)[0],
        "state": str(setup.state),
        "keys": [jax.random.key_data(key).tolist() for key in (setup.init_key, setup.step_key)],
        "batch": {name: (x.shape, type(x.sharding).__name__) for name, x in placed.items()},
        "retention": store.call_args.kwargs["retention"],
    }


def observe_training(training: TrainingConfig) -> Observation:
    """Trains the tiny regression. Its loss rises and is not finite in the fourth step."""
    plain = tiny_regression.Regression.loss

    def loss(self: Any, variables: Any, batch: Any, context: Context) -> Any:
        output = plain(self, variables, batch, context)
        total, count = output.terms["loss"]
        serial = batch["serial"].max() if context.train else 0
        return output._replace(terms={"loss": (jnp.where(serial == 4, jnp.nan, total + 100 * serial), count)})

    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tfm")
    with (
        tempfile.TemporaryDirectory() as workdir,
        mock.patch.object(tiny_regression.Regression, "loss", loss),
    ):
        logger.addHandler(handler)
        try:
            train(
                tiny_regression.create(tiny_regression.Config(training=training), workdir), training, workdir
            )
        finally:
            logger.removeHandler(handler)
        return {
            "metrics": str(rows_without_times(pathlib.Path(workdir))),  # as a text, in which NaN equals NaN
            "checkpoints": sorted(os.listdir(os.path.join(workdir, "checkpoints"))),
            "files": sorted(os.listdir(workdir)),
            "warnings": warnings,
        }


def observe_order(training: TrainingConfig) -> Observation:
    """Observes the training batches of a translation run with this training section."""
    config = translation.Config(model=TRANSFORMER, data=PAIRS, training=training)
    with tempfile.TemporaryDirectory() as workdir:
        data = tasks.find(config.task).create(config, workdir).open_data()
    return {"train": list_values(itertools.islice(data.train_batches(0), 2))}


def observe_optimizer(optimizer: Any) -> Observation:
    """Traces an update of an optimizer."""
    transformation = make_optimizer(optimizer, lambda step: 0.1)
    params = {"slope": {"kernel": np.zeros((4, 3), np.float32)}, "offset": np.zeros(3, np.float32)}
    state = jax.eval_shape(transformation.init, params)
    return {"update": trace(transformation.update, params, state, params)[0]}


# Decoding.


@functools.cache
def load_tokenizer() -> Any:
    """Returns a tokenizer of the words of the tiny corpus."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer")
        learn_word_pieces([" ".join(tiny.WORDS)] * 9, 310, path)
        return load_word_pieces(path)


def choose_samples(rows: int, count: int) -> Hypotheses:
    """Returns hypotheses [rows, count] of fixed texts."""
    encoded = [[*ids, EOS_ID] for ids in load_tokenizer().encode(SAMPLES)]
    tokens = np.zeros((rows, count, max(map(len, encoded))), np.int32)
    lengths = np.zeros((rows, count), np.int32)
    for row, number in np.ndindex(rows, count):
        ids = encoded[(row + number) % len(encoded)]
        tokens[row, number, : len(ids)] = ids
        lengths[row, number] = len(ids)
    return Hypotheses(tokens, np.zeros((rows, count), np.float32), lengths)


def record_searches(search: Any, place: str, decode: Callable[[], Any]) -> Observation:
    """Observes the searches of batches, which are traced and return fixed hypotheses.

    Args:
      search: the compiled search of a batch.
      place: the module and the name by which the code calls it.
      decode: calls the code.
    """
    calls = []

    def fake_search(*arguments: Any) -> Hypotheses:
        program = ADDRESS.sub("", str(search.trace(*arguments).jaxpr))
        arrays = [x for x in jax.tree.leaves(arguments[2:]) if isinstance(x, (np.ndarray, jax.Array))]
        inputs = [
            (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x).tolist()
            for x in arrays
        ]
        calls.append((str(inputs), program))
        (config,) = (x for x in arguments if isinstance(x, DecodingConfig | GenerationConfig))
        return choose_samples(len(arguments[2]), config.samples or 1)

    # With an unknown memory of the device, no program is compiled to measure its memory.
    with (
        mock.patch(place, fake_search),
        mock.patch("tfm.decoding.batches.free_memory", return_value=None),
    ):
        hypotheses = decode()
    return {"calls": sorted(calls), "hypotheses": hypotheses}


def zero_params(task: Any) -> Any:
    """Returns parameters that are all zero."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))["params"]
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def observe_translations(decoding: DecodingConfig) -> Observation:
    """Observes the searches of translations and their results."""
    config = translation.Config(model=TRANSFORMER, data=PAIRS, decoding=decoding)
    task = translation.Translation(config, load_tokenizer())
    decode = functools.partial(task.hypotheses, zero_params(task), SENTENCES)
    return record_searches(search_batch, "tfm.decoding.translate.search_batch", decode)


def observe_continuations(decoding: GenerationConfig) -> Observation:
    """Observes the searches of continuations and their results."""
    config = language_modeling.Config(model=LM, data=DOCUMENTS, decoding=decoding, stride=8)
    task = language_modeling.LanguageModeling(config, load_tokenizer())
    decode = functools.partial(task.generate, zero_params(task), SENTENCES)
    return record_searches(generate_batch, "tfm.decoding.generate.generate_batch", decode)
