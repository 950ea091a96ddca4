"""Tests that runs which cannot fit into memory end with an error before they allocate the memory."""

import dataclasses
import re
import shutil

import jax
import jax.numpy as jnp
import pytest

from tests.support.tiny import MODEL, make_config
from tfm import tasks
from tfm.config import save, walk_fields
from tfm.data.config import VOCABULARY_FILE
from tfm.devices.memory import Memory, check_batches_fit, check_memory, check_parameters_fit, format_bytes
from tfm.errors import UserError
from tfm.models import Transformer
from tfm.tasks import translation
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import SGD, Adam, AdamW
from tfm.training.setup import Setup, check_plan
from tfm.training.task import Task, Update
from tfm.workdir import runs

HALF_GIB = 2**29
TABLE, KERNEL = 90 * 32, 32 * 40
PARAMS = {
    "table": jax.ShapeDtypeStruct((90, 32), jnp.float32),
    "layers_0": {"kernel": jax.ShapeDtypeStruct((32, 40), jnp.float32)},
    "layers_1": {"kernel": jax.ShapeDtypeStruct((32, 40), jnp.float32)},
}
ELEMENTS = TABLE + 2 * KERNEL
COUNTERS = 40  # maximum number of bytes of the step and of Optax's counters


class Tables(Task):
    """A task whose parameters have the shapes of PARAMS."""

    d_model = 32

    def __init__(self, training):
        self.config = TrainingOnly(training)

    def init(self, rng):
        return {"params": jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), PARAMS)}

    def updates(self):
        return (Update("loss", lambda variables, batch, context: None),)


@dataclasses.dataclass(frozen=True)
class TrainingOnly:
    training: TrainingConfig


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"optimizer": SGD()}, ELEMENTS * (4 + 4)),
        ({"optimizer": SGD(momentum=0.9)}, ELEMENTS * (4 + 4 + 4)),
        ({}, ELEMENTS * (4 + 4 + 8)),
        ({"ema_decay": 0.9}, ELEMENTS * (4 + 4 + 8 + 4)),
        ({"optimizer": Adam(mean_dtype="bfloat16"), "ema_decay": 0.9}, ELEMENTS * (4 + 4 + 6 + 4)),
        ({"optimizer": AdamW(mean_dtype="bfloat16")}, ELEMENTS * (4 + 4 + 6)),
        ({"freeze": ("table",)}, ELEMENTS * 4 + 2 * KERNEL * (4 + 8)),
        ({"parallel": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}, ELEMENTS * 4),
    ],
)
def test_plan_counts_parameters_gradients_optimizer_state_and_average(monkeypatch, fields, expected):
    config = TrainingConfig(**{"peak_learning_rate": 0.1} | fields)
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: expected + COUNTERS)
    check_plan(Tables(config), config)
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: expected - 1)
    with pytest.raises(UserError, match=rf"Training {ELEMENTS:,} parameters .*optimizer state"):
        check_plan(Tables(config), config)


@pytest.mark.long
def test_setup_checks_the_size_of_the_state_before_the_state_exists(monkeypatch, corpus):
    config = make_config(corpus)
    task = translation.plan(config)
    state = Setup(task, config.training).state
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((state, state.params)))
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: size)
    Setup(task, config.training)
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: size - 1)
    with pytest.raises(UserError, match=r"Training [\d,]+ parameters .*optimizer state"):
        Setup(task, config.training)


