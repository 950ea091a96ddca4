"""--config=FILE and --config.field=value: what they accept, and the error messages for what they do not."""

import dataclasses
import json
import re

import pytest
from absl import flags

from tests.support import entries
from tests.support.tiny import make_config, write_config_file
from tfm.commands import config_flag
from tfm.errors import UserError
from tfm.training.optimizers import SGD, Adam, AdamW
from tfm.workdir import runs


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
        ("model.key_features=x", "--config.model.key_features: expected an integer, got 'x'."),
    ],
)
def test_a_value_of_another_type_is_refused(argument, message):
    with pytest.raises(UserError, match=re.escape(message)):
        entries.overrides([f"--config.{argument}"])


def test_a_long_value_is_shown_in_part():
    with pytest.raises(UserError, match=r"training.steps.*'999") as error:
        entries.overrides(["--config.training.steps=" + "9" * 5000])
    assert len(str(error.value)) < 150


def test_what_another_name_drops_is_logged(caplog):
    with caplog.at_level("INFO"):
        entries.overrides(["--config.training.optimizer.name=sgd"])
    assert "optimizer.name=sgd: the settings of the config for adam are dropped" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        entries.overrides(["--config.training.optimizer.name=adam"])
    assert "dropped" not in caplog.text


def test_another_optimizer_has_its_own_defaults(corpus):
    """The fields of the file's section go, those of both classes too; the order of the flags is free."""
    saved = make_config(corpus, optimizer=Adam(b1=0.5, b2=0.7))
    arguments = ["optimizer.weight_decay=0.3", "optimizer.name=adamw", "steps=9"]
    found = entries.overrides([f"--config.training.{one}" for one in arguments], saved)
    assert found.training.optimizer == AdamW(weight_decay=0.3)
    assert found == dataclasses.replace(
        saved, training=dataclasses.replace(saved.training, steps=9, optimizer=AdamW(weight_decay=0.3))
    )
    for flag in (["--config.training.optimizer.name=adam"], ["--config.training.optimizer.name", "adam"]):
        assert entries.overrides(flag, saved) == saved  # it has this name already
    last = ["--config.training.optimizer.name=lion", "--config.training.optimizer.name", "sgd"]
    assert entries.overrides(last, saved).training.optimizer == SGD()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["name=adamm"], "config.training.optimizer.name must be one of ['adam', 'adamw', 'lion', "),
        (["name="], "config.training.optimizer.name must be one of ['adam', 'adamw', 'lion', "),
        (["name=sgd", "b1=0.5"], "config.training.optimizer.b1 does not exist; known fields: momentum, name"),
        (["momentum=0.5"], "config.training.optimizer.momentum does not exist"),
        (
            ["name=sgd", "momentum=much"],
            "--config.training.optimizer.momentum: expected a number, got 'much'.",
        ),
    ],
)
def test_an_optimizer_that_does_not_fit(arguments, message):
    with pytest.raises(UserError) as error:
        entries.overrides([f"--config.training.optimizer.{one}" for one in arguments])
    assert str(error.value).startswith(message)


def test_a_field_that_may_be_none_takes_none(corpus):
    saved = make_config(corpus, peak_learning_rate=0.5)
    assert entries.overrides(["--config.training.peak_learning_rate=None"], saved) == make_config(corpus)
    found = entries.overrides(["--config.model.key_features=None", "--config.model.key_features=3"])
    assert found.model.key_features == 3
    with pytest.raises(UserError, match=r"training\.steps.*'None'"):
        entries.overrides(["--config.training.steps=None"])


def test_patterns_are_set_as_one_text_or_a_tuple():
    for value in ("encoder/*", "('encoder/*',)", "'encoder/*',"):
        assert entries.overrides([f"--config.training.freeze={value}"]).training.freeze == ("encoder/*",)
    found = entries.overrides(["--config.training.freeze='encoder/*','embedding/*'"])
    assert found.training.freeze == ("encoder/*", "embedding/*")


@pytest.fixture
def values():
    """Flags of a command."""
    values = flags.FlagValues()
    flags.DEFINE_integer("count", 1, "A number.", lower_bound=1, flag_values=values)
    flags.DEFINE_enum("format", "text", ("text", "jsonl"), "A choice.", flag_values=values)
    flags.DEFINE_string("name", "", "A name.", flag_values=values)
    flags.DEFINE_multi_string("names", [], "Names.", flag_values=values)
    flags.DEFINE_string("folder", None, "A folder.", required=True, flag_values=values)
    return values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count=many"], "--count: expected a positive integer, got 'many'."),
        (["--count=0"], "--count: expected a positive integer, got '0'."),
        (["--format=xml"], "--format: expected one of text, jsonl, got 'xml'."),
        (["--name="], "--name is empty. Give it a value, or leave it out."),
        (["--name", ""], "--name is empty. Give it a value, or leave it out."),
        (["--names=a", "--names="], "--names is empty. Give it a value, or leave it out."),
        ([], "Flag --folder must have a value."),
    ],
)
def test_a_wrong_flag_is_an_error_message(values, arguments, message):
    folder = ["--folder=x"] if arguments else []
    with pytest.raises(UserError) as error:
        config_flag.parse(["command", *arguments, *folder], values)
    assert str(error.value) == message


