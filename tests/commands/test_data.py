"""Tests of `tfm data`: reports of pairs and documents, with and without a run."""

import dataclasses
import json
from collections import Counter

import pytest
from PIL import Image

from tests.support import tiny_regression
from tests.support.boxed_pictures import write_yolo
from tests.support.commands import run_command
from tests.support.tiny import make_config, write_config_file, write_corpus
from tests.support.tiny_lm import make_lm_config, write_documents
from tests.support.workdirs import make_workdir, write_start
from tfm.commands import data
from tfm.config import save
from tfm.data.config import ImagesConfig
from tfm.data.images import open_images
from tfm.data.inspection import make_histogram
from tfm.errors import UserError
from tfm.tasks import image_classification, language_modeling, translation
from tfm.workdir import runs
from tfm.workdir.starts import record_start


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path, sizes=(("train", 60), ("val", 10)))
    return tmp_path


def read_json(capsys, *arguments):
    data.main([*arguments, "--format=json"])
    return json.loads(capsys.readouterr().out)


def make_run(folder, config, task):
    """Writes a run folder with a tokenizer, as before the first step of training."""
    workdir = folder / "run"
    workdir.mkdir()
    save(config, runs.config_path(str(workdir)))
    return str(workdir), task.create(config, str(workdir)).tokenizer


@pytest.mark.parametrize(
    ("content", "problem"), [("one line\n", "test.en has 1 lines"), ("", "test.en is empty")]
)
def test_damaged_test_split_is_an_error(corpus, content, problem):
    (corpus / "test.en").write_text(content)
    (corpus / "test.de").write_text("eins\nzwei\n")
    with pytest.raises(UserError, match=problem):
        data.main([f"--config={write_config_file(corpus, make_config(corpus))}"])


def test_report_without_a_run_counts_words(corpus, capsys):
    path = write_config_file(corpus, make_config(corpus))
    for name in ("en", "de"):
        (corpus / f"val.{name}").write_text((corpus / f"train.{name}").read_text())
    train, validation = read_json(capsys, f"--config={path}")  # the test split is missing
    words = (corpus / "train.en").read_text().split()
    assert (train["rows"], train["sides"][0]["words"], train["sides"][0]["unit"]) == (60, len(words), "words")
    assert train["overlap"] is train["sides"][0]["unknown"] is None
    assert validation["overlap"] == {"rows": 60, "sources": 60}
    assert validation["hints"][-1].startswith("60 rows are also in the training split")
    data.main([f"--config={path}"])
    shown = capsys.readouterr().out
    assert "train: 60 pairs\n" in shown
    assert "overlap     60 rows and 60 sources are also in the training split\n" in shown
    assert "hint: 60 rows are also" in shown
    counts = train["sides"][0]["histogram"]
    longest = max(counts, key=counts.get)
    assert f"    {longest:<12}{counts[longest]:>12,} {'#' * data.BAR}\n" in shown


def test_overlap_is_computed_with_the_training_split_in_any_order(corpus, capsys):
    for name in ("en", "de"):
        lines = (corpus / f"train.{name}").read_text().splitlines(keepends=True)
        (corpus / f"val.{name}").write_text("".join(["new\n", *lines[:3]]))
        (corpus / f"test.{name}").write_text("new\n")
    path = write_config_file(corpus, make_config(corpus))
    splits = [f"--split={name}" for name in ("test", "validation", "train")]
    found = {split["name"]: split["overlap"] for split in read_json(capsys, f"--config={path}", *splits)}
    assert found == {
        "train": None,
        "validation": {"rows": 3, "sources": 3},
        "test": {"rows": 0, "sources": 0},
    }


def test_report_of_a_run_counts_tokens(corpus, capsys):
    config = make_config(corpus)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, max_length=12))
    workdir, tokenizer = make_run(corpus, config, translation)
    (corpus / "val.de").write_text("☃ rot\n" * 10)
    train, validation = read_json(capsys, f"--workdir={workdir}")
    lengths = (len(ids) + 1 for ids in tokenizer.encode((corpus / "train.de").read_text().splitlines()))
    assert train["sides"][1]["histogram"] == make_histogram(Counter(lengths))
    assert train["sides"][1]["unit"] == "tokens"
    assert validation["sides"][1]["unknown"] == [["☃", 10]]
    data.main([f"--workdir={workdir}", "--split=val"])
    shown = capsys.readouterr().out
    assert "unknown     1 ☃(10)\n" in shown
    assert shown.startswith("val: 10 pairs\n")
    path = write_config_file(corpus, config)
    assert read_json(capsys, f"--config={path}", f"--workdir={workdir}") == [train, validation]


