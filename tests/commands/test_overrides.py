"""Tests of --config.field=value: accepted values, errors, and changed optimizers and models."""

import dataclasses
import itertools
import re

import pytest

from tests.support import entries
from tests.support.tiny import make_config
from tfm import models
from tfm.commands.overrides import override
from tfm.config import allow_modules, field, from_mapping
from tfm.data.config import PairsConfig
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.models.transformer import Transformer
from tfm.tasks.translation.task import Config
from tfm.training.optimizers import SGD, Adam, AdamW


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("training.steps=abc", "--config.training.steps: expected an integer, got 'abc'."),
        ("training.steps=1.5", "--config.training.steps: expected an integer, got '1.5'."),
        ("training.steps=", "--config.training.steps: expected an integer, got ''."),
        ("model.dropout=a: b", "--config.model.dropout: expected a number, got 'a: b'."),
        ("model.scan=maybe", "--config.model.scan: expected true or false, got 'maybe'."),
        (
            "training={'steps': 3}",
            "config.training is a section. Set its fields one by one, such as --config",
        ),
        (
            "training.optimizer=sgd",
            "Set its fields one by one, such as --config.training.optimizer.name=value.",
        ),
        ("model.key_features=x", "config.model.key_features must be of type int or None, got 'x'."),
    ],
)
def test_value_of_a_wrong_type_is_an_error(argument, message):
    with pytest.raises(UserError, match=re.escape(message)):
        entries.overrides([f"--config.{argument}"])


@pytest.mark.parametrize("first", [["a"], ["--config.training.freeze", "a"], ["--config.training.freeze=a"]])
@pytest.mark.parametrize("last", [["--config.training.freeze", "b"], ["-config.training.freeze=b"]])
def test_last_value_of_a_field_counts_in_each_spelling(first, last):
    """A text without a flag is a positional argument."""
    overridden = override(Config(), [*first, *last, "--config.model.scan", "c", "--noconfig.model.scan"])
    assert overridden.config.training.freeze == ("b",)
    assert not overridden.config.model.scan
    assert overridden.rest == [*(first if first == ["a"] else []), "c"]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear_decay"])
def test_single_step_has_a_warm_up_that_its_schedule_accepts(schedule):
    found = entries.overrides(["--config.training.steps=1", f"--config.training.schedule={schedule}"])
    assert (found.training.steps, found.training.warmup_steps) == (1, 1)


def test_error_truncates_a_long_value():
    with pytest.raises(UserError, match=r"training.steps.*'999") as error:
        entries.overrides(["--config.training.steps=" + "9" * 5000])
    assert len(str(error.value)) < 150


def test_settings_dropped_by_another_name_are_logged(caplog):
    with caplog.at_level("INFO"):
        entries.overrides(["--config.training.optimizer.name=sgd"])
    assert "optimizer.name=sgd: the settings of the config for adam are dropped" in caplog.text


def test_nothing_is_logged_as_dropped_if_the_name_stays(caplog):
    with caplog.at_level("INFO"):
        entries.overrides(["--config.training.optimizer.name=adam"])
    assert "dropped" not in caplog.text


@pytest.fixture
def adam_config(corpus):
    """Returns a config whose optimizer has fields that AdamW has, too."""
    return make_config(corpus, optimizer=Adam(b1=0.5, b2=0.7))


NAME = "--config.training.optimizer.name"


@pytest.mark.parametrize(
    "order", itertools.permutations(("optimizer.weight_decay=0.3", "optimizer.name=adamw", "steps=9"))
)
def test_another_optimizer_has_its_own_defaults_in_any_order_of_flags(order, adam_config):
    """All fields of the old optimizer are dropped, including fields that both optimizers have."""
    training = dataclasses.replace(adam_config.training, steps=9, optimizer=AdamW(weight_decay=0.3))
    changed = entries.overrides([f"--config.training.{assignment}" for assignment in order], adam_config)
    assert changed == dataclasses.replace(adam_config, training=training)


