"""Tests of custom models, tasks, optimizers and pairs, which are found by the names of their modules."""

import dataclasses
import json
import pathlib
import sys
import sysconfig

import numpy as np
import optax
import pytest

from tests.support import entries
from tests.support.tiny import make_config
from tfm import config, models, tasks
from tfm.commands import sweep
from tfm.commands.command import parse
from tfm.commands.config_files import read_config_file
from tfm.commands.options import Status
from tfm.config import find_by_name
from tfm.data.config import SPLITS, DocumentsConfig, PairsConfig
from tfm.data.sources.opening import find_problems, open_documents, open_pairs
from tfm.errors import UserError
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import OPTIMIZERS, find_optimizer, make_optimizer
from tfm.workdir import runs

OPTIMIZER = """
import dataclasses
import jax
import jax.numpy as jnp
import optax
from tfm.config import field

@dataclasses.dataclass(frozen=True)
class SignDescent:
    name: str = "my_lab.optimizers:SignDescent"
    factor: float = field(1.0, "Factor of the sign.", greater_than=0, maximum=10)

    def make(self, learning_rate):
        return optax.chain(optax.stateless(lambda g, params: jax.tree.map(jnp.sign, g)),
                           optax.scale_by_learning_rate(learning_rate), optax.scale(self.factor))

def not_a_class(learning_rate):
    pass
not_a_class.make = None
"""
MODEL = """
import dataclasses
import types
from tfm.models.transformer import Transformer, TransformerConfig

@dataclasses.dataclass(frozen=True)
class Config(TransformerConfig):
    name: str = "my_lab.models:wide"
    extra: int = 3

class Model(Transformer):
    config: Config

wide = types.SimpleNamespace(Config=Config, Model=Model)
narrow = types.SimpleNamespace(Config=Config)
"""
PAIRS = """
from tfm.data.data_errors import MissingFile

class Numbers(list):
    fingerprint = "numbers"

def open_numbers(config, split):
    if split not in ("train", "validation"):
        raise MissingFile(f"There is no split {split}.")
    return Numbers([(str(i), f"{i} !") for i in range(9)])

def open_texts(config, split):
    return Numbers([("a text",), ("another",)])

def open_spaced_pairs(config, split):
    return Numbers([(" a dog\\u00a0", "ein\\r\\nHund\\n")])

def open_spaced_texts(config, split):
    return Numbers([(" one\\ntwo\\n",)])

def open_nothing(config, split):
    return Numbers()

def open_rows(config, split):
    return [1]

def open_numerals(config, split):
    return Numbers([(1, "1 !")])

def open_gap(config, split):
    return Numbers([("1", "1 !"), ("2", "2 !"), ("3", None)])
"""
NAME = "my_lab.optimizers:SignDescent"


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
    """Creates a package in the current folder. Its modules are neither allowed nor imported yet."""
    (tmp_path / "my_lab").mkdir()
    for name, content in (
        ("optimizers", OPTIMIZER),
        ("models", MODEL),
        ("pairs", PAIRS),
        ("broken", "1 / 0"),
        ("needy", "import no_such_module"),
    ):
        (tmp_path / "my_lab" / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(config.names, "allowed_modules", set())
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


def imported():
    return {name for name in sys.modules if name.partition(".")[0] == "my_lab"}


def test_custom_optimizer_is_found(my_lab):
    config.allow_modules(["my_lab"])
    section = {"optimizer": {"name": NAME, "factor": 2.0}, "schedule": "constant", "peak_learning_rate": 0.1}
    made = config.from_mapping(TrainingConfig, section)
    optimizer, params = make_optimizer(made.optimizer, lambda count: 0.1), np.float32([1, 1])
    update, _ = optimizer.update(np.float32([3, -4]), optimizer.init(params), params)
    np.testing.assert_allclose(update, [-0.2, 0.2], rtol=1e-6)
    assert config.from_mapping(TrainingConfig, config.to_config_dict(made)) == made
    with pytest.raises(UserError, match=r"optimizer\.factor must be above 0"):
        config.from_mapping(TrainingConfig, {"optimizer": {"name": NAME, "factor": 0.0}})


def test_custom_model_is_found(my_lab):
    config.allow_modules(["my_lab.models"])
    made = config.from_mapping(Config, {"model": {"name": "my_lab.models:wide", "extra": 4, "d_model": 256}})
    assert (made.model.extra, made.model.d_model) == (4, 256)
    assert models.find(made.model.name).Model(made.model, vocabulary_size=50).config == made.model
    assert config.from_mapping(Config, json.loads(json.dumps(dataclasses.asdict(made)))) == made


def run_as(path, code):
    """Runs code as if it were in a file."""
    exec(compile(code, str(path), "exec"), {"__name__": "anything"})


def test_only_files_of_the_user_import_from_the_current_folder(my_lab):
    """A library that looks for a package that is not installed must not run a file of the package's name."""
    (my_lab / "no_such_package.py").write_text("value = 3")
    config.allow_current_folder()
    purelib = pathlib.Path(sysconfig.get_path("purelib"))
    for library in (purelib / "library.py", pathlib.Path(config.__file__).parent.parent / "data" / "x.py"):
        for code in (
            "import no_such_package",
            "__import__('importlib').import_module('no_such_package')",
        ):
            with pytest.raises(ModuleNotFoundError):
                run_as(library, code)
        run_as(library, "import importlib.util; assert not importlib.util.find_spec('no_such_package')")
    for own in (my_lab / "own.py", "own.py", "/elsewhere/config.py"):
        run_as(own, "import no_such_package; assert no_such_package.value == 3")
        del sys.modules["no_such_package"]


def test_only_allowed_modules_are_imported(my_lab):
    """Other modules of the package and packages whose names begin alike are not allowed."""
    config.allow_modules(["my_la", "my_lab.models", "my_lab.optim"])
    for find in (find_optimizer, tasks.find, models.find):
        with pytest.raises(UserError, match=r"is not part of tfm .* --import=my_lab\.optimizers"):
            find(NAME)
    assert not imported()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my_lab.nothing:x",
            "names the module 'my_lab.nothing', but there is no 'my_lab.nothing' on sys.path",
        ),
        (
            "my_lab.model:wide",
            "no 'my_lab.model' on sys.path or in the current folder; did you mean 'models'?",
        ),
        ("my_lab.models.wide", "an attribute of a module is written 'package.module:attribute'"),
        ("my_lab.models:absent", "the module 'my_lab.models' has no 'absent'"),
        ("my_lab.models:narrow", "must have Config and Model, but it has no Model"),
        (
            "my_lab.broken:x",
            "importing the module 'my_lab.broken' fails: ZeroDivisionError: division by zero",
        ),
        ("my_lab.needy:x", "importing the module 'my_lab.needy' fails: ModuleNotFoundError: No module named"),
        ("my lab:x", "must be one of ['"),
        ("wide", "or your own 'package.module[:attribute]'"),
        ("my_lab.models:", "must be one of ['"),
        (".models:x", "must be one of ['"),
        ("my_lab..models:x", "must be one of ['"),
        ("../models.py:x", "must be one of ['"),
        (3, "must be one of ['"),
        ([], "must be one of ['"),
    ],
)
def test_invalid_names_of_models_are_errors(my_lab, name, message):
    config.allow_modules(["my_lab"])
    with pytest.raises(UserError) as error:
        models.find(name)
    assert str(error.value).startswith("config.model.name")
    assert message in str(error.value)