def test_only_changed_data_of_the_run_itself_give_a_warning(corpus, caplog):
    config = make_config(corpus)
    workdir, _ = make_run(corpus, config, translation)
    identity = {split: translation.fingerprint(config, split) for split in ("train", "validation")}
    record_start(workdir, config, identity, step=0)
    other = corpus / "other"
    other.mkdir()
    write_corpus(other, sizes=(("train", 30), ("val", 5)))
    data.main([f"--workdir={workdir}", f"--config={write_config_file(other, make_config(other))}"])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    write_corpus(corpus, sizes=(("val", 20),))
    data.main([f"--workdir={workdir}"])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["validation" in message for message in warnings] == [True]


def test_documents_are_reported(tmp_path, capsys):
    write_documents(tmp_path)
    config = make_lm_config(tmp_path)
    workdir, _ = make_run(tmp_path, config, language_modeling)
    train, validation, test = read_json(capsys, f"--workdir={workdir}")
    assert (train["rows"], len(train["sides"])) == (60, 1)
    assert (validation["name"], validation["rows"], test["rows"]) == ("validation", 7, 8)
    data.main([f"--workdir={workdir}", "--split=train"])
    assert "train: 60 documents\n" in capsys.readouterr().out


@pytest.mark.long
def test_data_that_cannot_be_reported_are_errors(corpus, capsys):
    own = corpus / "own.json"
    save(tiny_regression.make_config(), str(own))
    with pytest.raises(UserError, match=r"cannot read the data of the task 'tests\.support\.tiny_regression"):
        data.main([f"--config={own}"])
    path = write_config_file(corpus, make_config(corpus))
    with pytest.raises(UserError, match=r"dev\.en"):
        data.main([f"--config={path}", "--split=dev"])
    (corpus / "val.de").write_bytes(b"")
    with pytest.raises(UserError, match=r"val\.de is empty"):
        data.main([f"--config={path}"])
    (corpus / "lm").mkdir()
    save(make_lm_config(corpus), runs.config_path(str(corpus / "lm")))
    with pytest.raises(UserError, match="has the task 'language_modeling', but the config has 'translation'"):
        data.main([f"--config={path}", f"--workdir={corpus / 'lm'}"])
    assert capsys.readouterr().out == ""


def test_neither_config_nor_run_is_an_error():
    with pytest.raises(UserError, match=r"--config=FILE.*--workdir=DIR"):
        data.main([])


@pytest.fixture
def picture_run(tmp_path):
    """Returns the folder of a run that classifies pictures, and has begun."""
    write_pictures(tmp_path, "train", count=3)
    write_pictures(tmp_path, "validation", count=2)
    images = ImagesConfig(kind="folder", directory=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    config = image_classification.Config(data=images)
    (tmp_path / "run").mkdir()
    save(config, runs.config_path(str(tmp_path / "run")))
    identity = {split: open_images(images, split).fingerprint for split in ("train", "validation")}
    write_start(tmp_path / "run", config, identity, step=1)
    return tmp_path / "run"


def write_pictures(folder, split, count):
    for name in ("cat", "dog"):
        (folder / split / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("L", (8, 8), number).save(folder / split / name / f"{number}.png")


def test_pictures_that_a_run_has_not_seen_are_a_warning(picture_run, capsys, caplog):
    data.main([f"--workdir={picture_run}"])
    assert "validation: 4 images of 2 classes" in capsys.readouterr().out
    assert "has changed" not in caplog.text
    write_pictures(picture_run.parent, "validation", count=3)
    data.main([f"--workdir={picture_run}"])
    assert "validation: 6 images of 2 classes" in capsys.readouterr().out
    (warning,) = [each.getMessage() for each in caplog.records if "has changed" in each.getMessage()]
    assert warning.startswith("The content of validation has changed since the last start")


def test_pictures_with_a_run_of_another_task_are_an_error(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    with pytest.raises(UserError, match="but the config has 'image_classification'"):
        data.main(["--config=vit", f"--workdir={workdir}"])


def test_named_test_split_that_is_missing_is_an_error(tmp_path):
    for split in ("train", "validation"):
        write_pictures(tmp_path, split, 2)
    flags = ["--config=vit", "--config.data.kind=folder", f"--config.data.directory={tmp_path}"]
    data.main(flags)  # nobody named the test split
    with pytest.raises(UserError, match="tset"):
        data.main([*flags, "--config.data.test=tset"])


def test_control_codes_in_names_of_classes_do_not_reach_the_terminal(tmp_path):
    """The names come from the file of somebody else, and a terminal would execute their codes."""
    write_yolo(tmp_path, yaml='names: ["\\e[31m\\u202ecat", dog]')
    flags = ["--config=configs/detr.py", "--config.data.kind=yolo", f"--config.data.directory={tmp_path}"]
    result = run_command("data", *flags, "--split=small")
    assert result.code == 0
    assert "\\x1b[31m\\u202ecat" in result.output
    assert all(character.isprintable() or character == "\n" for character in result.output + result.error)
