"""Observers of config sections, which record what the code that reads a section builds, opens or writes.

An observer is a function of a section. It returns {part: value} with values that can be compared. No value
contains the section itself. Programs are traced but not compiled. They run only if nothing else shows the
effect of a field. Folders of data are relative to the current folder, which `write_data` fills.
"""

import contextlib
import dataclasses
import functools
import gzip
import itertools
import logging
import os
import pathlib
import re
import shutil
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from tests.support import images, tiny, tiny_regression, tiny_trees
from tests.support.programs import initialize
from tfm import models, tasks
from tfm.config import allow_modules, to_config_dict
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.data.images import open_images
from tfm.data.sources import opening as sources
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import Continuation, generate_batch
from tfm.decoding.parameters import search_parameters
from tfm.decoding.translate import search_batch
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.models.rnn_luong import LuongConfig
from tfm.models.rnn_seq2seq import RNNConfig, RNNSeq2Seq
from tfm.models.vit import VisionTransformer, ViTConfig
from tfm.search import Hypotheses
from tfm.tasks import classification, language_modeling, parsing, translation
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer
from tfm.training.run_log import read_metrics
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.task import Context
from tfm.workdir.runs import config_class, parse_config
from tfm.workdir.train import train

Observation = dict[str, Any]
ADDRESS = re.compile(r"0x[0-9a-f]+")
VOCABULARY = range(40)  # replaces a tokenizer of which only the number of tokens matters
SIZES = {"train": 40, "validation": 9, "test": 5, "more": 30, "check": 7, "exam": 6}
SENTENCES = ["red dog runs", "big blue cat sleeps small bird runs red green dog", "cat"]
SAMPLES = ["small dog runs", "small dog", "big cat sleeps", "dog runs small"]
PARTS = ("attention", "masked_self_attention", "embedding", "feed_forward", "norm", "positions", "residual")
BATCHES = 24  # number of compared training batches, which is more than an epoch

SHORT = {
    "data": PairsConfig(max_length=8),
    "decoding": DecodingConfig(max_input=8, max_extra_tokens=4),
}
TRANSFORMER = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=8, d_ff=12, heads=2)
LM = DecoderLMConfig(layers=1, d_model=8, d_ff=12, heads=2, max_positions=32)
PAIRS = {
    "kind": "text",
    "directory": "corpus",
    "vocabulary_size": 330,
    "max_length": 32,
    "batch_tokens": 64,
    "cache_dir": "cache",
}
DOCUMENTS = {"documents": "line", "directory": "corpus", "row_length": 16, "batch_tokens": 64}
DOCUMENTS |= {"train": "train.en", "validation": "validation.en", "test": "test.en", "cache_dir": "cache"}

PICTURES = {"kind": "arrays", "file": "images.npz", "batch_size": 8}


# Custom classes with other names.


class OtherTransformer(Transformer):
    """Differs from its base class in the scale of the features."""

    def features(self, *arguments: Any, **options: Any) -> Any:
        x, table = super().features(*arguments, **options)
        return 2 * x, table


class OtherRNN(RNNSeq2Seq):
    """Differs from its base class in the scale of the features."""

    def features(self, *arguments: Any, **options: Any) -> Any:
        x, table = super().features(*arguments, **options)
        return 2 * x, table


class OtherLM(DecoderLM):
    """Differs from its base class in the scale of the features."""

    def features(self, *arguments: Any, **options: Any) -> Any:
        x, table = super().features(*arguments, **options)
        return 2 * x, table


class OtherViT(VisionTransformer):
    """Differs from its base class in the scale of the features."""

    def features(self, *arguments: Any, **options: Any) -> Any:
        return 2 * super().features(*arguments, **options)


other_transformer = types.SimpleNamespace(Config=TransformerConfig, Model=OtherTransformer)
other_rnn = types.SimpleNamespace(Config=RNNConfig, Model=OtherRNN)
other_luong = types.SimpleNamespace(Config=LuongConfig, Model=OtherRNN)
other_lm = types.SimpleNamespace(Config=DecoderLMConfig, Model=OtherLM)
other_vit = types.SimpleNamespace(Config=ViTConfig, Model=OtherViT)
OTHER_MODELS = {
    TransformerConfig: "other_transformer",
    RNNConfig: "other_rnn",
    LuongConfig: "other_luong",
    DecoderLMConfig: "other_lm",
    ViTConfig: "other_vit",
}