def test_the_last_value_of_a_flag_counts():
    """In either form."""
    argv = ["--config=a.py", "-config", "b.py", "--config.training.steps=3", "--workdir", "w"]
    assert config_flag.value_of("config", argv) == "b.py"
    assert config_flag.value_of("workdir", argv) == "w"
    assert config_flag.value_of("checkpoint", argv) is None
    assert config_flag.remove_config_file(argv) == ["--config.training.steps=3", "--workdir", "w"]
    with pytest.raises(UserError, match="--workdir"):
        config_flag.value_of("workdir", ["--workdir="])


def test_the_config_of_a_run_is_a_config_file(tiny_run, tmp_path, corpus):
    saved = runs.read_config(str(tiny_run))
    found = config_flag.read_file(runs.config_path(str(tiny_run)))
    assert runs.parse_config(found) == saved
    assert found.to_json() == config_flag.read_file(str(write_config_file(tmp_path, saved))).to_json()
    assert found.is_locked


def test_fields_are_set_over_the_config_of_a_run(tiny_run):
    values = flags.FlagValues()
    path = runs.config_path(str(tiny_run))
    arguments = [f"--config={path}", "--config.training.steps=77"]
    config_flag.define(config_flag.read_file(config_flag.value_of("config", arguments)), values, arguments)
    config_flag.parse(config_flag.remove_config_file(arguments), values)
    expected = runs.read_config(str(tiny_run))
    training = dataclasses.replace(expected.training, steps=77)
    assert runs.parse_config(values.config) == dataclasses.replace(expected, training=training)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "Expected JSON in"),
        ("a.json", json.dumps({"task": "translation", "steps": 3}), "config.steps does not exist"),
        ("a.py", "x = 1", "Expected get_config() in {path} to return a ConfigDict, got None."),
        ("a.py", "\n\nx = (", "The config file fails at {path}, line 3: SyntaxError: "),
        ("a.py", "def get_config():\n  return 1 / 0", "{path}, line 2: ZeroDivisionError: division by zero."),
        ("a.py", "def get_config(size): pass", "The config file fails at {path}: TypeError: "),
        ("a.py", "\0", "The config file fails at {path}: "),
        ("a.py", "raise SystemExit(0)", "The config file fails at {path}, line 1: SystemExit: 0."),
        ("a.py", "import json\njson.loads('')", "The config file fails at {path}, line 2: JSONDecodeError"),
    ],
)
def test_a_failing_config_is_an_error_message(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=re.escape(message.format(path=path))):
        config_flag.read_file(str(path))


def test_errors_of_the_config_itself_are_shown(tmp_path, corpus):
    path = tmp_path / "a.py"
    path.write_text("from tfm.data.config import PairsConfig\ndef get_config():\n  PairsConfig(kind='x')\n")
    with pytest.raises(UserError, match="kind") as error:
        config_flag.read_file(str(path))
    assert "fails at" not in str(error.value)


def test_a_folder_as_config_gives_a_hint(tiny_run, tmp_path):
    with pytest.raises(UserError, match=f"{re.escape(str(tiny_run))}/config.json"):
        config_flag.read_file(str(tiny_run))
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))}.*--config"):
        config_flag.read_file(str(tmp_path))


def test_a_command_on_a_run_takes_no_config_file():
    config_flag.check_absent(["--workdir=x", "--config.decoding.beam_size=2"])
    with pytest.raises(UserError, match=r"--config=FILE.*--config\.field=value"):
        config_flag.check_absent(["--workdir=x", "--config=y.py"])


def test_shipped_configs_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_flag.read_file("quickstart").training.steps == 1000
    (tmp_path / "quickstart").mkdir()  # what is there comes first
    with pytest.raises(UserError, match=r"lm_pydoc, .*, quickstart, "):
        config_flag.read_file("quickstart")


def test_configs_of_a_wheel_are_found(tmp_path, monkeypatch):
    (tmp_path / "tfm" / "configs").mkdir(parents=True)
    (tmp_path / "tfm" / "configs" / "mine.py").write_text("")
    monkeypatch.setattr(config_flag.tfm, "__file__", str(tmp_path / "tfm" / "__init__.py"))
    assert config_flag.shipped_configs() == {"mine": str(tmp_path / "tfm" / "configs" / "mine.py")}
