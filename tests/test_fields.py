"""Tests of config fields and of their validation."""

import dataclasses
import math
import pickle

import pytest

from tfm import config, models, tasks
from tfm.config import (
    FieldInfo,
    OnResume,
    changes,
    check_fields,
    field,
    field_like,
    hints_of,
    info_of,
    value_class,
    walk_fields,
)
from tfm.data.config import PairsConfig
from tfm.errors import UserError
from tfm.family import MODELS, TASKS
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import OPTIMIZERS, SGD, Adam

TASK_CONFIGS = [tasks.find(name).Config for name in TASKS]
MODEL_CONFIGS = [models.find(name).Config for name in MODELS]


def all_leaves():
    """Returns the fields of all tasks, models and optimizers without repetitions."""
    found = [leaf for made in TASK_CONFIGS for leaf in walk_fields(made())]
    found += [leaf for made in MODEL_CONFIGS for leaf in walk_fields(made(), "model")]
    found += [leaf for made in OPTIMIZERS.values() for leaf in walk_fields(made(), "training.optimizer")]
    return list({(type(leaf.section), leaf.path): leaf for leaf in found}.values())


BY_NAME = ("model", "optimizer")  # sections whose class depends on the field `name`
LEAVES = all_leaves()


def kind_of_leaf(leaf):
    return value_class(hints_of(type(leaf.section))[name_of(leaf)])


def name_of(leaf):
    return leaf.path.rpartition(".")[2]


NUMBERS = [leaf for leaf in LEAVES if kind_of_leaf(leaf) in (int, float)]


def config_of(leaf):
    """Returns the `Config` of a task that has the section of a leaf. Sections found by name fit any task."""
    has = lambda made: any(type(each.section) is type(leaf.section) for each in walk_fields(made()))  # noqa: E731
    return next((made for made in TASK_CONFIGS if has(made)), Config)


def outside(leaf):
    """Returns the nearest values outside the bounds of a number."""
    info, whole = leaf.info, kind_of_leaf(leaf) is int
    found = [bound for bound in (info.greater_than, info.less_than) if bound is not None]
    for bound, way in ((info.minimum, -1), (info.maximum, 1)):
        if bound is not None:
            found.append(bound + way if whole else math.nextafter(bound, way * math.inf))
    return found


def test_fields_of_all_sections_are_found():
    assert len(NUMBERS) > 40
    paths = {leaf.path for leaf in LEAVES}
    assert {"task", "model.heads", "data.name", "training.optimizer.b2", "decoding.top_p"} <= paths


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.path)
def test_every_field_has_help_and_a_valid_default(leaf):
    assert leaf.info.help.endswith(".")
    assert leaf.info.resume in (OnResume.FREE, OnResume.ASK, OnResume.FIXED)
    assert leaf.value is None or leaf.info.accepts(leaf.value)


@pytest.mark.parametrize("leaf", NUMBERS, ids=lambda leaf: leaf.path)
def test_every_number_is_bounded_and_values_just_outside_are_errors(leaf):
    info = leaf.info
    low, high = (info.minimum, info.greater_than), (info.maximum, info.less_than)
    assert info.unbounded or (low != (None, None) and high != (None, None))
    assert all(info.accepts(bound) for bound in (info.minimum, info.maximum) if bound is not None)
    for value in outside(leaf):
        with pytest.raises(UserError) as error:
            type(leaf.section)(**{name_of(leaf): value})
        assert str(error.value).startswith(f"{leaf.path} must be ")
        assert str(error.value).endswith(f"got {value!r}.")
        section = {name_of(leaf): value}
        *names, _ = leaf.path.split(".")
        for name in reversed(names):
            section = {name: section | ({"name": leaf.section.name} if name in BY_NAME else {})}
        with pytest.raises(UserError, match=rf"^config\.{leaf.path} must be "):
            config.from_mapping(config_of(leaf), section)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (Adam, "name", 3),
        (SGD, "nesterov", True),  # without momentum
        (TrainingConfig, "freeze", ["encoder/*"]),
        (TrainingConfig, "freeze", ("encoder/*", 3)),
        (TrainingConfig, "optimizer", "adam"),
        (TrainingConfig, "optimizer", Adam),
        (TrainingConfig, "seed", 2**32),  # gives the same key as seed 0
        (PairsConfig, "target_language", "../de"),
        (PairsConfig, "name", "community:any"),
    ],
)
def test_invalid_values_are_errors_that_name_the_field(section, name, value):
    with pytest.raises(UserError, match=name):
        section(**{name: value})