@pytest.mark.parametrize("flag", [[f"{NAME}=adam"], [NAME, "adam"]])
def test_the_name_that_an_optimizer_has_already_changes_nothing(flag, adam_config):
    assert entries.overrides(flag, adam_config) == adam_config


def test_the_last_of_two_optimizers_counts(adam_config):
    assert entries.overrides([f"{NAME}=adamw", NAME, "sgd"], adam_config).training.optimizer == SGD()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["name=adamm"], "config.training.optimizer.name must be one of ['adam', 'adamw', "),
        (["name="], "config.training.optimizer.name must be one of ['adam', 'adamw', "),
        (
            ["name=sgd", "b1=0.5"],
            "config.training.optimizer.b1 does not exist; expected one of name, momentum",
        ),
        (["momentum=0.5"], "config.training.optimizer.momentum does not exist"),
        (
            ["name=sgd", "momentum=much"],
            "--config.training.optimizer.momentum: expected a number, got 'much'.",
        ),
    ],
)
def test_unknown_optimizers_and_their_unknown_fields_are_errors(arguments, message):
    with pytest.raises(UserError) as error:
        entries.overrides([f"--config.training.optimizer.{one}" for one in arguments])
    assert str(error.value).startswith(message)


def test_optional_fields_accept_none(corpus):
    saved = make_config(corpus, peak_learning_rate=0.5)
    assert entries.overrides(["--config.training.peak_learning_rate=None"], saved) == make_config(corpus)


def test_optional_fields_accept_a_number_after_none():
    changed = entries.overrides(["--config.model.key_features=None", "--config.model.key_features=3"])
    assert changed.model.key_features == 3


def test_required_fields_reject_none():
    with pytest.raises(UserError, match=r"training\.steps.*'None'"):
        entries.overrides(["--config.training.steps=None"])


def test_field_of_a_number_or_auto_accepts_both():
    for text, value in (("auto", "auto"), ("8000", 8000)):
        found = entries.overrides([f"--config.data.vocabulary_size={text}"])
        assert found.data.vocabulary_size == value
        assert from_mapping(Config, dataclasses.asdict(found)) == found
    for text in ("many", "None", "80.5", "0"):
        with pytest.raises(UserError, match=rf"data\.vocabulary_size .*auto.*{text}"):
            entries.overrides([f"--config.data.vocabulary_size={text}"])


def test_patterns_may_be_one_text_or_a_tuple():
    for value in ("encoder/*", "('encoder/*',)", "'encoder/*',"):
        assert entries.overrides([f"--config.training.freeze={value}"]).training.freeze == ("encoder/*",)
    found = entries.overrides(["--config.training.freeze='encoder/*','embedding/*'"])
    assert found.training.freeze == ("encoder/*", "embedding/*")


def test_last_value_of_a_field_counts():
    first, flag = "--config.training.freeze=('encoder/*',)", "--config.training.freeze"
    assert override(Config(), [first, f"{flag}=()"]).config.training.freeze == ()
    assert override(Config(), [first, f"{flag}=('decoder/*',)"]).config.training.freeze == ("decoder/*",)
    after_dashes = override(Config(), [f"{flag}=()", first, "--", f"{flag}=()"])
    assert after_dashes.config.training.freeze == ("encoder/*",)


def test_override_returns_the_values_and_the_other_arguments():
    arguments = [
        "a",
        "--config.training.steps",
        "-3",
        "b",
        "--noconfig.model.scan",
        "--config.model.scan",
        "--",
        "c",
    ]
    with pytest.raises(UserError, match=r"training\.steps must be .*got -3"):
        override(Config(), arguments)
    arguments[2] = "3"
    changed = override(Config(), arguments)
    assert changed.fields == {"training.steps": 3, "model.scan": True}
    assert (changed.config.training.steps, changed.config.model.scan) == (3, True)
    assert [argument for argument in changed.rest if argument != "--"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "argument", ["--config.training.steps=5", "--config.nothing=5", "--config.training=5"]
)
def test_arguments_after_two_dashes_are_no_fields(argument):
    changed = override(Config(), ["--config.training.steps=3", "--", argument])
    assert changed.fields == {"training.steps": 3}
    assert changed.rest[-1] == argument