def test_error_states_the_number_of_copies_and_the_largest_parameter(monkeypatch):
    size = 4 * ELEMENTS
    monkeypatch.setattr("tfm.devices.memory.available_memory", lambda: 3 * size)
    check_parameters_fit(PARAMS, 3)
    with pytest.raises(UserError, match=r"parameters 4 times .* table, an array of 90 x 32"):
        check_parameters_fit(PARAMS, 4)
    check_parameters_fit(PARAMS, 4, available=4 * size)  # memory other than that of the device
    check_parameters_fit(PARAMS, 9, sharers=3)
    with pytest.raises(UserError, match="parameters 9 times"):
        check_parameters_fit(PARAMS, 9, sharers=2)
    deep = {f"layers_{index}": PARAMS["layers_0"] for index in range(3)} | {"table": PARAMS["table"]}
    with pytest.raises(UserError, match=r"layers_\*/kernel, 3 arrays of 32 x 40"):
        check_parameters_fit(deep, 9)


WIDE = {"too wide": {"d_model": 65_536, "heads": 1}}
WIDE["too many positions"] = {"positions": "learned", "max_positions": 1 << 20, "d_model": 512}
DEEP = {"too deep": {"encoder_layers": 1000, "d_model": 4096}}
DEEP["too deep, but narrow"] = {"decoder_layers": 1000, "d_model": 2, "d_ff": 2, "heads": 1}


@pytest.fixture(scope="module")
def vocabulary(corpus, tmp_path_factory):
    """Returns the vocabulary file of a run."""
    folder = tmp_path_factory.mktemp("vocabulary")
    translation.create(make_config(corpus), str(folder))
    return folder / VOCABULARY_FILE


@pytest.mark.parametrize("name", [*WIDE, *DEEP])
def test_huge_model_is_rejected_before_training_and_loading(name, vocabulary, monkeypatch, corpus, tmp_path):
    def fail(*_, **__):
        raise AssertionError("the model was traced")

    if name in DEEP:
        monkeypatch.setattr(Transformer, "init", fail)
    monkeypatch.setattr("tfm.devices.memory.host_memory", lambda: HALF_GIB)
    fields = (WIDE | DEEP)[name]
    config = dataclasses.replace(make_config(corpus), model=dataclasses.replace(MODEL, **fields))
    advice = next(iter(fields)) if name in DEEP else "layers_|table"
    message = rf"needs about [\d.,]+ GiB and there are 0.50 GiB: .*({advice})"
    with pytest.raises(UserError, match=message):
        translation.create(config, str(tmp_path / "no_vocabulary_is_made"))
    (tmp_path / "run").mkdir()
    shutil.copy(vocabulary, tmp_path / "run")
    save(config, runs.config_path(str(tmp_path / "run")))
    with pytest.raises(UserError, match=message):
        runs.load(str(tmp_path / "run"))


def test_error_for_a_huge_vocabulary_names_the_embedding_table(monkeypatch, corpus, tmp_path):
    monkeypatch.setattr("tfm.devices.memory.host_memory", lambda: HALF_GIB)
    config = make_config(corpus)
    data = dataclasses.replace(config.data, vocabulary_size=2_000_000)
    with pytest.raises(UserError, match=r"embedding/table, an array of 2,000,000 x 32"):
        translation.create(dataclasses.replace(config, data=data), str(tmp_path))


@pytest.mark.parametrize("name", ["translation", "language_modeling", "image_classification", "parsing"])
def test_fields_in_the_advice_exist_in_every_task(name):
    with pytest.raises(UserError, match=r"gradient_accumulation_steps \(now 3\)") as error:
        check_memory(Memory(state=2, step=0, available=1), 3)
    fields = {leaf.path for leaf in walk_fields(tasks.find(name).Config())}
    assert set(re.findall(r"(?:training|data)\.\w+", str(error.value))) <= fields


def test_huge_batches_are_rejected():
    with pytest.raises(UserError, match=r"1,000,000,000,000 tokens .*data.batch_tokens"):
        check_batches_fit(10**12)
    check_batches_fit(25_000)


@pytest.mark.parametrize(
    ("size", "text"), [(2**20, "1.00 MiB"), (3 * 2**29, "1.50 GiB"), (2**200, f"{2**170:,} GiB")]
)
def test_sizes_of_any_magnitude_are_formatted(size, text):
    assert format_bytes(size) == text
