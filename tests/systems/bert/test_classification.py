"""Tests of labels, tags and pairs of texts, and of models that begin with pretrained parameters."""

import dataclasses
import logging

import jax
import numpy as np
import pytest

from tests.support import labelled_texts
from tests.support.commands import run_command
from tests.support.comparison import assert_trees_equal
from tests.support.labelled_texts import BERT, make_config, write_tables
from tests.support.tiny import train_run
from tests.tasks.cases import TASKS
from tfm import tasks
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.datasets.toy_language import NOUN_TAGS
from tfm.decoding.batches import few_widths
from tfm.errors import UserError
from tfm.interpret.observation import MAX_TOKENS, observe
from tfm.interpret.words import split_words
from tfm.systems.bert import classification as text_classification
from tfm.systems.bert import pretraining as masked_language_modeling
from tfm.systems.bert.builtin_labels import noun_genders, parallel, pronouns, translations
from tfm.systems.bert.labelled_texts import LabelledConfig, encode_rows
from tfm.systems.bert.masked_pairs import SentencesConfig, join_texts
from tfm.testing.tasks import TRAINING
from tfm.workdir.warm_start import load_variables

TOKENIZER = Characters()
NAMES = ["no", "yes"]


def encode(rows, max_length=20, names=NAMES, has_tags=False):
    return encode_rows(rows, TOKENIZER, names, max_length, has_tags)


def ids(text):
    return TOKENIZER.encode([text])[0]


def test_a_text_has_its_label_at_bos():
    ((tokens, types, labels, weights),) = encode([("ab", "yes")])
    assert tokens.tolist() == [BOS_ID, *ids("ab"), EOS_ID]
    assert types.tolist() == [0, 0, 0, 0]
    assert (labels.tolist(), weights.tolist()) == ([1, 0, 0, 0], [1, 0, 0, 0])


def test_a_pair_of_texts_has_two_types_and_is_cut_to_the_row():
    ((tokens, types, *_),) = encode([("a" * 30, "bcd", "no")], max_length=12)
    assert tokens.tolist() == [BOS_ID, *ids("a" * 6), EOS_ID, *ids("bcd"), EOS_ID]
    assert types.tolist() == [0] * 8 + [1] * 4


def test_the_first_token_of_a_word_has_its_tag():
    ((tokens, _, labels, weights),) = encode([("ab  c de", "yes - no")], has_tags=True)
    assert tokens.tolist() == [BOS_ID, *ids("ab c de"), EOS_ID]
    assert labels.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert weights.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("has_lines", [False, True])
def test_words_with_tags_have_the_pieces_that_they_have_in_their_text(has_lines, tmp_path):
    words = list(labelled_texts.TAGS)
    tokenizer = learn_word_pieces([" ".join(words)] * 9, 290, str(tmp_path / "model"), has_lines=has_lines)
    text = "dog the unseen dog"
    ((tokens, _, _, weights),) = encode_rows([(text, "no no no no")], tokenizer, NAMES, 40, True)
    assert tokens[1:-1].tolist() == tokenizer.encode([text])[0]
    assert weights[1:-1].tolist() == tokenizer.word_starts(tokens[1:-1])


@pytest.mark.parametrize(
    ("row", "has_tags", "message"),
    [
        (("a", "perhaps"), False, r"no, yes.*'perhaps'"),
        (("a b", "yes perhaps"), True, r"no, yes.*'perhaps'"),
        (("a b c", "yes no"), True, r"3 words of row 2, 'a b c', got 2 tags: 'yes no'"),
        (("a" * 30, "yes"), True, r"data\.max_length \(20\).*row 2 has 32.*data\.max_length=32"),
    ],
)
def test_labels_that_do_not_fit_are_an_error(row, has_tags, message):
    with pytest.raises(UserError, match=message):
        encode([("a", "yes"), row], has_tags=has_tags)


