"""Tests of the custom system of docs/add_a_system.md and of its variants."""

import contextlib
import importlib
import json
import re
import shlex
import sys

import numpy as np
import pytest

from tests.support.comparison import assert_trees_equal
from tests.support.pages import BLOCK, run_block
from tests.support.paths import ROOT
from tfm import config
from tfm.commands import evaluate, export, train, visualize
from tfm.errors import UserError
from tfm.testing.tasks import TaskContract
from tfm.training.run_log import read_metrics
from tfm.workdir import runs

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "add_a_system.md").read_text(encoding="utf-8")
BLOCKS = [code for code, _ in BLOCK.findall(PAGE)]
# {path: content} of the files of the page, whose first line is a comment with the path.
FILES = {match[1]: code for code in BLOCKS if (match := re.match(r"# (\w+/\w+\.py)\n", code))}
CONFIG = "--config=which_language/small.py"
SHORT = ["--config.training.steps=40", "--config.training.eval_every=20", "--config.training.log_every=10"]
SHORT += ["--config.training.checkpoint_every=20", "--config.training.warmup_steps=5"]


def commands(name):
    """Returns the arguments of each command `tfm NAME` of the page."""
    lines = PAGE.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith(f"tfm {name} ")]


def is_on_the_page(module):
    """Returns whether a module is in one of the folders whose files the page shows."""
    return module.partition(".")[0] in {path.partition("/")[0] for path in FILES}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Returns the current folder, which contains the files of the page and a run of 40 steps."""
    folder = tmp_path_factory.mktemp("own")
    for path, content in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    with contextlib.chdir(folder):
        train.main(commands("train")[0] + SHORT)
        yield folder
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    for name in filter(is_on_the_page, list(sys.modules)):
        del sys.modules[name]
    config.names.allowed_modules -= set(filter(is_on_the_page, config.names.allowed_modules))


def test_custom_system_trains(folder):
    rows = read_metrics(str(folder / "runs" / "language"))
    accuracies = [row["validation/accuracy"] for row in rows if "validation/accuracy" in row]
    assert len(accuracies) == 2
    assert accuracies[-1] > 0.6
    assert all("train/sentences_per_second" in row for row in rows if "train/loss" in row)


def test_custom_system_is_evaluated(folder, capsys):
    evaluate.main([*commands("evaluate")[0], "--samples=1"])
    printed = capsys.readouterr().out
    assert "test: 2,000 examples, step 40" in printed
    assert printed.count("language ") == 1
    run = folder / "runs" / "language"
    assert set((run / "test.language.hypotheses").read_text().splitlines()) == {"English", "German"}
    (score,) = json.loads((run / "test.language.scores.json").read_text())["scores"]
    assert score["name"] == "accuracy"
    assert score["value"] > 60


def test_custom_system_resumes_exactly():
    command = [CONFIG, "--workdir=broken", *SHORT]
    train.main([*command, "--config.training.steps=20"])
    train.main(command)
    whole, broken = (runs.load(each, checkpoint="last") for each in ("runs/language", "broken"))
    assert whole.steps == broken.steps == [40]
    assert_trees_equal(whole.params, broken.params)


def test_custom_system_is_visualized_exported_and_warm_started(folder):
    run = folder / "runs" / "language"
    visualize.main([f"--workdir={run}", "--import=which_language"])
    assert [path.name for path in (run / "figures").glob("*.png")] == ["curves.png"]
    export.main([f"--workdir={run}", "--output=exported", "--import=which_language"])
    exported, trained = runs.load("exported"), runs.load(str(run))
    assert_trees_equal(exported.params, trained.params)
    card = (folder / "exported" / "README.md").read_text()
    assert r"A model of the task which\_language.task:TASK" in card
    assert "allow_modules(['which_language.task'])\nrun = runs.load(" in card
    assert "tfm evaluate --workdir=FOLDER --import=which_language.task\n" in card
    train.main([CONFIG, "--workdir=warm", "--warm_start=exported", *SHORT[1:-1],
                "--config.training.steps=1", "--config.training.warmup_steps=1"])  # fmt: skip
    assert runs.load("warm", checkpoint="last").steps == [1]


def test_changed_code_of_a_custom_system_is_noticed_in_its_run_and_export(folder, caplog):
    export.main(["--workdir=runs/language", "--output=unchanged", "--import=which_language"])
    for name in ("runs/language", "unchanged"):
        runs.load(name)
    assert "has changed" not in caplog.text
    path = folder / "which_language" / "task.py"
    code = path.read_text(encoding="utf-8")
    path.write_text(f"{code}\n# changed\n", encoding="utf-8")
    try:
        for name in ("runs/language", "unchanged"):
            caplog.clear()
            runs.load(name)
            assert f"The code of which_language.task has changed since {name} was written" in caplog.text
        caplog.clear()
        train.main([CONFIG, "--workdir=broken", *SHORT, "--config.training.steps=41"])
        assert "The code of which_language.task has changed since the last start" in caplog.text
    finally:
        path.write_text(code, encoding="utf-8")


def test_custom_system_may_copy_and_freeze_a_part_of_another_run():
    (command,) = [command for command in commands("train") if "--workdir=runs/part" in command]
    train.main([*command, "--config.training.steps=1", "--config.training.warmup_steps=1"])
    old, new = (runs.load(each, checkpoint="last").params for each in ("runs/language", "runs/part"))
    kept = {"Layer_0", "MultiHeadAttention_0", "FeedForward_0"}
    assert set(new) == {*kept, "Embed_0", "Dense_0"}
    assert_trees_equal({name: old[name] for name in kept}, {name: new[name] for name in kept})
    assert not np.array_equal(old["Embed_0"]["embedding"], new["Embed_0"]["embedding"])


def test_variant_of_the_page_trains_resumes_and_is_exported():
    (command,) = [command for command in commands("train") if any("hidden:TASK" in flag for flag in command)]
    for steps in (1, 2):
        fields = [f"--config.training.steps={steps}", "--config.training.warmup_steps=1"]
        train.main([*command, "--import=which_language", *fields])
    run = runs.load("runs/hidden", checkpoint="last")
    assert run.steps == [2]
    assert type(run.task).__name__ == "HideLetters"
    export.main(["--workdir=runs/hidden", "--output=hidden_export", "--import=which_language"])


def test_model_of_the_page_classifies_the_pictures_of_a_config(capsys):
    (command,) = [command for command in commands("train") if "--workdir=runs/pixels" in command]
    train.main([*command, "--config.training.steps=20", "--config.training.warmup_steps=1"])
    (command,) = [command for command in commands("evaluate") if "--workdir=runs/pixels" in command]
    evaluate.main([*command, "--samples=0"])
    assert "test: 359 examples, step 20" in capsys.readouterr().out
    assert runs.load("runs/pixels").task.config.model.hidden == 128


TASKS = {"page": lambda folder: importlib.import_module("which_language.task").Config()}


class TestTaskOfThePage(TaskContract):
    cases = TASKS
    test_examples = 2000


def test_test_class_of_the_page_has_the_tests_of_the_contract():
    names = {}
    (block,) = [code for code in BLOCKS if "LanguageModelContract" in code]
    run_block(block, "docs/add_a_system.md", names)
    assert names["TestMyModel"]().first().config.layers == 1


def test_custom_system_has_a_dry_run(capsys):
    train.main([CONFIG, "--workdir=dry", "--dry_run"])
    assert "not measured here yet" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"config\.model\.featurs does not exist; did you mean 'features'"):
        train.main([CONFIG, "--workdir=x", "--config.model.featurs=3"])