def test_name_may_be_a_module_without_an_attribute(my_lab):
    config.allow_modules(["my_lab"])
    assert models.find("my_lab.models").Model


@pytest.mark.parametrize("name", [3, [], {}, None])
def test_name_that_is_not_text_is_an_error(name):
    with pytest.raises(UserError, match=r"config\.x must be one of"):
        find_by_name(OPTIMIZERS, name, "config.x")


@pytest.mark.parametrize("name", ["my_lab.optimizers:not_a_class", "my_lab.optimizers:optax"])
def test_optimizer_that_is_not_a_dataclass_with_make_is_an_error(my_lab, name):
    config.allow_modules(["my_lab"])
    with pytest.raises(UserError, match=r"must have make, but it has no make|must name a dataclass"):
        config.from_mapping(TrainingConfig, {"optimizer": {"name": name}})


@pytest.fixture
def foreign(my_lab, corpus):
    """Returns a work directory whose config contains the name of a module."""
    made = dataclasses.asdict(make_config(corpus))
    made["training"]["optimizer"] = {"name": NAME, "factor": 2.0}
    folder = my_lab / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made))
    return folder


def test_opening_a_run_imports_no_custom_module(foreign):
    with pytest.raises(UserError, match=rf"names '{NAME}', which is not part of tfm"):
        runs.open_folder(str(foreign))
    with pytest.raises(UserError, match=rf"names '{NAME}', which is not part of tfm"):
        read_config_file(str(foreign / "config.json"))
    assert not imported()


