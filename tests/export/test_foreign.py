"""Tests of exports for other projects, by the commands."""

import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tfm
from tests.support.commands import run_command
from tests.support.tokenizers import make_json, train_model
from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.export.foreign import list_vocabularies, make_card
from tfm.export.to_huggingface import find_problems
from tfm.models import TransformerConfig
from tfm.systems.bert import pretraining as masked_language_modeling
from tfm.systems.bert.mask import add_mask
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.tasks import language_modeling
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.tasks.translation.task import Config
from tfm.training.run_log import read_metrics
from tfm.workdir import runs
from tfm.workdir.bundle import flatten

FOLDER = pathlib.Path(__file__).parent / "huggingface"
PIECES = WordPieces(train_model())
SENTENCES = ["red dog runs", "small bird", "the unknown word"]


def export(workdir, folder, *flags):
    return run_command("export", f"--workdir={workdir}", f"--output={folder}", *flags)


@pytest.fixture(scope="module")
def marian(tiny_run, tmp_path_factory):
    """Returns the folder of the tiny run as a MarianMT model."""
    folder = tmp_path_factory.mktemp("marian") / "out"
    result = export(tiny_run, folder, "--format=huggingface")
    assert result.code == 0, result.error
    return folder


@pytest.mark.long
def test_exported_model_is_the_same_after_an_import(tiny_run, marian, tmp_path):
    result = run_command("import", f"--from={marian}", f"--output={tmp_path / 'again'}")
    assert result.code == 0, result.error
    before, after = (tfm.Translator.load(str(path)) for path in (tiny_run, tmp_path / "again"))
    targets = ["rot hund rennt", "klein vogel", "x"]
    for ours, again in zip(before.score(SENTENCES, targets), after.score(SENTENCES, targets), strict=True):
        np.testing.assert_allclose(ours, again, atol=2e-3)  # MarianMT has an epsilon of 1e-5, not 1e-6
    tokenizer = after.run.task.tokenizer
    assert tokenizer.source.encode(SENTENCES) == before.run.task.tokenizer.encode(SENTENCES)
    data = after.run.task.config.data
    assert (data.source_language, data.target_language) == ("en", "de")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """Returns a folder with a random GPT-2 whose only special token begins and ends a text."""
    folder, arrays = tmp_path_factory.mktemp("gpt2"), load_file(FOLDER / "gpt2" / "model.safetensors")
    (folder / "tokenizer.json").write_bytes(make_json("bytes", tokens=["<|endoftext|>"]))
    size = len(TokenizerJson((folder / "tokenizer.json").read_bytes()).file_ids) - 2
    values = json.loads((FOLDER / "gpt2" / "config.json").read_text())
    values |= {"vocab_size": size, "bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(values))
    arrays["transformer.wte.weight"] = np.random.default_rng(0).normal(0, 0.1, (size, 8)).astype(np.float32)
    save_file(arrays, folder / "model.safetensors")
    return folder


DOCUMENTS = ["--config.data.train=train.en", "--config.data.validation=val.en", "--config.data.row_length=16"]
TRAINED = {  # {family: (assets, flags of the data)}
    "marian": (
        ["vocabulary.model", "source_vocabulary.model"],
        ["--config.data.validation=val", "--config.validation_sentences=0", "--config.validation_samples=0"],
    ),
    "gpt2": (["vocabulary.model"], [*DOCUMENTS, "--config.data.documents=line", "--config.stride=16"]),
}


@pytest.mark.long
@pytest.mark.parametrize("family", TRAINED)
def test_imported_model_continues_to_train_and_is_exported_again(family, corpus, tmp_path, request):
    original, (assets, flags) = request.getfixturevalue(family), TRAINED[family]
    imported, workdir, exported = tmp_path / "imported", tmp_path / "run", tmp_path / "out"
    result = run_command("import", f"--from={original}", f"--output={imported}")
    assert result.code == 0, result.error
    result = run_command(
        "train",
        f"--config={imported / 'config.json'}",
        f"--workdir={workdir}",
        f"--warm_start={imported}",
        f"--config.data.directory={corpus}",
        "--config.data.batch_tokens=256",
        "--config.training.steps=100",
        "--config.training.warmup_steps=10",
        "--config.training.peak_learning_rate=0.01",
        "--config.training.log_every=10",
        *flags,
    )
    assert result.code == 0, result.error
    losses = [row["train/loss"] for row in read_metrics(str(workdir)) if "train/loss" in row]
    assert losses[-1] < 0.95 * losses[0]
    for name in assets:
        assert (workdir / name).read_bytes() == (imported / name).read_bytes()
    assert export(workdir, exported, "--format=huggingface").code == 0
    before, after = (load_file(path / "model.safetensors") for path in (original, exported))
    assert before.keys() == after.keys()
    result = run_command("import", f"--from={exported}", f"--output={tmp_path / 'again'}")
    assert result.code == 0, result.error
    if family == "gpt2":  # the logit of a row of zeros could be the largest
        padding, _, end, *_ = after["transformer.wte.weight"]
        np.testing.assert_array_equal(padding, end)
    trained, again = (flatten(runs.load(str(path)).variables) for path in (workdir, tmp_path / "again"))
    for name, x in trained.items():
        rows = slice(1 if name == "embedding/table" else 0, None)  # the row of padding has no effect
        np.testing.assert_allclose(again[name][rows], x[rows], rtol=1e-6, atol=1e-7)
    assert any((x != before[name]).any() for name, x in after.items() if x.shape == before[name].shape)


@pytest.mark.long
def test_parameters_of_an_export_have_the_names_of_the_run(tiny_run, tmp_path):
    assert export(tiny_run, tmp_path / "out").code == 0
    run = runs.load(str(tiny_run))
    table = load_file(tmp_path / "out" / "model.safetensors")["embedding/table"]
    np.testing.assert_array_equal(table, run.params["embedding"]["table"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model"]["name"] == "transformer"


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_ctranslate2_translates_like_tfm(quantization, tiny_run, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the package ctranslate2 is not installed")
    result = export(tiny_run, tmp_path / "out", "--format=ctranslate2", f"--quantization={quantization}")
    assert result.code == 0, result.error
    assert "((5 + length) / 6)" in (tmp_path / "out" / "README.md").read_text()
    ours = tfm.Translator.load(str(tiny_run))
    tokenizer = ours.run.task.tokenizer
    pieces = [tokenizer.pieces(ids) for ids in tokenizer.encode(SENTENCES)]
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    targets = ["rot hund rennt", "klein vogel", "x"]
    scored = translator.score_batch(pieces, [tokenizer.pieces(ids) for ids in tokenizer.encode(targets)])
    tolerance = 1e-3 if quantization == "float32" else 0.2
    for theirs, expected in zip(scored, ours.score(SENTENCES, targets), strict=True):
        np.testing.assert_allclose(theirs.log_probs, expected, atol=tolerance)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--quantization=int8"], "--quantization=int8"),
        (["--format=onnx"], "huggingface"),
    ],
)
def test_flags_without_effect_are_refused(flags, named, tiny_run, tmp_path):
    result = export(tiny_run, tmp_path / "out", *flags)
    assert result.code == 2
    assert named in result.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("positions", "rotary"),
        ("norm_order", "pre"),
        ("gated", True),
        ("feed_forward_kernel", 3),
        ("deep_norm", True),
        ("embedding_norm", True),
        ("tied_embeddings", "none"),
        ("activation", "sigmoid"),
        ("layer_norm_epsilon", 1e-3),
    ],
)
def test_models_that_transformers_lacks_are_named_by_their_field(field, value):
    assert not list(find_problems(Config(), PIECES))
    config = Config(model=dataclasses.replace(TransformerConfig(), **{field: value}))
    (problem,) = find_problems(config, PIECES)
    assert f"model.{field} is {value!r}, expected" in problem


