"""Tests of the model card: the description of the model, its data and its scores."""

import json
import re
import shutil

import jax
import pytest

from tests.support.records import write_record
from tfm import tasks
from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.evaluation.score import Score
from tfm.export import model_card
from tfm.export.write import write_bundle
from tfm.huggingface.tokenizer_file import make_word_tokenizer
from tfm.systems.parsing import task as parsing
from tfm.systems.parsing.treebank import TREEBANK
from tfm.tasks import language_modeling, translation
from tfm.workdir import runs

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


@pytest.fixture(scope="module")
def run(tiny_run):
    return runs.load(str(tiny_run))


def write_evaluation(folder, checkpoints, name="test", **fields):
    """Writes a record as `tfm evaluate` does."""
    scores = [Score("BLEU", 38.357, SIGNATURE)]
    fields = {"split": name, "scores": scores, "checkpoints": checkpoints} | fields
    write_record(folder / f"{name}.de.scores.json", **fields)


def plain(path):
    """Returns the text of a card without the backslashes that keep Markdown from formatting it."""
    return re.sub(r"\\([_|])", r"\1", path.read_text(encoding="utf-8"))


@pytest.mark.long
def test_card_describes_the_model(run, tiny_run, tmp_path):
    write_bundle(run, str(tmp_path / "out"), workdir=str(tiny_run))
    card = plain(tmp_path / "out" / "README.md")
    count = sum(x.size for x in jax.tree.leaves(run.params))
    for fact in (
        "# Translation from en to de",
        *("encoder_layers 2", "decoder_layers 3", "d_model 32", "d_ff 40", "heads 4"),
        f"| {count:,}, float32 |",
        f"| {len(run.task.tokenizer)} word pieces",
        "text files, train, validated on val",
        f"| step {run.steps[0]} of 6 |",
        "beam_size 4, length_penalty 0.6, coverage_penalty 0.0, min_length 1, max_extra_tokens 50",
        "Not evaluated.",
        'tfm.Translator.load("FOLDER")',
    ):
        assert fact in card
    assert "max_positions" not in card  # applies only to models with learned positions


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (PairsConfig(kind="table"), "tables, train, validated on validation"),
        (PairsConfig(kind="tfds", name="a/b"), "TFDS a/b, train, validated on validation"),
        (PairsConfig(kind="builtin"), "the built-in language of tfm, train, validated on"),
        (PairsConfig(kind="huggingface", name="a/b:c"), "Hugging Face a/b:c, train, validated on"),
        (
            PairsConfig(kind="huggingface", directory="/home/me/set"),
            "a saved data set, train, validated on",
        ),
        (PairsConfig(kind="tfds", name="a/b", train="a|b"), r"| data | TFDS a/b, a\|b, validated on"),
        (PairsConfig(kind=TREEBANK), f"| data | {TREEBANK}, train, validated on validation |"),
        (
            DocumentsConfig(kind="builtin", name="pydoc_topics"),
            "the built-in pydoc_topics, train, validated",
        ),
        (DocumentsConfig(kind="table"), "tables, train, validated on validation, as bytes"),
        (DocumentsConfig(kind="huggingface", name="a/b"), "Hugging Face a/b, train, validated on"),
        (DocumentsConfig(kind="huggingface", directory="/home/me/set"), "a saved data set, train"),
    ],
)
def test_card_names_the_source_of_the_data_without_local_folders(data, source):
    task = translation if isinstance(data, PairsConfig) else language_modeling
    settings = task.Config(data=data).without_paths()
    tokenizer = range(20) if task is translation else None
    card = model_card.write(settings, [1], 10, tokenizer, {})
    assert source in card.replace("\\_", "_")
    assert "/home/me" not in card


def test_card_tells_a_vocabulary_of_each_side_from_a_joint_one():
    """An import of fairseq may have a dictionary of words for each side."""
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    source, tokenizer = (
        TokenizerJson(json.dumps(make_word_tokenizer(special | words)).encode())
        for words in ({"house": 4, "tree": 5}, {"Haus": 4})
    )
    tokenizer.source = source
    card = model_card.write(translation.Config(), [1], 10, tokenizer, {})
    assert "| vocabulary | 6 tokens of sources, 5 of targets |" in card
    assert "SentencePiece" not in card