def test_import_flag_allows_the_modules_of_a_run(foreign):
    parse(Status, ["--import=my_lab.optimizers", str(foreign)])
    assert runs.open_folder(str(foreign)).config.training.optimizer.factor == 2.0
    for value in ("my lab", "a/b.py"):
        with pytest.raises(UserError, match="Expected the name of a module, such as my_lab"):
            parse(Status, ["--import", value, str(foreign)])


def test_python_config_allows_the_modules_that_it_uses(foreign, tmp_path):
    """The imports of a config file are trusted. Its runs can be opened without a flag afterwards."""
    (tmp_path / "mine.py").write_text(
        "from tfm.config import to_config_dict\n"
        "from tfm.tasks.translation.task import Config\n"
        "from tfm.training.config import TrainingConfig\n"
        "from my_lab.optimizers import SignDescent\n"
        "def get_config():\n"
        "    return to_config_dict(Config(training=TrainingConfig(optimizer=SignDescent(factor=3.0))))\n"
    )
    sys.path.append(str(tmp_path))  # like `python train.py` next to the package
    found = read_config_file(str(tmp_path / "mine.py"))[0]
    assert found.training.optimizer.factor == 3.0
    assert runs.open_folder(str(foreign)).config.training.optimizer.factor == 2.0


def test_command_line_allows_the_modules_that_it_names(my_lab):
    found = entries.overrides(
        [f"--config.training.optimizer.name={NAME}", "--config.training.optimizer.factor=4"]
    )
    assert (found.training.optimizer.name, found.training.optimizer.factor) == (NAME, 4.0)
    found = entries.overrides(["--config.model.name", "my_lab.models:wide", "--config.model.extra=7"])
    assert found.model.extra == 7
    with pytest.raises(UserError, match=r"the module 'my_lab\.models' has no 'task'"):
        entries.overrides(["--config.task=my_lab.models:task"])


def test_evaluations_of_a_sweep_import_the_modules_that_its_variants_name(my_lab, monkeypatch):
    (my_lab / "variants.py").write_text(
        "from tests.support.tiny_regression import make_config\n"
        "from tfm.config import to_config_dict\n"
        "from tfm.sweep import Variant\n"
        "def get_config():\n"
        "    return to_config_dict(make_config())\n"
        "def get_variants():\n"
        f"    yield Variant('mine', {{'training.optimizer.name': '{NAME}'}})\n"
    )
    commands = []
    monkeypatch.setattr(sweep, "execute_runs", lambda runs, evaluate, *_: commands.append(evaluate) or [])
    sweep.main(["variants.py", "--workdir=out", "--seeds=2"])
    (evaluate,) = commands
    assert evaluate.count("--import=my_lab.optimizers") == 1