def test_model_with_a_part_of_the_user_is_refused():
    (problem,) = find_problems(Config(model=TransformerConfig(name="mine:Mine")), None)
    assert "model.name is 'mine:Mine', expected transformer or decoder_lm or bert or vit" in problem


def test_forced_target_prefix_is_refused():
    (problem,) = find_problems(Config(data=PairsConfig(target_prefix="<de>")), PIECES)
    assert "data.target_prefix is '<de>'" in problem


@pytest.mark.parametrize("task", ["language_modeling", "masked_language_modeling"])
def test_tokenizer_decides_whether_transformers_has_a_class(task):
    make_config, make_data, add = {
        "language_modeling": (language_modeling.Config, DocumentsConfig, lambda tokenizer: tokenizer),
        "masked_language_modeling": (masked_language_modeling.Config, SentencesConfig, add_mask),
    }[task]
    json_file = TokenizerJson(make_json("bytes", tokens=["<s>"]))
    for name, tokenizer, is_refused in (
        ("characters", Characters("a"), True),
        ("pieces.model", PIECES, True),
        ("models/pieces", PIECES, True),
        ("bytes", Characters(), False),
        ("gpt2.json", json_file, False),
        ("models/gpt2", json_file, False),  # the folder of a tokenizer.json
    ):
        problems = list(find_problems(make_config(data=make_data(tokenizer=name)), add(tokenizer)))
        assert [f"data.tokenizer is {name!r}, expected bytes" in problem for problem in problems] == (
            [True] * is_refused
        )