def test_only_switches_have_a_negation():
    assert override(Config(), ["--noconfig.model.scan"]).fields == {"model.scan": False}
    with pytest.raises(UserError, match=r"--noconfig\.training\.seed .*--config\.training\.seed="):
        override(Config(), ["--noconfig.training.seed"])


def test_config_is_unchanged_without_fields():
    base = Config()
    assert override(base, ["a", "--other=1"]) == (base, {}, ["a", "--other=1"])


@dataclasses.dataclass(frozen=True)
class WideConfig(TransformerConfig):
    """A subclass with another default and an additional field."""

    name: str = f"{__name__}:wide"
    d_ff: int = 96
    width: int = field(1, "A field.", minimum=1, maximum=9)


@dataclasses.dataclass(frozen=True)
class OtherConfig:
    """A config that is no subclass."""

    name: str = f"{__name__}:other"
    d_model: int = field(8, "A field.", minimum=1, maximum=99)


class wide:
    Config, Model = WideConfig, Transformer


@dataclasses.dataclass(frozen=True)
class DeepConfig(TransformerConfig):
    name: str = f"{__name__}:deep"
    decoder_layers: int = field(9, "Number of decoder layers.")


class deep:
    Config, Model = DeepConfig, Transformer


class same:
    Config, Model = TransformerConfig, Transformer


class other:
    Config, Model = OtherConfig, Transformer


@pytest.fixture
def small():
    """Returns a config whose model is much smaller than the default."""
    allow_modules([__name__])
    return Config(model=TransformerConfig(d_model=16, heads=2, encoder_layers=1))


@pytest.mark.parametrize("name", ["same", "wide"])
def test_model_of_the_same_config_class_keeps_the_fields(name, small, caplog):
    with caplog.at_level("INFO"):
        model = override(
            small, [f"--config.model.name={__name__}:{name}", "--config.model.heads=4"]
        ).config.model
    assert (model.d_model, model.heads, model.encoder_layers, model.decoder_layers) == (16, 4, 1, 6)
    assert model.d_ff == (96 if name == "wide" else 2048)  # the default of the new class
    assert not caplog.messages


@pytest.mark.parametrize(("old", "new"), [("wide", "transformer"), ("wide", "deep"), ("deep", "wide")])
def test_models_that_extend_the_same_config_keep_its_fields(old, new, small, caplog):
    """Otherwise, a sweep over one's own model and the model that it extends compares different sizes."""
    own = override(small, [f"--config.model.name={__name__}:{old}"]).config
    name = new if new == "transformer" else f"{__name__}:{new}"
    with caplog.at_level("INFO"):
        model = override(own, [f"--config.model.name={name}"]).config.model
    assert model.name == name
    assert (model.d_model, model.heads, model.encoder_layers) == (16, 2, 1)
    assert model.d_ff == (96 if new == "wide" else 2048)
    assert not caplog.messages


def test_model_of_another_config_class_drops_the_fields_with_a_message(caplog):
    base = Config(model=TransformerConfig(dropout=0.5))  # a field of both classes
    with caplog.at_level("INFO"):
        changed = override(base, ["--config.model.name=rnn_seq2seq"]).config
    assert changed.model == models.find("rnn_seq2seq").Config()
    assert (
        "config.model.name=rnn_seq2seq: the settings of the config for transformer are dropped" in caplog.text
    )


def test_mistake_in_a_field_that_is_replaced_is_no_error():
    base = Config(data=PairsConfig(tokenizer="absent.model"))
    arguments = ["--config.model.name=rnn_seq2seq", "--config.data.tokenizer=word_pieces"]
    assert override(base, arguments).config.model.name == "rnn_seq2seq"