def test_labels_that_training_does_not_have_are_an_error_before_the_first_step(tmp_path):
    write_tables(tmp_path)
    table = (tmp_path / "test.tsv").read_text()
    (tmp_path / "test.tsv").write_text(table.replace("yes", "perhaps"))
    config = make_config(tmp_path, dataclasses.replace(BERT, head="classes"))
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"has no, yes; the split 'test' also has perhaps"):
        text_classification.create(config, str(tmp_path / "run"))
    assert not (tmp_path / "run" / "labels.json").exists()


def test_number_of_classes_must_be_that_of_the_model(tmp_path):
    write_tables(tmp_path)
    config = make_config(tmp_path, dataclasses.replace(BERT, head="classes", classes=3))
    with pytest.raises(UserError, match=r"2 classes \(no, yes\) and the model 3.*model\.classes to 2"):
        text_classification.create(config, str(tmp_path))


CLASSES, TAGS = (dataclasses.replace(BERT, head=head) for head in ("classes", "tags"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: text_classification.Config(model=CLASSES, data=LabelledConfig(max_length=33)),
            r"data\.max_length \(33\) to be at most the positions of the model .*=32\)",
        ),
        (
            lambda: text_classification.Config(model=BERT),
            r"model\.head=classes, tags or regression, got 'pretraining'",
        ),
        (
            lambda: text_classification.Config(
                model=TAGS, data=LabelledConfig(max_length=32, second_column="b")
            ),
            r"data\.second_column is 'b'",
        ),
        (
            lambda: masked_language_modeling.Config(model=BERT, data=SentencesConfig(row_length=33)),
            r"data\.row_length \(33\) to be at most the positions of the model .*=32\)",
        ),
        (lambda: masked_language_modeling.Config(model=TAGS), r"model\.head=pretraining"),
    ],
)
def test_config_that_does_not_fit_its_model_is_an_error(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_labels_of_the_built_in_language_fit_their_sentences():
    for sentence, tags in noun_genders(None, "validation")[:]:
        assert len(sentence.split()) == len(tags.split())
    assert {tag for _, tags in noun_genders(None, "train[:300]") for tag in tags.split()} == {"-", *NOUN_TAGS}
    assert {label for _, label in pronouns(None, "pronoun")} >= {"er", "sie", "es"}
    pairs = dict(text.split(". ", 1) for (text,) in parallel(None, "test")[:])
    for english, german, label in translations(None, "test"):
        assert (pairs[english.removesuffix(".")] == german) == (label == "yes")


def test_rows_of_a_function_have_the_columns_of_the_config():
    config = LabelledConfig(kind="tfm.systems.bert.builtin_labels:translations", second_column="second")
    assert config.columns == ("text", "second", "label")
    assert len(open_pairs(config, "validation")[0]) == 3
    with pytest.raises(UserError, match=r"rows of 2 strings, \(text, label\)"):
        open_pairs(dataclasses.replace(config, second_column=""), "validation")


def test_vocabulary_is_learned_from_texts_without_labels(tmp_path):
    write_tables(tmp_path)
    table = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(table.replace("yes", "\u00df").replace("no", "\u00fe"))
    for split in ("validation", "test"):
        (tmp_path / f"{split}.tsv").write_text(table.replace("yes", "\u00df").replace("no", "\u00fe"))
    task = text_classification.create(make_config(tmp_path, CLASSES), str(tmp_path))
    assert task.label_names == ["\u00df", "\u00fe"]
    assert set(task.tokenizer.unknown_characters("d\u00df\u00fe")) == {"\u00df", "\u00fe"}


@pytest.mark.long
def test_a_warm_start_takes_the_encoder_and_names_the_new_head(tmp_path, caplog):
    def initialize(config, seed):
        workdir = tmp_path / str(seed)
        workdir.mkdir()
        return tasks.find(config.task).create(config, str(workdir)).init(jax.random.key(seed))

    (tmp_path / "texts").mkdir()
    pretraining = TASKS["masked_language_modeling"]["bert"](tmp_path / "texts")
    write_tables(tmp_path)
    source = initialize(dataclasses.replace(pretraining, model=BERT), 0)
    target = initialize(make_config(tmp_path, CLASSES, vocabulary_size=300), 1)
    with caplog.at_level(logging.INFO):
        taken = load_variables(target, source, ["*=*"], "the run")["params"]
    for name in ("encoder", "pooler", "types"):
        assert_trees_equal(taken[name], source["params"][name])
    np.testing.assert_array_equal(taken["head"]["kernel"], target["params"]["head"]["kernel"])
    kept = " ".join(message for message in caplog.messages if "not taken" in message)
    assert all(name in kept for name in ("head/bias", "head/kernel", "embedding/table"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "case", "example"),
    [
        ("masked_language_modeling", "bert", "A dog. [MASK] cat."),
        ("text_classification", "bert, classes of pairs", "the dog ||| cat"),
        ("text_classification", "bert, tags", "the dog runs"),
    ],
)
def test_bert_is_evaluated_and_drawn(task, case, example, tmp_path):
    folder, workdir = tmp_path / "data", tmp_path / "run"
    folder.mkdir()
    train_run(dataclasses.replace(TASKS[task][case](folder), training=TRAINING), workdir)
    result = run_command("evaluate", f"--workdir={workdir}")
    assert (result.code, "accuracy" in result.output) == (0, True), result.error
    result = run_command("visualize", f"--workdir={workdir}", f"--sentence={example}")
    assert result.code == 0, result.error
    assert list(workdir.rglob("attention-1-encoder.png"))
    result = run_command("visualize", f"--workdir={workdir}", "--sentence= ")
    assert result.code == 2


@pytest.mark.parametrize(
    ("head", "second", "example", "result", "predictions"),
    [("classes", "", "ab c", True, 1), ("classes", "b", "ab ||| c", True, 1), ("tags", "", "ab c", False, 6)],
)
def test_observation_has_a_prediction_for_the_text_or_for_each_token(
    head, second, example, result, predictions
):
    model = dataclasses.replace(BERT, head=head)
    data = LabelledConfig(max_length=32, second_column=second)
    config = text_classification.Config(model=model, data=data)
    task = text_classification.TextClassification(config, TOKENIZER, NAMES, "")
    observed = task.observe(task.init(jax.random.key(0)), example, 64)
    assert (observed.result in NAMES) == result
    assert len(observed.predictions) == predictions
    tokens = len(observed.tracks["read"].labels)
    assert observed.attention["encoder"].weights.shape == (2, 2, tokens, tokens)
    for wrong in ("", "a" * 40):
        with pytest.raises(UserError):
            task.observe({}, wrong, 12)


@pytest.mark.parametrize(
    ("head", "second", "row", "example"),
    [
        ("classes", "", (" ab c", "no"), " ab c"),
        ("classes", "", ("ab" * 30, "no"), "ab" * 30),
        ("classes", "b", ("ab " * 30, "c", "no"), f"{'ab ' * 30}||| c"),
        ("tags", "", ("ab  c ", "no yes"), "ab  c "),
    ],
)
def test_an_observed_text_has_the_tokens_of_training(head, second, row, example):
    data = LabelledConfig(max_length=32, second_column=second)
    config = text_classification.Config(model=dataclasses.replace(BERT, head=head), data=data)
    task = text_classification.TextClassification(config, TOKENIZER, NAMES, "")
    ((tokens, *_),) = encode([row], max_length=32, has_tags=head == "tags")
    observed = task.observe(task.init(jax.random.key(0)), example, 64)
    assert observed.tracks["read"].labels == split_words(TOKENIZER, tokens.tolist())[0]


def make_labelling_task(head):
    kinds = {"regression": text_classification.TextRegression}
    config = text_classification.Config(
        model=dataclasses.replace(BERT, head=head), data=LabelledConfig(max_length=32)
    )
    return kinds.get(head, text_classification.TextClassification)(config, TOKENIZER, NAMES, "")


@pytest.fixture
def observed_shapes(monkeypatch):
    """The shapes of the inputs of all observations."""
    shapes = []

    def observe_and_record(model, variables, *inputs, **keywords):
        shapes.append([x.shape for x in inputs])
        return observe(model, variables, *inputs, **keywords)

    monkeypatch.setattr(text_classification, "observe", observe_and_record)
    return shapes


@pytest.mark.long
@pytest.mark.parametrize("head", ["classes", "tags", "regression"])
def test_observations_of_short_texts_share_one_width(head, observed_shapes):
    task = make_labelling_task(head)
    variables = task.init(jax.random.key(0))
    with few_widths():
        observed = [task.observe(variables, text, 64) for text in ("ab c", "ab c de")]
    assert observed_shapes == [[(1, 32), (1, 32)]] * 2
    assert [len(each.attention["encoder"].weights[0, 0]) for each in observed] == [6, 9]


@pytest.mark.long
@pytest.mark.parametrize("head", ["classes", "tags", "regression"])
def test_padding_changes_no_observation(head):
    task = make_labelling_task(head)
    variables = task.init(jax.random.key(0))
    tokens, types = join_texts(*TOKENIZER.encode(["ab c"]))
    output = task.model.apply(variables, tokens[None], types[None], train=False)[0]
    observed = task.observe(variables, "ab c", 64)
    found = [prediction.probability for prediction in observed.predictions] or [float(observed.result)]
    expected = output if head == "regression" else np.atleast_2d(jax.nn.softmax(output)).max(-1)
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("second", "message"),
    [("", "Expected a text to read"), ("b", r"Expected two texts \(text and b\) with \|\|\| between them")],
)
def test_a_blank_example_is_named(second, message):
    data = LabelledConfig(max_length=32, second_column=second)
    config = text_classification.Config(model=dataclasses.replace(BERT, head="classes"), data=data)
    task = text_classification.TextClassification(config, TOKENIZER, NAMES, "")
    with pytest.raises(UserError, match=message):
        task.observe({}, " ", 64)