def test_card_for_ctranslate2_shows_code_for_the_tokenizer_of_the_run():
    tokenizer = TokenizerJson(make_json("words", tokens=["[PAD]", "[CLS]", "[SEP]"]))
    task = types.SimpleNamespace(config=language_modeling.Config(), tokenizer=tokenizer)
    card = make_card(types.SimpleNamespace(task=task, steps=[1]), "ctranslate2")
    assert 'generate_batch([["[CLS]"]]' in card
    task = TextTranslation()
    task.config = Config()
    task.tokenizer = tokenizer
    card = make_card(types.SimpleNamespace(task=task, steps=[1]), "ctranslate2")
    assert "translate_batch" in card
    assert "sentencepiece" not in card


def make_translation_card(tokenizer, **data):
    """Returns the card of a translation model for CTranslate2."""
    task = TextTranslation()
    task.config = Config(data=PairsConfig(**data))
    task.tokenizer = tokenizer
    return make_card(types.SimpleNamespace(task=task, steps=[1]), "ctranslate2")


def test_card_for_ctranslate2_begins_the_texts_with_the_prefixes_of_the_run():
    """An imported NLLB needs both. CTranslate2 returns the target prefix with each hypothesis."""
    card = make_translation_card(PIECES, source_prefix="eng_Latn", target_prefix="deu_Latn")
    assert 'source.encode(["eng_Latn ..."], out_type=str), target_prefix=[prefix]' in card
    assert 'prefix = target.encode("deu_Latn", out_type=str)' in card
    assert "hypotheses[0][len(prefix) :]" in card
    assert "target_prefix" not in make_translation_card(PIECES)


def test_card_for_ctranslate2_leaves_the_end_of_a_source_to_its_config():
    """The exported config has add_source_eos. Another end in the source would change all probabilities."""
    tokenizer = TokenizerJson(make_json("words", tokens=["[PAD]", "[CLS]", "[SEP]"]))
    assert "</s>" not in make_translation_card(tokenizer)


def test_texts_of_an_exported_vocabulary_differ_if_its_ids_have_gaps():
    content = json.loads(make_json("words", texts=["red dog"]))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = vocabulary | {"cat": len(vocabulary) + 3, "<unused 7>": len(vocabulary) + 5}
    tokenizer = TokenizerJson(json.dumps(content).encode())
    (texts,) = list_vocabularies(types.SimpleNamespace(tokenizer=tokenizer))
    assert len(set(texts)) == len(texts) == len(tokenizer)
    (ids,) = tokenizer.encode(["red dog cat"])
    assert [texts[i] for i in ids] == ["red", "dog", "cat"]
    assert texts[-1] == "<unused 7>"


def test_piece_that_is_called_like_an_added_token_keeps_its_text_in_an_exported_vocabulary():
    tokenizer = WordPieces(train_model(pad_id=-1, user_defined_symbols="<pad>"))
    (texts,) = list_vocabularies(types.SimpleNamespace(tokenizer=tokenizer))
    assert len(set(texts)) == len(texts) == len(tokenizer)
    (ids,) = tokenizer.encode(["<pad>"])
    assert texts[ids[-1]] == "<pad>"
