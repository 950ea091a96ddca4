"""Tests of the names in `training.trackers`, of missing packages, and of user-defined trackers."""

import importlib.util

import pytest

from tests.support.processes import run_python
from tests.support.tracked_regression import NAME, Memory, train_tracked
from tfm import config
from tfm.commands.overrides import override
from tfm.errors import UserError
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.training.trackers import PACKAGES, find_tracker


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("wanbd",), r"training\.trackers .*'wandb'.*, got 'wanbd'"),
        (("wandb", "wandb"), r"training\.trackers.*got 'wandb' twice"),
        ((3,), r"each of training\.trackers must be of type str"),
    ],
)
def test_wrong_names_are_errors(names, message):
    with pytest.raises(UserError, match=message):
        TrainingConfig(trackers=names)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_error_for_a_missing_package_names_the_extra(name, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == name else real(each))
    advice = r"pip install -e '\.\[tracking\]'"
    with pytest.raises(UserError, match=rf"package {name} is not installed: .*{advice}"):
        train_tracked(tmp_path, "tensorboard", name)
    assert list(tmp_path.iterdir()) == []


def test_folder_with_the_name_of_the_package_is_no_package(monkeypatch, tmp_path):
    """Offline runs leave a folder wandb, which Python can import as a namespace package."""
    (tmp_path / "no_such_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PACKAGES, "wandb", "no_such_package")
    assert importlib.util.find_spec("no_such_package")
    with pytest.raises(UserError, match="no_such_package is not installed"):
        find_tracker("wandb")


def test_user_defined_tracker_must_have_all_methods():
    assert find_tracker(NAME) is Memory
    with pytest.raises(UserError, match="it has no log_config"):
        find_tracker("tests.support.tracked_regression:SampledRegression")


def test_user_defined_tracker_in_an_override_is_imported(monkeypatch):
    monkeypatch.setattr(config.names, "allowed_modules", set())
    with pytest.raises(UserError, match="give --import=tests"):
        find_tracker(NAME)
    override(Config(), [f"--config.training.trackers='tensorboard',\"{NAME}\""])
    assert find_tracker(NAME) is Memory


def test_dotted_names_of_a_config_contain_user_defined_trackers():
    made = config.to_config_dict(TrainingConfig(trackers=("tensorboard", NAME)))
    assert config.dotted_names(made) == [NAME]


@pytest.mark.long
def test_training_and_translation_do_not_import_unused_packages():
    code = (
        "import sys, tfm, tfm.commands.train, tfm.commands.translate, tfm.training.loop\n"
        "found = {'wandb', 'mlflow', 'tensorboardX', 'matplotlib', 'scipy', 'sacrebleu'} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr.decode()