def test_missing_field_without_a_default_is_an_error():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        width: int

    assert config.from_mapping(Plain, {"width": 3}).width == 3
    with pytest.raises(UserError, match=r"^config\.width must be given: it has no default\.$"):
        config.from_mapping(Plain, {})


def test_make_returns_an_optax_transformation():
    for made in OPTIMIZERS.values():
        assert isinstance(made().make(lambda count: 0.1), optax.GradientTransformation)


def test_custom_pairs_are_read(my_lab):
    config.allow_modules(["my_lab.pairs"])
    data = PairsConfig(kind="my_lab.pairs:open_numbers")
    assert open_pairs(data, "validation")[3] == ("3", "3 !")


def test_default_test_split_of_custom_pairs_is_optional(my_lab):
    config.allow_modules(["my_lab.pairs"])
    assert find_problems(PairsConfig(kind="my_lab.pairs:open_numbers"), SPLITS) == []


def test_split_that_custom_pairs_lack_is_a_problem(my_lab):
    config.allow_modules(["my_lab.pairs"])
    data = PairsConfig(kind="my_lab.pairs:open_numbers", validation="dev")
    assert find_problems(data, SPLITS) == ["There is no split dev."]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("open_nothing", "has no rows in the split"),
        ("open_rows", "with fingerprint."),
        ("open_numerals", "lists of rows of 2 strings, (en, de)"),
        ("open_gap", "Row 3 of the split 'train' of data.kind=my_lab.pairs:open_gap must have 2 strings"),
    ],
)
def test_problems_of_custom_pairs_are_found(my_lab, name, problem):
    config.allow_modules(["my_lab.pairs"])
    problems = find_problems(PairsConfig(kind=f"my_lab.pairs:{name}"), ["train"])
    assert problem in problems[0]


def test_custom_documents_are_read(my_lab):
    config.allow_modules(["my_lab.pairs"])
    data = DocumentsConfig(kind="my_lab.pairs:open_texts")
    assert open_documents(data, "train")[:] == [("a text",), ("another",)]
    (found,) = find_problems(DocumentsConfig(kind="my_lab.pairs:open_numbers"), ["train"])
    assert "rows of 1 strings, (text)" in found


def test_texts_of_custom_sources_are_cleaned_like_texts_of_tables(my_lab):
    """A side of a pair is one line without white space at its ends. A document keeps its line ends."""
    config.allow_modules(["my_lab.pairs"])
    pairs = open_pairs(PairsConfig(kind="my_lab.pairs:open_spaced_pairs"), "train")
    assert list(pairs) == pairs[:] == [("a dog", "ein Hund")]
    documents = open_documents(DocumentsConfig(kind="my_lab.pairs:open_spaced_texts"), "train")
    assert documents[:] == [("one\ntwo",)]


def test_functions_of_tfm_are_found_without_permission(my_lab):
    """A run whose data such a function opens is evaluated without --import."""
    function = "tfm.data.sources.builtin:open_texts"
    data = DocumentsConfig(kind=function, name="pydoc_topics")
    (builtin,) = open_documents(dataclasses.replace(data, kind="builtin"), "test")[0]
    assert open_documents(data, "test")[0] == (builtin.strip(),)
    with pytest.raises(UserError, match=r"names 'tfm_lab\.pairs:x', which is not part of tfm"):
        open_documents(DocumentsConfig(kind="tfm_lab.pairs:x"), "test")


def test_custom_pairs_of_a_run_are_not_imported(my_lab):
    with pytest.raises(
        UserError, match=r"config\.data\.kind names 'my_lab\.pairs:open_numbers', which is no"
    ):
        open_pairs(PairsConfig(kind="my_lab.pairs:open_numbers"), "train")
    assert not imported()