def test_the_separator_of_pairs_and_hidden_tokens_are_no_unknown_text():
    tokenizer = Characters("abcde MASK")
    data = LabelledConfig(max_length=32, second_column="b")
    config = text_classification.Config(model=dataclasses.replace(BERT, head="classes"), data=data)
    task = text_classification.TextClassification(config, tokenizer, NAMES, "")
    assert task.find_unknown("ab \u2603 ||| c") == ["\u2603"]
    pretraining = masked_language_modeling.MaskedLanguageModeling(
        masked_language_modeling.Config(model=dataclasses.replace(BERT, max_positions=512)), tokenizer
    )
    assert pretraining.find_unknown("ab [MASK] \u2603") == ["\u2603"]


@pytest.mark.parametrize("head", ["classes", "tags"])
def test_default_examples_are_beginnings_of_validation_texts_that_are_not_blank(head, monkeypatch):
    texts = [" ", "word " * 40, "a b", "c"]
    monkeypatch.setattr(text_classification, "open_pairs", lambda *_: [(text, "no") for text in texts])
    model = dataclasses.replace(BERT, head=head, max_positions=256)
    config = text_classification.Config(model=model, data=LabelledConfig(max_length=256))
    task = text_classification.TextClassification(config, TOKENIZER, NAMES, "")
    beginning, text = task.default_examples()
    assert ("word " * 40).startswith(beginning)
    assert text == "a b"
    task.observe(task.init(jax.random.key(0)), beginning, MAX_TOKENS)


def test_data_command_describes_each_column():
    result = run_command("data", "--config=bert_classes:translations", "--split=validation")
    assert result.code == 0, result.error
    names = ["text", "translation", "label"]
    assert [line.strip() for line in result.output.splitlines() if line.strip() in names] == names
    rows = [line.split() for line in result.output.splitlines()]
    assert ["yes", "500", "50.0", "%"] in rows
    assert not any(word in result.output for word in ("source", "target", "pairs"))


def test_data_command_counts_texts_with_several_labels(tmp_path):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\na dog\tno\na dog\tyes\na cat\tno\n")
    files = [f"--config.data.{split}={split}.tsv" for split in ("train", "validation")]
    flags = ("--config.data.kind=table", f"--config.data.directory={tmp_path}", "--config.data.test=")
    result = run_command("data", "--config=bert_classes", *flags, *files)
    assert result.code == 0, result.error
    lines = [line.strip() for line in result.output.splitlines()]
    assert "1 texts have several labels" in lines
    assert "overlap     3 rows and 3 texts are also in the training split" in lines
