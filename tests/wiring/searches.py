"""An observer of searches: the programs of all batches, their inputs, and what is made of their outputs."""

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.support import tiny
from tests.wiring.case import Observation
from tests.wiring.observers import ADDRESS, list_numbers
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.protocol import EOS_ID, PieceTokenizer
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.search import Hypotheses
from tfm.training.task import Task

SENTENCES = ["red dog runs", "big blue cat sleeps small bird runs red green dog", "cat"]
OUTPUTS = ["small dog runs", "small dog", "big cat sleeps", "dog runs small"]


@functools.cache
def load_tokenizer() -> PieceTokenizer:
    """Returns a tokenizer of the words of the tiny corpus."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer")
        learn_word_pieces([" ".join(tiny.WORDS)] * 9, 310, path)
        return load_word_pieces(path)


def zero_params(task: Task) -> Any:
    """Returns parameters that are all zero."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))["params"]
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def observe_searches(place: str, search: Any, decode: Callable[[], Any]) -> Observation:
    """Observes the searches of batches, which are traced and return the fixed `OUTPUTS`.

    To compile each search would take minutes for all fields. The search is a function of a module, so it is
    replaced there.

    Args:
      place: module and name by which the code calls the search.
      search: the compiled search of a batch.
      decode: calls the code.
    """
    calls = []

    def trace_search(*arguments: Any) -> Hypotheses:
        program = ADDRESS.sub("", str(search.trace(*arguments).jaxpr))
        arrays = [x for x in jax.tree.leaves(arguments[2:]) if isinstance(x, (np.ndarray, jax.Array))]
        calls.append((str(list(map(list_numbers, arrays))), program))
        (config,) = (x for x in arguments if isinstance(x, DecodingConfig | GenerationConfig))
        return make_outputs(len(arguments[2]), config.samples or 1)

    # If the memory of the device is unknown, no program is compiled to measure its memory.
    with (
        mock.patch(place, trace_search),
        mock.patch("tfm.decoding.batches.free_memory", return_value=None),
    ):
        hypotheses = decode()
    return {"calls": sorted(calls), "hypotheses": hypotheses}


def make_outputs(rows: int, count: int) -> Hypotheses:
    """Returns hypotheses [rows, count] of the fixed texts."""
    encoded = [[*ids, EOS_ID] for ids in load_tokenizer().encode(OUTPUTS)]
    tokens = np.zeros((rows, count, max(map(len, encoded))), np.int32)
    lengths = np.zeros((rows, count), np.int32)
    for row, number in np.ndindex(rows, count):
        ids = encoded[(row + number) % len(encoded)]
        tokens[row, number, : len(ids)] = ids
        lengths[row, number] = len(ids)
    return Hypotheses(tokens, np.zeros((rows, count), np.float32), lengths)
