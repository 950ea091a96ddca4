"""The model card: what it says of the model, and the scores that eval.py left."""

import json
import shutil

import jax
import pytest

from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.errors import UserError
from tfm.export import model_card
from tfm.export.bundle import write_bundle
from tfm.tasks import language_modeling, parsing, translation
from tfm.workdir import runs

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


@pytest.fixture(scope="module")
def run(tiny_run):
    return runs.load(str(tiny_run))


def report(steps):
    """What eval.py writes."""
    return {
        "checkpoints": steps,
        "decoding": {"beam_size": 4, "length_penalty": 0.6},
        "sentences": 1014,
        "sentences_per_second": 3.0,
        "scores": [{"name": "BLEU", "value": 38.357, "signature": SIGNATURE}],
    }


def write_report(folder, content, name="test"):
    (folder / f"{name}.de.scores.json").write_text(json.dumps(content), encoding="utf-8")


def test_the_card_says_what_the_model_is(run, tiny_run, tmp_path):
    write_bundle(run, str(tmp_path / "out"), workdir=str(tiny_run))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    count = sum(x.size for x in jax.tree.leaves(run.params))
    for fact in (
        "# Translation from en to de",
        *("encoder_layers 2", "decoder_layers 3", "d_model 32", "d_ff 40", "heads 4"),
        f"| {count:,}, float32 |",
        f"| {len(run.task.tokenizer)} word pieces",
        "text files `train`, validated on `val`",
        f"| step {run.steps[0]} of 6 |",
        "beam_size 4, length_penalty 0.6, coverage_penalty 0.0, min_length 1, max_extra_tokens 50",
        "Not evaluated.",
        'tfm.Translator.load("FOLDER")',
    ):
        assert fact in card
    assert "stablehlo" not in card
    assert "max_positions" not in card  # a limit of learned positions, which this model has not


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (PairsConfig(kind="table"), "tables `train`, validated on `validation`"),
        (PairsConfig(kind="huggingface", name="a/b:c"), "Hugging Face `a/b:c`, `train`, validated on"),
        (
            PairsConfig(kind="huggingface", directory="/home/me/set"),
            "a saved data set, `train`, validated on",
        ),
        (DocumentsConfig(kind="table"), "tables, `train`, validated on `validation`, as bytes"),
        (DocumentsConfig(kind="huggingface", name="a/b"), "Hugging Face `a/b`, `train`, validated on"),
        (DocumentsConfig(kind="huggingface", directory="/home/me/set"), "a saved data set, `train`"),
    ],
)
def test_the_card_says_where_the_data_are_from(data, told):
    """And no folder of the machine that trained."""
    task = translation if isinstance(data, PairsConfig) else language_modeling
    settings = task.Config(data=data).without_paths()
    pieces = 20 if task is translation else None
    card = model_card.write(settings, [1], 10, pieces, {}, ())
    assert told in card
    assert "/home/me" not in card


def test_the_card_names_another_task():
    card = model_card.write(parsing.Config().without_paths(), [1], 10, 20, {}, ())
    assert card.startswith("# A model of the task parsing\n")
    assert "| source and target | words, trees |" in card


def test_the_card_has_scores_and_signatures(run, tiny_run, tmp_path):
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    write_report(workdir, report(run.steps), "test")
    write_report(workdir, report([2, 4]), "validation")
    write_report(workdir, report(run.steps) | {"ensemble": True}, "together")
    (workdir / "test.fr.scores.json").write_text("of another language")
    write_bundle(run, str(tmp_path / "out"), workdir=str(workdir))
    scores = (tmp_path / "out" / "README.md").read_text().partition("## Scores")[2].partition("## Load")[0]
    test, together, validation = scores.split("Split ")[1:]
    assert "(not the parameters exported here)" in together
    for part in (test, validation):
        assert f"- BLEU: **38.36** `{SIGNATURE}`" in part
        assert "1,014 examples" in part
        assert "beam_size 4, length_penalty 0.6" in part
    assert test.startswith(f"`test`, 1,014 examples, step {run.steps[0]};")
    assert validation.startswith("`validation`, ")
    assert "(not the" not in test
    assert "mean of steps 2, 4 (not the parameters exported here)" in validation
    assert "Not evaluated" not in scores


def test_the_card_names_split_and_evaluation(tmp_path):
    write_report(tmp_path, report([6]) | {"split": "test"}, "averaged")
    reports = model_card.read_reports(str(tmp_path), "de")
    assert list(reports) == ["averaged"]
    assert reports["averaged"]["split"] == "test"


@pytest.mark.parametrize("content", [{"scores": []}, report([1]) | {"scores": [{"name": "BLEU"}]}, [1]])
def test_what_is_no_report_is_refused(content, tmp_path):
    write_report(tmp_path, content)
    with pytest.raises(UserError, match=r"test\.de\.scores\.json"):
        model_card.read_reports(str(tmp_path), "de")
