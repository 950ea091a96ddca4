"""Estimates of memory against what JAX counts, and errors before anything of that size is made."""

import dataclasses
import fnmatch
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.tiny import MODEL, make_config
from tfm import memory_estimate
from tfm.config import save
from tfm.data.config import VOCABULARY_FILE
from tfm.errors import UserError
from tfm.memory import check_batches_fit, check_training_fits, check_weights_fit, format_bytes
from tfm.models import TransformerConfig
from tfm.models.transformer import Transformer
from tfm.tasks import translation
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import SGD, Adam
from tfm.training.patterns import list_paths
from tfm.training.setup import Setup
from tfm.workdir import bundle, runs

SMALL = TransformerConfig(encoder_layers=2, decoder_layers=3, d_model=32, d_ff=48, heads=4, max_positions=700)


def estimate(config=SMALL):
    return Transformer(config, vocabulary_size=90).memory_estimate


@functools.cache
def shapes(config):
    token = jnp.ones((1, 1), jnp.int32)
    model = Transformer(config, vocabulary_size=90)
    return model, jax.eval_shape(lambda key: model.init(key, token, token, train=False), jax.random.key(0))[
        "params"
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention_bias": True, "key_features": 5, "value_features": 3},
        {"norm_order": "pre", "positions": "learned"},
        {"norm_order": "norm_then_add", "value_features": 9},
        {"positions": "relative_keys", "key_features": 5},
        {"positions": "relative_bias", "tied_embeddings": "two"},
        {"gated": True, "tied_embeddings": "none"},
        {"key_value_heads": 2, "attention_bias": True, "value_features": 3},
        {"norm": "rms_norm", "norm_order": "pre"},
    ],
)
def test_the_count_of_parameters_is_exact(fields):
    config = dataclasses.replace(SMALL, **fields)
    assert estimate(config).count_parameters() == sum(x.size for x in jax.tree.leaves(shapes(config)[1]))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ema_decay": 0.9, "optimizer": Adam(mean_dtype="bfloat16")},
        {"optimizer": SGD(momentum=0.9), "freeze": ("encoder/*",)},
        {"freeze": ("*/kernel",)},
    ],
)
def test_a_state_that_does_not_fit_is_an_error_before_it_is_made(fields, monkeypatch):
    """The size is counted from the arrays themselves: state, and gradients of what is trained."""
    config = translation.Config(model=SMALL, training=TrainingConfig(**fields))
    task = translation.plan(config)
    state = Setup(task, config.training).state
    gradients = {
        path: x
        for path, x in zip(list_paths(state.params), jax.tree.leaves(state.params), strict=True)
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in config.training.freeze)
    }
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((state, gradients)))
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: size)
    Setup(task, config.training)
    monkeypatch.setattr("tfm.training.setup.available_memory", lambda: size - 1)
    with pytest.raises(UserError, match=r"Training [\d,]+ parameters .*optimizer state"):
        Setup(task, config.training)


HUGE = {
    # Within the ranges of the fields; the memory below is half a GiB.
    "too wide": {"d_model": 65_536, "heads": 1},
    "too deep": {"encoder_layers": 1000, "d_model": 4096},
    "too deep, but narrow": {"decoder_layers": 1000, "d_model": 2, "d_ff": 2, "heads": 1},
    "too many positions": {"positions": "learned", "max_positions": 1 << 20, "d_model": 512},
}


@pytest.fixture(scope="module")
def vocabulary(corpus, tmp_path_factory):
    """The file of a run's vocabulary."""
    folder = tmp_path_factory.mktemp("vocabulary")
    translation.create(make_config(corpus), str(folder))
    return folder / VOCABULARY_FILE


@pytest.fixture
def untraced(monkeypatch):
    """Whatever would trace or make a model fails."""

    def traced(*_, **__):
        raise AssertionError("the model was traced")

    monkeypatch.setattr(Transformer, "init", traced)
    monkeypatch.setattr(Transformer, "apply", traced)
    monkeypatch.setattr("tfm.memory.host_memory", lambda: 2**29)


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_model_is_refused_untraced(name, vocabulary, untraced, corpus, tmp_path):
    model = dataclasses.replace(MODEL, **HUGE[name])
    config = dataclasses.replace(make_config(corpus), model=model)
    message = r"needs about [\d.,]+ GiB and there are [\d.,]+ GiB: lower .*model\."
    with pytest.raises(UserError, match=message):
        translation.create(config, str(tmp_path / "no_vocabulary_is_made"))
    (tmp_path / "run").mkdir()
    shutil.copy(vocabulary, tmp_path / "run")
    save(config, runs.config_path(str(tmp_path / "run")))
    with pytest.raises(UserError, match=message):
        runs.load(str(tmp_path / "run"))


def test_a_huge_export_is_refused_untraced(untraced, monkeypatch):
    monkeypatch.setattr(bundle, "_check_sizes", lambda *_: None)  # a file as large as its config says

    class File:
        def keys(self):
            return []

    class Task:
        config = translation.Config(model=dataclasses.replace(MODEL, encoder_layers=1000))
        model = Transformer(config.model, vocabulary_size=50)
        init = None

    with pytest.raises(UserError, match=r"lower .*model\.encoder_layers"):
        bundle._check_parameters(Task, File(), "model.safetensors")


def test_huge_batches_are_refused_with_numbers():
    with pytest.raises(
        UserError, match=r"Reading batches of 1,000,000,000,000 tokens need.* lower data.batch_tokens"
    ):
        check_batches_fit(10**12)
    check_batches_fit(25_000)


def test_what_fits_passes_and_copies_count(monkeypatch):
    size = 4 * estimate().count_parameters()
    monkeypatch.setattr("tfm.memory.available_memory", lambda: 3 * size // 2)
    model = Transformer(SMALL, vocabulary_size=90)
    check_weights_fit(model)
    with pytest.raises(UserError, match="parameters 2 times need"):
        check_weights_fit(model, 2)
    check_weights_fit(model, 2, available=2 * size)  # of another memory than the device's
    with pytest.raises(UserError, match=r"Training .* parameters \(parameters, gradients"):
        check_training_fits(model, TrainingConfig())
    check_training_fits(model, TrainingConfig(parallel="mesh", mesh_fsdp=2))


def test_a_model_of_another_kind_has_no_estimate():
    other = object()
    assert memory_estimate.estimate_of(other) is None
    check_weights_fit(other)
    check_training_fits(other, TrainingConfig())


@pytest.mark.parametrize(
    ("size", "text"), [(2**20, "1.00 MiB"), (3 * 2**29, "1.50 GiB"), (2**200, f"{2**170:,} GiB")]
)
def test_sizes_of_any_magnitude_are_shown(size, text):
    assert format_bytes(size) == text
    assert np.isfinite(len(format_bytes(10**400)))
