"""Tiny runs of every task and model of the project, which tests/test_conformance.py holds to the contracts.

A new module in tfm/tasks gets an entry in `TASKS`, a new module in tfm/models one in `MODELS`; each model is
named by at least one task.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tests.support import images, tiny, tiny_lm, tiny_trees
from tests.support.programs import initialize
from tfm import tasks
from tfm.data.images import ImageDataConfig
from tfm.models.rnn_luong import LuongConfig
from tfm.models.rnn_seq2seq import RNNConfig
from tfm.tasks import classification
from tfm.training.config import TrainingConfig

STEPS = 4
RNN_SIZES = {
    "layers": 1,
    "embedding_features": 12,
    "hidden_features": 10,
    "attention_features": 8,
    "output_features": 12,
    "initialization": "glorot",
    "dropout": 0.1,
}
TRAINING = TrainingConfig(
    steps=STEPS,
    warmup_steps=2,
    peak_learning_rate=1e-3,
    log_every=1,
    eval_every=2,
    checkpoint_every=2,
    keep=9,
)


class TaskCase(NamedTuple):
    """A tiny run of a task.

    Attributes:
      make: (folder, model) -> the task's `Config` with this model config, its data in the folder, where it
        writes them first. The training section is replaced by `TRAINING`.
      models: modules of tfm/models that it trains.
      test_examples: how many its split "test" has.
    """

    make: Callable[[pathlib.Path, Any], Any]
    models: tuple[str, ...]
    test_examples: int


class Case(NamedTuple):
    """A task of one model, made.

    Attributes:
      config: of the run.
      task: made in `workdir`, a new run.
      workdir: of the run.
    """

    config: Any
    task: Any
    workdir: pathlib.Path

    def random_params(self) -> Any:
        """Random parameters; those that are 0 by initialization, such as biases, are random as well."""
        rng = np.random.default_rng(0)
        return jax.tree.map(
            lambda x: x + 0.1 * rng.standard_normal(x.shape, np.float32), initialize(self.task)
        )


def _translation(folder, model):
    tiny.write_corpus(folder)
    return dataclasses.replace(tiny.make_config(folder), model=model)


def _classification(folder, model):
    images.write_arrays(folder / "images.npz", {"train": 13, "validation": 7, "test": 5})
    data = ImageDataConfig(
        kind="arrays", file=str(folder / "images.npz"), batch_size=4, max_shift=1, flip=True
    )
    return classification.Config(model=model, data=data, label_smoothing=0.1)


def _language_modeling(folder, model):
    tiny_lm.write_documents(folder)
    return dataclasses.replace(tiny_lm.make_lm_config(folder), model=model)


def _parsing(folder, model):
    tiny_trees.write_treebank(folder)
    return dataclasses.replace(tiny_trees.make_parsing_config(folder), model=model)


TASKS = {
    "translation": TaskCase(
        _translation, models=("transformer", "rnn_seq2seq", "rnn_luong"), test_examples=20
    ),
    "classification": TaskCase(_classification, models=("vit",), test_examples=5),
    "language_modeling": TaskCase(_language_modeling, models=("decoder_lm",), test_examples=8),
    "parsing": TaskCase(_parsing, models=("transformer",), test_examples=5),
}
MODELS = {
    "transformer": tiny.MODEL,
    "rnn_seq2seq": RNNConfig(**RNN_SIZES),
    "rnn_luong": LuongConfig(**RNN_SIZES),
    "vit": images.MODEL,
    "decoder_lm": tiny_lm.MODEL,
}
CASES = [(task, model) for task, case in TASKS.items() for model in case.models]


def make_case(task: str, model: str, folder: pathlib.Path) -> Case:
    """The `Case` of a task and a model by their names, in a folder that is made."""
    folder.mkdir(parents=True)
    config = TASKS[task].make(folder, MODELS[model])
    config = dataclasses.replace(config, training=TRAINING)
    workdir = folder / "run"
    workdir.mkdir()
    return Case(config, tasks.find(task).create(config, str(workdir)), workdir)
