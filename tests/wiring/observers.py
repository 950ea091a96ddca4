"""Observers of config sections that any task can use.

An observer is a function of a section. It returns what the code that reads the section builds, opens or
writes. Programs are traced but not compiled, unless nothing else shows the effect of a field.
"""

import itertools
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.wiring.case import Observation
from tfm import tasks
from tfm.data.source import Source
from tfm.training.task import Batch, Context, Data, Task
from tfm.workdir.warm_start import copy_frozen_models

ADDRESS = re.compile(r"0x[0-9a-f]+")
VOCABULARY = range(40)  # replaces a tokenizer of which only the number of tokens matters
COMPARED_BATCHES = 24  # of training, which is more than an epoch
MAX_SHOWN_CONSTANT = 10  # numbers


def trace(function: Callable, *arguments: Any) -> tuple[str, Any]:
    """Returns (program of a function as text without memory addresses, shapes of its results)."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    constants = [list_numbers(x) for x in program.consts if np.size(x) < MAX_SHOWN_CONSTANT]
    return ADDRESS.sub("", f"{program} {constants}"), shapes


def list_numbers(array: Any) -> Any:
    """Returns the numbers of an array, or of a key of random numbers, which has no array of NumPy."""
    is_key = jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array).tolist()


def list_batches(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    """Returns batches as lists that can be compared."""
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


def observe_loss(task: Task, batch: Batch) -> Observation:
    """Traces the initialization and the loss of a task in training mode."""
    key = jax.random.key(0)
    init, variables = trace(task.init, key)
    loss, _ = trace(task.loss, variables, batch, Context(0, key))
    return {"init": init, "loss": loss}


def open_run(config: Any) -> tuple[Any, Any, Observation]:
    """Opens the data of a new run without caches.

    Returns:
      (task, data, observation of the caches, of the training batches and of what identifies the run).
    """
    for path in pathlib.Path().glob("*cache"):
        shutil.rmtree(path)
    with tempfile.TemporaryDirectory() as workdir:
        task = tasks.find(config.task).create(config, workdir)
    data = task.open_data()
    observation = {
        "caches": list(pathlib.Path().glob("*cache")),
        "train": list_batches(itertools.islice(data.train_batches(0), COMPARED_BATCHES)),
        "assets": task.assets(),
        "identity": data.identity(),
    }
    return task, data, observation


def observe_task(config: Any, write_models: Callable[[str], None] = lambda workdir: None) -> Observation:
    """Traces the losses of a task, and observes a batch and an evaluation with equal parameters.

    Args:
      config: config of the task.
      write_models: writes the frozen models that the task reads into the folder of the run.
    """
    with tempfile.TemporaryDirectory() as workdir:
        write_models(workdir)
        copy_frozen_models(config, workdir)
        task: Task = tasks.find(config.task).create(config, workdir)
    data: Data = task.open_data()
    key = jax.random.key(0)
    init, variables = trace(task.init, key)
    context = Context(0, key, task.constants())
    losses = [trace(update.loss, variables, data.example(), context)[0] for update in task.updates()]
    filled = jax.tree.map(lambda x: np.full(x.shape, 0.1, x.dtype), variables)
    samples = task.evaluate(filled, data).samples
    report = next(iter(task.report(filled, "test")))
    return {
        "init": init,
        "losses": losses,
        "train": list_batches(itertools.islice(data.train_batches(0), 1)),
        "samples": None if samples is None else len(samples.rows),
        "test": (report.examples, report.identity),
    }


def observe_source(source: Source) -> Observation:
    """Observes the rows of a split and the text that identifies them."""
    return {"rows": list(source), "fingerprint": source.fingerprint}
