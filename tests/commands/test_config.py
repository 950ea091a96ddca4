"""Tests of `tfm config`: the fields of a config as flags, and the difference of two configs."""

import pytest

from tests.support.workdirs import make_workdir
from tfm.commands import config as config_command
from tfm.commands.config_files import read_config_file, shipped_configs
from tfm.commands.overrides import override
from tfm.errors import UserError


@pytest.fixture
def workdir(tmp_path):
    return make_workdir(tmp_path / "run")


def shown(capsys, *argv):
    config_command.main(argv)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", [*shipped_configs(), "table3_small:big", "vit:cifar10"])
@pytest.mark.parametrize("changed", [False, True])
def test_shown_flags_restore_the_config(name, changed, tmp_path, capsys):
    """The flags are applied to the default config of the task."""
    chosen = config_command.read(name)
    lines = shown(capsys, "show", name, *["--changed"] * changed)
    base = tmp_path / "base.py"
    base.write_text(
        "from tfm import tasks\nfrom tfm.config import to_config_dict\n"
        f"def get_config():\n    return to_config_dict(tasks.find({chosen.task!r}).Config())\n"
    )
    lines = [line for line in lines if line.startswith("--") and not line.startswith("--config.task=")]
    assert override(read_config_file(str(base))[0], lines).config == chosen


def test_default_config_has_no_changed_fields(tmp_path, capsys):
    (tmp_path / "base.py").write_text(
        "from tfm.tasks.translation import Config\nfrom tfm.config import to_config_dict\n"
        "def get_config():\n    return to_config_dict(Config())\n"
    )
    assert shown(capsys, "show", "--changed", str(tmp_path / "base.py")) == ["no field differs"]


def test_diff_shows_both_values_of_a_field(capsys):
    lines = shown(capsys, "diff", "table3_small", "table3_small:C-d1024")
    assert lines == ["model.d_model: 32 -> 64"]
    lines = shown(capsys, "diff", "quickstart", "quickstart_rnn")
    assert lines[0] == "model.name: transformer -> rnn_seq2seq"
    assert "model.d_ff: 512 -> -" in lines
    assert "model.cell: - -> gru" in lines


def test_folder_of_a_run_is_accepted_as_a_config(workdir, capsys):
    assert "--config.training.steps=100" in shown(capsys, "show", str(workdir))
    assert shown(capsys, "diff", str(workdir), str(workdir / "config.json")) == ["no field differs"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show"], "Expected show|diff CONFIG"),
        (["show", "quickstart", "quickstart"], "Expected show CONFIG or diff CONFIG CONFIG"),
        (["diff", "quickstart"], "Expected show CONFIG or diff CONFIG CONFIG"),
        (["print", "quickstart"], "Expected show CONFIG or diff CONFIG CONFIG"),
        (["diff", "--changed", "quickstart", "quickstart"], "--changed is only for show"),
        (["show", "none"], "Expected a config file at none"),
    ],
)
def test_mistakes_are_errors(argv, message):
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        config_command.main(argv)
