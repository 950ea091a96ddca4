"""Observers of the config of parsing."""

import dataclasses
import pathlib

from tests.support import tiny_trees
from tests.tasks.translation.wiring import BATCH, FIELDS, PAIRS, KnowsReferences, observe_validation
from tests.wiring.case import Case, Observation
from tests.wiring.observers import VOCABULARY, observe_loss, open_run
from tfm.systems.parsing import task as parsing
from tfm.systems.parsing.treebank import TREEBANK

TREES = dataclasses.replace(
    PAIRS,
    kind=TREEBANK,
    source_language="words",
    target_language="trees",
    vocabulary_size=400,
    batch_tokens=256,
    max_length=128,
)


class KnownParsing(KnowsReferences, parsing.Parsing):
    """Parsing whose model is replaced."""


def observe_run(config: parsing.Config) -> Observation:
    """Observes the data of a new run, and what its evaluations read."""
    task, data, observation = open_run(config)
    return observation | observe_validation(KnownParsing(config, task.tokenizer), data)


def observe_parsing(config: parsing.Config) -> Observation:
    """Traces the initialization and the loss."""
    return observe_loss(parsing.Parsing(config, VOCABULARY), BATCH)


def write_data() -> None:
    """Writes a treebank."""
    tiny_trees.write_treebank(pathlib.Path("corpus"))


CONFIG = parsing.Config(data=TREES, **FIELDS)
CASES = [Case(CONFIG, observe_parsing), Case(CONFIG, observe_run)]
VALUES: dict[type, dict] = {}