def test_card_names_the_task():
    card = model_card.write(parsing.Config().without_paths(), [1], 10, range(20), {})
    assert card.startswith("# A model of the task parsing\n")
    assert "| source and target | words, trees |" in card
    assert "Attention Is All You Need" not in card  # the model may be recurrent


def test_fields_that_are_not_set_are_left_out():
    """`decoding.dtype` is empty unless the user sets it, and so are the means of pixels."""
    card = model_card.write(translation.Config().without_paths(), [1], 10, range(20), {})
    decoding = next(line for line in card.split("\n") if line.startswith("| decoding by default"))
    assert decoding.endswith(r"max\_input 256, overflow split |")
    assert r"coverage\_penalty 0.0" in decoding
    card = model_card.write(tasks.find("detection").Config().without_paths(), [1], 10, None, {})
    model = next(line for line in card.split("\n") if line.startswith("| architecture"))
    assert model.endswith(r"backbone\_stem imagenet |")


def test_card_of_imported_parameters_names_no_data_and_no_steps():
    """The config of an import has the default data, on which its parameters were not trained."""
    card = model_card.write(translation.Config().without_paths(), [0], 10, range(20), {})
    assert r"| training | none, because the parameters were imported or --warm\_start took them |" in card
    assert "| data |" not in card


def test_card_names_the_files_of_the_task():
    card = model_card.write(
        tasks.find("text_classification").Config().without_paths(),
        [1],
        10,
        None,
        {},
        assets={"vocabulary.model": "", "labels.json": ""},
    )
    assert card.endswith(r"Files of the task: `labels.json`, `vocabulary.model`." + "\n")


def test_card_has_scores_with_their_signatures(run, tiny_run, tmp_path):
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    write_evaluation(workdir, run.steps)
    write_evaluation(workdir, [2, 4], "validation")
    write_evaluation(workdir, run.steps, "together", ensemble=True)
    (workdir / "test.fr.scores.json").write_text("of another language")
    write_bundle(run, str(tmp_path / "out"), workdir=str(workdir))
    scores = plain(tmp_path / "out" / "README.md").partition("## Scores")[2].partition("## Load")[0]
    test, together, validation = scores.split("Split ")[1:]
    assert "(not the parameters exported here)" in together
    for part in (test, validation):
        assert f"| BLEU | 38.36 | {SIGNATURE} |" in part
        assert "1,014 examples" in part
        assert "beam_size 4, length_penalty 0.6" in part
    assert test.startswith(f"test, 1,014 examples, step {run.steps[0]};")
    assert validation.startswith("validation, ")
    assert "(not the" not in test
    assert "mean of steps 2, 4 (not the parameters exported here)" in validation
    assert "Not evaluated" not in scores


def test_records_keep_the_split_and_the_name_of_the_evaluation(tmp_path):
    write_evaluation(tmp_path, [6], "averaged", split="test")
    records = model_card.read_records(str(tmp_path), "de")
    assert {name: record.split for name, record in records.items()} == {"averaged": "test"}


HOSTILE = "a\n# Heading\n<script>x</script> [link](http://evil.example) www.evil.example `code` \x1b[31m | b"


def test_texts_of_others_in_a_card_are_shown_as_they_are(tmp_path):
    write_evaluation(
        tmp_path, [6], scores=[Score(HOSTILE, 1.0, HOSTILE)], decoding={HOSTILE: HOSTILE}, split=HOSTILE
    )
    records = model_card.read_records(str(tmp_path), "de")
    config = translation.Config(data=PairsConfig(kind="table", train=HOSTILE)).without_paths()
    card = model_card.write(config, [6], 10, range(20), records)
    assert "evil" in card
    for markup in ("# Heading\n", "\n# Heading", "<script", "http://evil", "www.evil", "\x1b"):
        assert markup not in card, markup
    assert not re.search(r"(?<!\\)\[link", card)
    assert not re.search(r"(?<!\\)`code", card)