def test_error_names_all_wrong_fields_of_a_section():
    with pytest.raises(UserError) as error:
        TrainingConfig(steps=0, ema_decay=5.0, schedule="cosine", keep="3")
    message = str(error.value)
    assert message.startswith("4 fields of the config are wrong: training.steps must be from 1 to ")
    for part in (
        "training.ema_decay must be from 0 to 0.999999, got 5.0",
        "training.schedule must be one of 'inverse_sqrt', 'linear_decay', 'cosine_decay', 'constant', got ",
        "training.keep must be of type int, got '3'",
    ):
        assert part in message


def test_error_names_the_wrong_fields_of_all_sections():
    mapping = {
        "modle": {},
        "model": {"name": "transformer", "heads": 3},  # which does not divide d_model
        "data": {"kind": "csv", "languages": "en"},
        "training": {"steps": True, "optimizer": {"name": "adam", "b1": -0.5}},
        "decoding": 4,
        "label_smoothing": 1,
    }
    with pytest.raises(UserError) as error:
        config.from_mapping(Config, mapping)
    for path in (
        "config.modle does not exist",
        "model.heads to divide model.d_model (512), got 3",
        "config.data.kind must be one of",
        "config.data.languages does not exist",
        "config.training.steps must be of type int, got True",
        "config.training.optimizer.b1 must be from 0",
        "config.decoding must be a section",
        "config.label_smoothing must be at least 0 and below 1, got 1.0",
    ):
        assert path in str(error.value)


@pytest.mark.parametrize("value", ["3", True, 3.0, None, [3]])
def test_value_of_a_wrong_type_is_an_error(value):
    with pytest.raises(UserError, match=r"training\.steps must be of type int"):
        TrainingConfig(steps=value)
    with pytest.raises(UserError, match="training must be a section"):
        Config(training=value)


def test_optional_and_whole_numbers_are_accepted():
    assert TrainingConfig(learning_rate_scale=2).learning_rate_scale == 2
    assert TransformerConfig(key_features=None).key_features is None
    with pytest.raises(UserError, match=r"key_features must be from 1 to 65,536, or None, got 0\."):
        TransformerConfig(key_features=0)


def test_configs_are_frozen_and_hashable():
    """Configs are static arguments of jitted functions."""
    made = Config(training=TrainingConfig(steps=7))
    assert hash(made) == hash(Config(training=TrainingConfig(steps=7)))
    assert pickle.loads(pickle.dumps(made)) == made != Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.training.steps = 3


def test_missing_fields_of_a_config_get_their_defaults():
    """An older version may have written the config."""
    old = dataclasses.asdict(Config())
    del old["decoding"]["temperature"], old["training"]["ema_decay"], old["model"]["scan"], old["data"]
    assert config.from_mapping(Config, old) == Config()


def test_expectation_of_a_field_describes_its_values():
    assert FieldInfo(minimum=1, maximum=2000).expectation == "from 1 to 2,000"
    assert FieldInfo(greater_than=0, maximum=1.5).expectation == "above 0 and at most 1.5"
    assert FieldInfo(minimum=0).expectation == "at least 0"
    assert FieldInfo(choices=(None, "a")).expectation == "one of None, 'a'"
    assert FieldInfo().expectation == ""


def test_plain_fields_are_checked_only_by_type():
    """A model outside tfm may have plain fields. A warm start must not change them."""

    @dataclasses.dataclass(frozen=True)
    class Plain:
        width: int = 3
        rate: float = field(0.5, "A rate.", minimum=0, less_than=1)

    check_fields(Plain(width=10**6))
    with pytest.raises(
        UserError, match=r"^2 fields .*: my\.width must be of type int.*; my\.rate must be at"
    ):
        check_fields(Plain("a", 1.0), "my")
    (change,) = changes(Plain(), Plain(width=4))
    assert (change.path, change.rule, change.new.info.warm_start) == ("width", OnResume.ASK, False)


def test_field_like_inherits_from_another_field():
    @dataclasses.dataclass(frozen=True)
    class One:
        width: int = field(3, "A width.", minimum=1, maximum=9, unit="bars")

    @dataclasses.dataclass(frozen=True)
    class Other:
        width: int = field_like(One, "width")
        height: int = field_like(One, "width", 5)

        def __post_init__(self):
            check_fields(self)

    assert Other() == Other(width=3, height=5)
    assert info_of(dataclasses.fields(Other)[1]) == info_of(dataclasses.fields(One)[0])
    with pytest.raises(UserError, match="height must be from 1 to 9, got 0"):
        Other(height=0)
