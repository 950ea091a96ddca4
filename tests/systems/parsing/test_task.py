"""Tests of the task of parsing: trees from predicted tokens, scores, and commands."""

import io
import json
import shutil
import sys
import types

import numpy as np
import pytest

from tests.support import tiny_trees
from tests.support.tiny import train_run
from tfm.commands import compare, evaluate, export, translate
from tfm.commands.config_files import read_config_file
from tfm.data.sources.opening import read_sides
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.score import score_pairs
from tfm.errors import UserError
from tfm.systems.parsing import task as parsing
from tfm.systems.parsing.treebank import TREEBANK
from tfm.systems.parsing.trees import format_tree, list_leaves, read_trees, restore_tree
from tfm.tasks import translation
from tfm.tasks.translation.pipeline import Hypothesis
from tfm.tasks.translation.task import Translation
from tfm.testing.parameters import random_parameters
from tfm.workdir import runs
from tfm.workdir.translator import Translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with a treebank, and with a trained run in its folder `run`."""
    folder = tmp_path_factory.mktemp("parsing")
    tiny_trees.write_treebank(folder)
    train_run(tiny_trees.make_parsing_config(folder), folder / "run")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return runs.load(str(folder / "run"))


@pytest.fixture
def answers(monkeypatch):
    """Replaces the search. Returns the dict {words: tokens} of the predictions."""
    found = {}

    def predict(self, params, sources, *_):
        return [[Hypothesis(found[source], -1.0)] for source in sources]

    monkeypatch.setattr(Translation, "predict", predict)
    return found


@pytest.mark.long
def test_predicted_tokens_become_a_tree_of_the_words(run, answers):
    answers |= {"He -LRB- sleeps": "(S (NP PRP )NP -LRB- (VP VBZ )VP )S", "": ""}
    expected = ["(TOP (S (NP (PRP He)) (-LRB- -LRB-) (VP (VBZ sleeps))))", ""]
    assert run.task.translate(run.params, ["He ( sleeps", " "]) == expected


@pytest.mark.long
def test_malformed_prediction_is_repaired(run, answers):
    answers["a b"] = "(S (NP NN )VP"
    assert run.task.translate(run.params, ["a b"]) == ["(TOP (S (NP (NN a) (XX b))))"]


@pytest.mark.long
def test_trees_are_scored_in_the_form_that_the_model_predicts(run):
    tree = "(TOP (S (NP (NN a)) (VP (VB b))))"
    (scores,) = run.task.score(run.params, ["a b"], [tree])
    (pieces,) = run.task.tokenizer.encode([run.task.form.read_target(tree)])
    assert len(scores) == len(pieces) + 1  # EOS
    assert len(scores) != len(run.task.tokenizer.encode([tree])[0]) + 1
    traced = "(TOP (S (NP-SBJ-1 (NN a)) (VP (VB b) (NP (-NONE- *)))))"  # training removes these, too
    assert run.task.form.read_target(traced) == run.task.form.read_target(tree)


@pytest.mark.long
def test_report_of_perfect_parses_has_perfect_scores(run, answers):
    answers |= dict(zip(*read_sides(run.task.config.data, "test"), strict=True))
    (report,) = run.task.report(run.variables, "test")
    found = {score.name: score.value for score in report.scores}
    assert found.pop("error sentences") == 0
    assert found == dict.fromkeys(set(run.task.config.SCORES) - {"error sentences"}, 100)
    assert all(example["reference"] == example["parse"] for example in report.examples)
    assert report.outputs == [format_tree(tree) for tree in stored_trees(run, "test")]


@pytest.mark.long
def test_evaluation_of_perfect_parses_has_perfect_scores_and_samples(run, answers):
    """References and hypotheses in samples are bracketed text."""
    data = run.task.open_data()
    answers |= dict(data.validation_pairs)
    scores, samples = run.task.evaluate(run.variables, data)
    assert scores["validation/f1"] == scores["validation/complete_match"] == 100
    assert scores.keys() == {f"validation/{name}" for name in ("nll", "accuracy", "f1", "complete_match")}
    assert samples.rows
    for row in samples.rows:
        assert row["hypothesis"] == row["reference"]
        assert format_tree(next(read_trees([row["reference"]], "a tree"))) == row["reference"]
        assert run.task.form.read_target(row["hypothesis"]) == answers[row["source"]]


@pytest.mark.long
def test_scores_and_samples_read_the_words_as_the_model_does(run, answers):
    """Data in which brackets are not escaped, and blank lines, have the same scores in training."""
    tokens, tree = "(S (NP PRP )NP -LRB- )S", "(TOP (S (NP (PRP He)) (-LRB- -LRB-)))"
    answers |= {"He -LRB-": tokens, "": ""}
    batches = run.task.open_data().validation_batches
    data = types.SimpleNamespace(validation_pairs=[("He (", tokens), (" ", "")], validation_batches=batches)
    scores, samples = run.task.evaluate(run.variables, data)
    assert scores["validation/f1"] == scores["validation/complete_match"] == 100
    assert samples.rows[0] == {"source": "He (", "reference": tree, "hypothesis": tree}


@pytest.mark.long
def test_observed_sentence_is_read_and_written_as_in_a_translation(run):
    observed = run.task.observe(run.variables, "He ( sleeps", 64)
    same = run.task.observe(run.variables, "He -LRB- sleeps", 64)
    assert observed.tracks["source"] == same.tracks["source"]
    assert [observed.result] == run.task.translate(run.params, ["He ( sleeps"])


@pytest.fixture
def report_with_errors(run, answers):
    """Returns a report over five sentences. Three outputs are correct.

    The first output is empty. Its tree has only words, so evalb counts its punctuation. The second output is
    a sentence without phrases. Its only bracket matches.
    """
    answers |= dict(zip(*read_sides(run.task.config.data, "test"), strict=True))
    first, second, *_ = answers
    tags = [token for token in answers[second].split() if token[0] not in "()"]
    answers |= {first: "", second: f"(S {' '.join(tags)} )S"}
    (report,) = run.task.report(run.variables, "test")
    return report


@pytest.fixture
def scores_with_errors(report_with_errors):
    """Returns {name: score} of the report."""
    return {score.name: score for score in report_with_errors.scores}


@pytest.fixture
def brackets(run):
    """Returns the number of brackets of each sentence that evalb counts. Its root is no bracket."""
    spans = map(parsing.list_spans, stored_trees(run, "test"))
    return [sum(node.label != "TOP" for node in nodes) for nodes in spans]


@pytest.mark.long
def test_empty_output_is_an_error_sentence(scores_with_errors):
    assert scores_with_errors["error sentences"].value == 20


@pytest.mark.long
def test_repaired_output_is_not_well_formed(scores_with_errors):
    assert scores_with_errors["well-formed outputs"].value == 80
    assert scores_with_errors["well-formed outputs"].signature == "per cent; repairs: missing tags 1"


@pytest.mark.long
def test_brackets_and_matches_are_counted_without_error_sentences(scores_with_errors, brackets):
    matched = 1 + sum(brackets[2:])
    assert scores_with_errors["complete match"].value == 75
    assert scores_with_errors["bracketing precision"].value == 100
    assert scores_with_errors["bracketing recall"].value == pytest.approx(100 * matched / sum(brackets[1:]))


@pytest.mark.long
def test_f1_of_all_sentences_counts_error_sentences(scores_with_errors, brackets):
    matched = 1 + sum(brackets[2:])
    expected = 200 * matched / (sum(brackets) + matched)
    assert scores_with_errors["bracketing F1, all"].value == pytest.approx(expected)


@pytest.mark.long
def test_scores_in_training_equal_those_of_a_report(run, report_with_errors, scores_with_errors):
    outputs = report_with_errors.outputs
    scores = run.task.score_hypotheses(outputs, *read_sides(run.task.config.data, "test"))
    assert scores == {
        "f1": scores_with_errors["bracketing F1, all"].value,
        "complete_match": scores_with_errors["complete match"].value,
    }


def stored_trees(run, split):
    sources, tokens = read_sides(run.task.config.data, split)
    pairs = zip(tokens, sources, strict=True)
    return [restore_tree(each.split(), words.split()).tree for each, words in pairs]


@pytest.mark.long
def test_score_of_a_tree_is_the_score_of_its_tokens(run):
    params = random_parameters(run.task.model, *np.ones((2, 1, 1), int))
    sentence, tokens = (side[0] for side in read_sides(run.task.config.data, "test"))
    tree = format_tree(restore_tree(tokens.split(), sentence.split()).tree)
    source, target = ([*ids, EOS_ID] for ids in run.task.tokenizer.encode([sentence, tokens]))
    expected = score_pairs(run.task.model, params, [source], [target], run.task.config.decoding)
    np.testing.assert_array_equal(run.task.score(params, [sentence], [tree]), expected)
    with pytest.raises(UserError, match="Expected one tree in each text, got 0 in ''"):
        run.task.score(params, [sentence], [""])


@pytest.mark.long
def test_aligning_a_parse_is_an_error(run):
    with pytest.raises(UserError, match="A parse has no word alignment"):
        Translator(run).align(["a"], ["(NN a)"])


@pytest.mark.long
def test_translate_command_parses_any_line(folder, monkeypatch, capfdbinary):
    """The model has learned almost nothing, but every output is a tree."""
    lines = ["The dog sleeps .", "", "x ( y )\x00 \U0001f600"]
    monkeypatch.setattr(
        sys,
        "stdin",
        types.SimpleNamespace(
            buffer=io.BytesIO("\n".join(lines).encode()), isatty=lambda: False, closed=False
        ),
    )
    translate.main([f"--workdir={folder / 'run'}"])
    found = capfdbinary.readouterr().out.decode().split("\n")[:-1]
    assert len(found) == 3
    assert found[1] == ""
    for line, text in zip(lines, found, strict=True):
        trees = list(read_trees([text], "output"))
        words = [leaf.word for tree in trees for leaf in list_leaves(tree)]
        assert words == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in line.split()]


@pytest.mark.long
def test_evaluated_run_is_exported_with_its_scores(folder, tmp_path, capsys):
    evaluate.main([f"--workdir={folder / 'run'}"])
    out = capsys.readouterr().out
    assert "bracketing F1, all" in out
    lines = (folder / "run" / "test.trees.hypotheses").read_text().splitlines()
    assert len(lines) == tiny_trees.SIZES["test"]
    written = json.loads((folder / "run" / "test.trees.scores.json").read_text())
    assert written["scores"][0]["name"] == "bracketing F1"
    export.main([f"--workdir={folder / 'run'}", f"--output={tmp_path / 'export'}"])
    assert "bracketing F1" in (tmp_path / "export" / "README.md").read_text()
    shutil.rmtree(tmp_path / "export" / "cache", ignore_errors=True)
    translator = Translator.load(str(tmp_path / "export"))
    assert translator.translate(["The dog sleeps ."]) == Translator(runs.load(str(folder / "run"))).translate(
        ["The dog sleeps ."]
    )


@pytest.mark.long
def test_compare_command_rejects_the_task(folder):
    with pytest.raises(UserError, match=r"tfm compare scores translations by BLEU, .* 'parsing'"):
        compare.main([str(folder / "run"), str(folder / "run")])


@pytest.mark.long
def test_defaults_are_those_of_the_paper():
    config = parsing.Config()
    decoding = config.decoding
    assert parsing.Parsing.best == ("validation/f1", "max")
    assert (decoding.beam_size, decoding.length_penalty, decoding.max_extra_tokens) == (21, 0.3, 300)
    assert config.data.vocabulary_size == 16_000
    wsj = read_config_file("configs/parsing_wsj.py")[0]
    assert wsj.decoding == decoding
    assert (wsj.model.encoder_layers, wsj.model.decoder_layers, wsj.model.d_model) == (4, 4, 1024)
    assert wsj.data.kind == TREEBANK


@pytest.mark.parametrize("module", [parsing, translation])
def test_opening_a_run_without_its_tokenizer_is_an_error(module, tmp_path):
    """Opening a run must not learn another tokenizer."""
    with pytest.raises(UserError, match="vocabulary"):
        module.create(module.Config(), str(tmp_path), new=False)
    assert not list(tmp_path.iterdir())
