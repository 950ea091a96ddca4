"""Observers of the config sections of memory networks."""

import dataclasses
import pathlib

from tests.support import babi
from tests.wiring.case import Case, Observation
from tests.wiring.observers import observe_task
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig

MODEL = MemoryNetworkConfig(features=6, hops=2, memories=4)
STORIES = StoriesConfig(sentences=6, batch_size=4, evaluated=3)
BABI = StoriesConfig(kind="babi", directory="babi", tasks="1,8", last_sentences=2, batch_size=4)
CONFIG = question_answering.Config(model=MODEL, data=STORIES, validation_samples=1)


def observe_model(model: MemoryNetworkConfig) -> Observation:
    """Observes the task with this model."""
    return observe_task(dataclasses.replace(CONFIG, model=model))


def observe_stories(data: StoriesConfig) -> Observation:
    """Observes the task with this data section."""
    return observe_task(dataclasses.replace(CONFIG, data=data))


def write_data() -> None:
    """Writes the files of two tasks of bAbI."""
    pathlib.Path("babi").mkdir()
    babi.write_babi(pathlib.Path("babi"))


CASES = [
    Case(MODEL, observe_model),
    Case(STORIES, observe_stories),
    Case(BABI, observe_stories),
    Case(CONFIG, observe_task),
]
VALUES = {StoriesConfig: {"directory": "elsewhere", "tasks": "8"}}