class Recorded(list):
    """A source that records the arguments with which it was opened."""

    def __init__(self, *arguments: Any):
        super().__init__([("text",)])
        self.arguments = arguments
        self.fingerprint = repr(arguments)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def open_reversed(config: PairsConfig, split: str) -> Any:
    """Opens the pairs of text files with their words in reverse order."""
    pairs = sources.open_pairs(dataclasses.replace(config, kind="text"), split)
    source = Recorded(split)
    source[:] = [(" ".join(reversed(text.split())), other) for text, other in pairs[:]]
    return source


allow_modules([__name__])


# Models and losses.


def trace(function: Callable, *arguments: Any) -> tuple[str, Any]:
    """Returns (program of a function as text without memory addresses, shapes of its results)."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return ADDRESS.sub("", str(program)), shapes


def make_batch(config: Any) -> dict[str, Any]:
    """Returns a batch of a task with arbitrary values."""
    if isinstance(config, classification.Config):
        size = config.model.image_size
        shape = (2, size, size, config.model.channels)
        return {"images": np.zeros(shape, np.float32), "labels": np.zeros(2, int), "weights": np.ones(2)}
    if isinstance(config, language_modeling.Config):
        names = ["inputs", "positions", "segments", "targets", "weights"]
    else:
        names = [f"{side}{kind}" for side in ("input", "target") for kind in ("s", "_positions", "_segments")]
    return {name: np.ones((2, 8), np.int32) for name in names}


def observe_loss(config: Any) -> Observation:
    """Traces the initialization and the loss of a task in training mode."""
    if isinstance(config, classification.Config):
        names = [str(number) for number in range(config.model.classes)]
        task: Any = classification.Classification(config, names, "")
    else:
        kinds = {
            translation.Config: translation.Translation,
            parsing.Config: parsing.Parsing,
            language_modeling.Config: language_modeling.LanguageModeling,
        }
        task = kinds[type(config)](config, VOCABULARY)
    key = jax.random.key(0)
    init, variables = trace(task.init, key)
    batch = make_batch(config)
    found = {"init": init, "loss": trace(task.loss, variables, batch, Context(0, key))[0]}
    if isinstance(config, language_modeling.Config):
        found["scores"] = trace(task.log_probabilities, (variables["params"],), batch)[0]
    return found


def observe_model(model: Any) -> Observation:
    """Observes the loss of the task to which a model belongs."""
    if isinstance(model, ViTConfig):
        return observe_loss(classification.Config(model=model))
    if isinstance(model, DecoderLMConfig):
        data = DocumentsConfig(row_length=8)
        return observe_loss(language_modeling.Config(model=model, data=data, stride=8))
    return observe_loss(translation.Config(model=model, **SHORT))


def observe_parts(model: Any) -> Observation:
    """Lists the attributes of the parts of a Transformer, except the values of methods."""
    options = {} if isinstance(model, ViTConfig) else {"vocabulary_size": len(VOCABULARY)}
    module = models.find(model.name).Model(model, **options)
    parts = {
        name: getattr(module, f"make_{name}")()
        for name in (
            "attention",
            "masked_self_attention",
            "embedding",
            "feed_forward",
            "norm",
            "positions",
            "residual",
        )
    }
    parts["stack"] = module.make_stack(lambda index: module.make_attention(), 1)
    return {name: list_attributes(part) for name, part in parts.items()}


def list_attributes(part: Any) -> list[str]:
    """Returns the attributes of a module with their values, except that methods have no values."""
    if not dataclasses.is_dataclass(part):
        return [ADDRESS.sub("", repr(part))]
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    methods = {name for name, value in values.items() if isinstance(value, types.MethodType)}
    return [name if name in methods else f"{name} {ADDRESS.sub('', repr(values[name]))}" for name in values]


def observe_task(config: Any) -> Observation:
    """Returns the class that is selected for the mapping of a config."""
    return {"class": config_class(to_config_dict(config))}


def observe_parsed_optimizer(optimizer: Any) -> Observation:
    """Returns the class that is selected for the name of an optimizer."""
    training = {"optimizer": {"name": optimizer.name}}
    return {"class": type(parse_config({"task": "translation", "training": training}).training.optimizer)}


# Data.


def write_data() -> None:
    """Writes files of pairs, documents, trees and images into the current folder."""
    rng = np.random.default_rng(0)
    for folder in map(pathlib.Path, ("corpus", "elsewhere")):
        folder.mkdir()
        for split, size in SIZES.items():
            lines = [rng.integers(0, len(tiny.WORDS), rng.integers(2, 9)) for _ in range(size)]
            sides = [[" ".join(words[i] for i in line) for line in lines] for words in LANGUAGES.values()]
            for language, side in zip(LANGUAGES, sides, strict=True):
                (folder / f"{split}.{language}").write_text("\n".join(side))
            mixed = [f"{a},{a}\t{b},{b}" for a, b in zip(*sides[:2], strict=True)]
            rows = ["\t".join(LANGUAGES), *map("\t".join, zip(*sides, strict=True))]
            (folder / f"{split}.tsv").write_text("\n".join(rows))
            (folder / f"{split}.mixed").write_text("\n".join(mixed))
        with gzip.open(folder / "packed.tsv.gz", "wt") as file:
            file.write((folder / "train.tsv").read_text())
    learn_word_pieces(tiny.WORDS, 280, "own.model")
    tiny_trees.write_treebank(pathlib.Path("corpus"))
    images.write_arrays("images.npz", {split: 8 * size // 5 for split, size in SIZES.items()})
    images.write_arrays("others.npz", {split: 6 * size // 5 for split, size in SIZES.items()})


LANGUAGES = {
    "en": tiny.WORDS,
    "de": tiny.TRANSLATED,
    "fr": tuple(word[::-1] for word in tiny.WORDS),
}


def list_values(batches: Any) -> list[dict[str, Any]]:
    """Returns batches as lists that can be compared."""
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


def open_run(config: Any) -> tuple[Any, Any]:
    """Creates the task of a new run and opens its data."""
    with tempfile.TemporaryDirectory() as workdir:
        task = tasks.find(config.task).create(config, workdir)
    return task, task.open_data()


def observe_run(config: Any) -> Observation:
    """Opens the data of a new run and observes what training, evaluation and reports read."""
    task, data = open_run(config)
    return {
        "train": list_values(itertools.islice(data.train_batches(0), BATCHES)),
        "assets": task.assets(),
        "identity": data.identity(),
        "example": jax.tree.map(np.shape, data.example()),
        "description": data.describe(1000),
    } | EVALUATIONS[type(task)](task, data)


def observe_evaluated_pairs(task: Any, data: Any) -> Observation:
    """Observes the evaluation of a translation model that is replaced by the references."""
    answers = {source: task.write_target(source, target) for source, target in data.validation_pairs}
    task.translate = lambda params, texts, *_: [answers.get(text, text) for text in texts]
    task.score = lambda params, texts, *_: [np.zeros(3)]
    batches = list_values(data.validation_batches)
    data.validation_batches = []
    with mock.patch("tfm.tasks.translation.observe.observe_pair", return_value=None):
        samples = task.evaluate({"params": None}, data).samples.rows
    found = {"validation": batches, "pairs": data.validation_pairs, "samples": samples}
    if not isinstance(task, parsing.Parsing):
        found["test"] = next(iter(task.report({"params": None}, "test"))).examples
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
    validation = [*windows]
    report = next(iter(task.report({"params": None}, "test")))
    return {
        "validation": validation,
        "texts": data.validation.texts,
        "samples": samples,
        "test": [report.examples, windows[len(validation) :]],
    }


def observe_evaluated_images(task: Any, data: Any) -> Observation:
    """Observes the images that the evaluation of a classifier reads."""
    shapes: list[Any] = []

    def classify(variables: Any, batch: np.ndarray) -> np.ndarray:
        shapes.append(batch.shape)
        return np.zeros((len(batch), len(task.label_names)))

    task.classify = classify
    report = next(iter(task.report({"params": None}, "test")))
    return {"validation": list_values(data.validation_batches()), "test": [report.examples, shapes]}


EVALUATIONS: dict[type, Callable[[Any, Any], Observation]] = {
    translation.Translation: observe_evaluated_pairs,
    parsing.Parsing: observe_evaluated_pairs,
    language_modeling.LanguageModeling: observe_evaluated_documents,
    classification.Classification: observe_evaluated_images,
}


def make_run(section: Any) -> Any:
    """Returns the config of a tiny run with this section of data or of training."""
    if isinstance(section, DocumentsConfig):
        return language_modeling.Config(model=LM, data=section, stride=8, validation_samples=2)
    if isinstance(section, ImagesConfig):
        return classification.Config(model=images.MODEL, data=section)
    return translation.Config(model=TRANSFORMER, data=section, validation_sentences=3)


def observe_data(data: Any) -> Observation:
    """Observes a run with this data section."""
    return observe_run(make_run(data))


def observe_order(training: TrainingConfig) -> Observation:
    """Observes the training batches of the tasks with this training section."""
    runs = map(make_run, (PairsConfig(**PAIRS), DocumentsConfig(**DOCUMENTS), ImagesConfig(**PICTURES)))
    opened = (open_run(dataclasses.replace(run, training=training))[1] for run in runs)
    return {
        name: list_values(itertools.islice(data.train_batches(0), 2))
        for name, data in zip(("translation", "language_modeling", "classification"), opened, strict=True)
    }


def observe_cache(data: Any) -> Observation:
    """Lists the files that opening the data of a run leaves in two cache folders."""
    folders = [pathlib.Path(name) for name in ("first_cache", "second_cache")]
    open_run(make_run(data))
    files = {str(path.parent) for folder in folders for path in folder.rglob("*") if path.is_file()}
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return {"tokens": sorted(files)}


def observe_library(data: Any) -> Observation:
    """Observes the arguments with which a data set of TFDS or Hugging Face is found, prepared and opened."""
    called: dict[str, Any] = {}

    def find(*arguments: Any) -> None:
        called["found"] = arguments

    def prepare(builder: None, *arguments: Any) -> None:
        called["prepared"] = arguments

    replaced = {
        "tfm.data.sources.tfds.find_builder": find,
        "tfm.data.sources.tfds.prepare": prepare,
        "tfm.data.sources.tfds.split_problems": lambda *_: [],
        "tfm.data.images.check_builder": lambda *_: [],
        "tfm.data.sources.tfds.read_records": Recorded,
        "tfm.data.images.RecordImages": Recorded,
        "tfm.data.sources.huggingface.open_dataset": Recorded,
    }
    openers = {
        PairsConfig: sources.open_pairs,
        DocumentsConfig: sources.open_documents,
        ImagesConfig: open_images,
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in replaced.items():
            stack.enter_context(mock.patch(name, replacement))
        return {"opened": openers[type(data)](data, "train").fingerprint} | called


def observe_images(data: ImagesConfig) -> Observation:
    """Returns the first images of the training split."""
    found, labels = open_images(data, "train").take(np.arange(2))
    return {"images": found.tolist(), "labels": labels.tolist()}


# Training.


@contextlib.contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Collects the warnings that are logged."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfm").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("tfm").removeHandler(handler)


def observe_training(training: TrainingConfig) -> Observation:
    """Trains the tiny regression and observes its metrics, checkpoints, files, warnings and error."""
    config = tiny_regression.Config(training=training)
    error = ""
    with tempfile.TemporaryDirectory() as workdir, record_warnings() as warnings:
        try:
            train(tiny_regression.create(config, workdir), training, workdir)
        except UserError as raised:
            error = str(raised).replace(workdir, "")
        rows = read_metrics(workdir)
        checkpoints = os.path.join(workdir, "checkpoints")
        return {
            "losses": {row["step"]: row["train/loss"] for row in rows if "train/loss" in row},
            "rates": [row["train/learning_rate"] for row in rows if "train/learning_rate" in row],
            "scores": {row["step"]: row["validation/score"] for row in rows if "validation/score" in row},
            "checkpoints": sorted(name for name in os.listdir(checkpoints) if name.isdigit()),
            "files": sorted(os.listdir(workdir)),
            "warnings": warnings,
            "error": error,
        }


def observe_bad_training(training: TrainingConfig) -> Observation:
    """Trains the tiny regression with a loss that rises and is not finite in the fourth step."""
    plain = tiny_regression.Regression.loss

    def loss(self: Any, variables: Any, batch: Any, context: Context) -> Any:
        output = plain(self, variables, batch, context)
        total, count = output.terms["loss"]
        serial = batch["serial"].max() if context.train else 0
        return output._replace(terms={"loss": (jnp.where(serial == 4, jnp.nan, total + 100 * serial), count)})

    with mock.patch.object(tiny_regression.Regression, "loss", loss):
        return observe_training(training)


def observe_setup(training: TrainingConfig) -> Observation:
    """Traces the training step of the tiny regression and observes its random keys and its devices."""
    task = tiny_regression.create(tiny_regression.Config(training=training), "")
    try:
        setup = Setup(task, training)
    except UserError as error:
        return {"error": str(error)}
    batch = task.open_data().example()
    step, _ = trace(setup.step, setup.state, batch)
    placed = setup.partitioner.place_batch(batch)
    return {
        "step": step,
        "state": str(setup.state),
        "keys": [jax.random.key_data(key).tolist() for key in (setup.init_key, setup.step_key)],
        "batch": {name: (x.shape, type(x.sharding).__name__) for name, x in placed.items()},
        "error": "",
    }


def observe_optimizer(optimizer: Any) -> Observation:
    """Traces an update of an optimizer."""
    transformation = make_optimizer(optimizer, lambda step: 0.1)
    params = {"slope": np.zeros((4, 3), np.float32), "offset": np.zeros(3, np.float32)}
    state = jax.eval_shape(transformation.init, params)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return {"update": trace(transformation.update, params, state, params)[0], "bytes": size}


def observe_store(training: TrainingConfig) -> Observation:
    """Observes the arguments of the checkpoint store."""
    task = tiny_regression.create(tiny_regression.Config(training=training), "")
    with mock.patch("tfm.training.setup.CheckpointStore") as store:
        open_checkpoints(task, training, "")
    newest, best, hours = store.call_args.kwargs["retention"]
    return {"keep": newest, "keep_best": best, "keep_hours": hours}


# Decoding.


@functools.cache
def load_tokenizer() -> WordPieces:
    """Returns a tokenizer of the words of the tiny corpus."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer")
        learn_word_pieces([" ".join(tiny.WORDS)] * 9, 310, path)
        return load_word_pieces(path)


