"""Tests of --config=FILE: config files, arguments, and names of shipped configs."""

import importlib
import json
import os
import re
import sys

import pytest

from tests.support.tiny import write_config_file
from tfm.commands import config_files
from tfm.errors import UserError
from tfm.workdir import runs


def read_base(path):
    return config_files.read_config_file(path)[0]


def test_config_of_a_run_is_a_config_file(tiny_run, tmp_path):
    saved = runs.open_folder(str(tiny_run)).config
    assert read_base(runs.config_path(str(tiny_run))) == saved
    assert read_base(str(write_config_file(tmp_path, saved))) == saved


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "Expected JSON in"),
        ("a.json", json.dumps({"task": "translation", "steps": 3}), "config.steps does not exist"),
        ("a.py", "x = 1", "{path} defines no get_config()."),
        ("a.py", "def get_config(): return 3", "must return to_config_dict(CONFIG), got 3."),
        ("a.py", "\n\nx = (", "The config file fails at {path}, line 3: SyntaxError: "),
        ("a.py", "def get_config():\n  return 1 / 0", "{path}, line 2: ZeroDivisionError: division by zero."),
        ("a.py", "def get_config(size): pass", "The config file fails at {path}: TypeError: "),
        ("a.py", "\0", "The config file fails at {path}: "),
        ("a.py", "raise SystemExit(0)", "The config file fails at {path}, line 1: SystemExit: 0."),
        ("a.py", "import json\njson.loads('')", "The config file fails at {path}, line 2: JSONDecodeError"),
    ],
)
def test_failing_config_file_is_an_error_with_its_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=re.escape(message.format(path=path))):
        read_base(str(path))


def test_message_of_a_failing_config_file_ends_in_one_full_stop(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("raise ValueError('Expected small or large.')")
    with pytest.raises(UserError, match=r"line 1: ValueError: Expected small or large\.$"):
        read_base(str(path))


def test_variant_of_a_saved_config_is_an_error(tiny_run):
    with pytest.raises(UserError, match=r"config\.json has no variants.*:big"):
        read_base(f"{runs.config_path(str(tiny_run))}:big")
    with pytest.raises(UserError, match=r"config\.json has no variants.*Python file with get_variants"):
        config_files.read_variants(runs.config_path(str(tiny_run)))


def test_error_for_an_unknown_argument_of_a_shipped_config_lists_the_arguments():
    with pytest.raises(UserError, match=r"digits, mnist, cifar10\b.*'mnst'"):
        read_base("vit:mnst")


def test_user_errors_of_a_config_file_are_raised_unchanged(tmp_path, corpus):
    path = tmp_path / "a.py"
    path.write_text("from tfm.data.config import PairsConfig\ndef get_config():\n  PairsConfig(kind='x')\n")
    with pytest.raises(UserError, match="kind") as error:
        read_base(str(path))
    assert "fails at" not in str(error.value)


def test_error_for_a_folder_as_config_gives_a_hint(tiny_run, tmp_path):
    with pytest.raises(UserError, match=f"{re.escape(str(tiny_run))}/config.json"):
        read_base(str(tiny_run))
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))}.*--config"):
        read_base(str(tmp_path))


def test_text_after_a_file_without_variants_is_the_argument_of_get_config(tmp_path):
    (tmp_path / "sizes.py").write_text(
        "from tfm.configs import quickstart\n\ndef get_config(size='7'):\n"
        "    config = quickstart.get_config()\n    config.training.keep = int(size)\n    return config\n"
    )
    assert read_base(f"{tmp_path}/sizes.py").training.keep == 7
    assert read_base(f"{tmp_path}/sizes.py:5").training.keep == 5
    (tmp_path / "cache.py").write_text(
        "from tfm.configs import quickstart\n\ndef get_config(folder):\n"
        "    config = quickstart.get_config()\n    config.data.cache_dir = folder\n    return config\n"
    )
    assert read_base(f"{tmp_path}/cache.py:a:b").data.cache_dir == "a:b"


def test_shipped_configs_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_base("quickstart").training.steps == 2600
    (tmp_path / "quickstart").mkdir()  # such as the folder of a run
    assert read_base("quickstart").training.steps == 2600
    (tmp_path / "wmt14").write_text("{")  # a file that happens to have the name does not run
    assert read_base("wmt14").data.name == "wmt14_translate/de-en"
    with pytest.raises(UserError, match="wmt14"):
        read_base("./wmt14")


def test_configs_in_an_installed_package_are_found(tmp_path, monkeypatch):
    (tmp_path / "tfm" / "configs").mkdir(parents=True)
    (tmp_path / "tfm" / "configs" / "mine.py").write_text("")
    monkeypatch.setattr(config_files.tfm, "__file__", str(tmp_path / "tfm" / "__init__.py"))
    assert config_files.shipped_configs() == {"mine": str(tmp_path / "tfm" / "configs" / "mine.py")}


def test_config_file_may_import_modules_of_the_current_folder(tmp_path, monkeypatch):
    """The console command has another folder first in sys.path, in contrast to `python FILE`."""
    module = f"sizes_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text("D_MODEL = 48\n")
    text = f"import {module}\nfrom tfm.configs import quickstart\n\n\ndef get_config():\n"
    text += f"    config = quickstart.get_config()\n    config.model.d_model = {module}.D_MODEL\n"
    text += "    return config\n"
    (tmp_path / "own.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert read_base("own.py").model.d_model == 48


@pytest.mark.parametrize("name", config_files.shipped_configs())
def test_shipped_configs_can_be_imported(name):
    module = importlib.import_module(f"tfm.configs.{name}")
    assert os.path.samefile(module.__file__, config_files.shipped_configs()[name])