def fake_params(task: Any) -> Any:
    """Returns parameters that are all zero."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))["params"]
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


class FakeSearch:
    """A stand-in for the search of a batch, which traces its program and returns fixed hypotheses.

    The program is traced with parameters in float32, so that only the dtype of the model matters.
    """

    def __init__(self, params: Any):
        self._members = (search_parameters(params),)
        self._calls: list[dict[str, Any]] = []

    def record(self, program: Callable, members: Any, inputs: Any, keys: Any, count: int) -> Hypotheses:
        """Records a call and returns its hypotheses."""
        text, _ = trace(program, self._members, inputs, keys)
        call = {
            "programs": text,
            "inputs": np.asarray(inputs).tolist(),
            "keys": None if keys is None else jax.random.key_data(keys).tolist(),
            "dtypes": [str(x.dtype) for x in jax.tree.leaves(members)],
        }
        self._calls.append(call)
        return choose_samples(len(inputs), count)

    def observe(self, hypotheses: Any) -> Observation:
        """Returns the recorded calls of all threads and the resulting hypotheses."""
        calls = sorted(self._calls, key=lambda call: str(call["inputs"]))
        parts = ("programs", "inputs", "keys", "dtypes")
        return {part: [call[part] for call in calls] for part in parts} | {"hypotheses": hypotheses}


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


def unknown_memory() -> Any:
    """Hides the memory of the device, so that no program is compiled to measure its memory."""
    return mock.patch("tfm.decoding.batches.free_memory", return_value=None)


def observe_translations(decoding: DecodingConfig) -> Observation:
    """Observes the searches of translations and their results."""
    task = translation.Translation(make_translation(decoding=decoding), load_tokenizer())
    params = fake_params(task)
    fake = FakeSearch(params)

    def search(model, members, inputs, config, n_best, prefix, keys):
        def program(members, inputs, keys):
            return search_batch(model, members, inputs, config, n_best, prefix, keys)

        return fake.record(program, members, inputs, keys, config.samples or n_best)

    with mock.patch("tfm.decoding.translate.search_batch", search), unknown_memory():
        return fake.observe(task.hypotheses(params, SENTENCES))


def observe_alignments(decoding: DecodingConfig) -> Observation:
    """Observes the attention weights that alignments use."""
    task = translation.Translation(make_translation(decoding=decoding), load_tokenizer())
    attention: list[Any] = []
    with mock.patch(
        "tfm.tasks.translation.pipeline.align_words", lambda weights, *_: attention.append(weights.tolist())
    ):
        task.align(initialize(task), SENTENCES[:1], SAMPLES[:1])
    return {"attention": attention}


def observe_continuations(decoding: GenerationConfig) -> Observation:
    """Observes the searches of continuations and their results."""
    config = language_modeling.Config(
        model=LM, data=DocumentsConfig(**DOCUMENTS), decoding=decoding, stride=8
    )
    task = language_modeling.LanguageModeling(config, load_tokenizer())
    params = fake_params(task)
    fake = FakeSearch(params)

    def search(model, members, context, last, config, keys, is_cut):
        def program(members, context, keys):
            return generate_batch(model, members, context, last, config, keys, is_cut)

        return fake.record(program, members, context, keys, config.samples or 1)

    with mock.patch("tfm.decoding.generate.generate_batch", search), unknown_memory():
        return fake.observe(task.generate(params, SENTENCES))


def make_translation(**fields: Any) -> Any:
    """Returns the config of a tiny translation run."""
    return dataclasses.replace(make_run(PairsConfig(**PAIRS)), **fields)
