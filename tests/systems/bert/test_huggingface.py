"""Tests of BERT, RoBERTa and DistilBERT from folders of Hugging Face transformers.

The folder hf_models has small models with random weights, inputs and the outputs of transformers 5.24. The
script make_hf_models.py made them. See tests/export/test_huggingface.py for the other classes of BERT.
"""

import dataclasses
import functools
import json
import logging
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests.support.comparison import assert_trees_equal
from tests.support.imported import Imported
from tests.support.labelled_texts import TAGS, make_config, write_tables
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.errors import UserError
from tfm.export.from_huggingface import import_folder
from tfm.export.to_huggingface import find_problems
from tfm.huggingface.fields import Fields
from tfm.huggingface.tokenizer_file import make_special
from tfm.huggingface.vocabulary import Languages
from tfm.systems.bert import classification
from tfm.systems.bert.huggingface import read_roberta
from tfm.systems.bert.mask import MASK, add_mask
from tfm.systems.bert.model import BertConfig
from tfm.testing.models import quick_jit
from tfm.workdir import runs
from tfm.workdir.warm_start import load_variables

FOLDER = pathlib.Path(__file__).parent / "hf_models"
NAMES = sorted(path.name for path in FOLDER.iterdir())
BASES = [name for name in NAMES if "-base" in name]
FIRST = ("bert-base", "roberta-classes", "distilbert-classes")


def in_tiers(names):
    """Returns the names, of which those that are not in `FIRST` are in the second tier."""
    return [name if name in FIRST else pytest.param(name, marks=pytest.mark.long) for name in names]


def convert_inputs(imported, check):
    """Returns tokens with the ids of tfm, and their types."""
    tokens = np.where(check["attention_mask"], imported.new_ids(check["input_ids"]), 0)
    return tokens, check.get("token_type_ids")


@functools.cache
def compute(name):
    """Returns the model of a folder, its check.npz, and (features, pooled features or None, outputs)."""
    imported, check = Imported(FOLDER / name), np.load(FOLDER / name / "check.npz")
    tokens, types = convert_inputs(imported, check)

    @quick_jit
    def apply(variables):
        features = imported.model.apply(variables, tokens, types=types, train=False, method="features")
        has_pooler = imported.config.head != "tags"
        pooled = imported.model.apply(variables, features, method="pooled") if has_pooler else None
        return features, pooled, imported.model.apply(variables, tokens, types, train=False)

    return imported, check, apply(imported.variables)


@pytest.mark.parametrize("name", in_tiers(NAMES))
def test_features_equal_those_of_transformers(name):
    _, check, (features, pooled, _) = compute(name)
    is_token = check["attention_mask"].astype(bool)
    np.testing.assert_allclose(features[is_token], check["features"][is_token], atol=2e-5)
    if "pooler_output" in check:
        np.testing.assert_allclose(pooled, check["pooler_output"], atol=2e-5)


@pytest.mark.parametrize("name", in_tiers([name for name in NAMES if name not in BASES]))
def test_logits_equal_those_of_transformers(name):
    imported, check, (_, _, logits) = compute(name)
    expected, is_token = check["logits"], check["attention_mask"].astype(bool)
    if imported.config.head == "pretraining":
        logits, follows = logits
        np.testing.assert_array_equal(follows, 0)
        np.testing.assert_array_less(logits[..., imported.order.excluded], -9e3)
        kept = ~imported.order.excluded
        logits, expected = logits[..., kept], expected[..., imported.order.ids[kept]]
    if imported.config.head in ("pretraining", "tags"):
        logits, expected = np.asarray(logits)[is_token], expected[is_token]
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def copy_with_tokenizer(name, folder):
    """Returns a copy of a model with a tokenizer of words, in the order of its ids."""
    target = pathlib.Path(shutil.copytree(FOLDER / name, folder / name))
    values = json.loads((target / "config.json").read_text())
    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    if values["model_type"] == "roberta":
        names = ["<pad>", "<s>", "</s>", "<mask>"]
    roles = [*(values[f"{role}_token_id"] for role in ("pad", "bos", "eos")), values["vocab_size"] - 1]
    others = [i for i in range(values["vocab_size"]) if i not in roles]
    words = [*TAGS, *(f"word{i}" for i in range(len(others) - len(TAGS)))]
    vocabulary = dict(zip([*names, *words], [*roles, *others], strict=True))
    content = {
        "version": "1.0",
        "added_tokens": [make_special(text, vocabulary[text]) for text in names],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "word0", "vocab": vocabulary},
    }
    (target / "tokenizer.json").write_text(json.dumps(content))
    return target


@pytest.mark.parametrize("name", in_tiers([*BASES, "roberta-masked", "distilbert-masked"]))
def test_layers_that_a_folder_lacks_get_new_values(name, tmp_path, caplog):
    pytest.importorskip("tokenizers")
    with caplog.at_level(logging.WARNING):
        import_folder(str(copy_with_tokenizer(name, tmp_path)), str(tmp_path / "out"))
    parameters = runs.load(str(tmp_path / "out")).params
    missing = ["pooler"] * (name in ("bert-base-without-pooler", "distilbert-base") or "masked" in name)
    missing += ["transform"] * (name in BASES)
    assert f"lacks the layers {' and '.join(missing)} " in caplog.text
    for layer in missing:
        assert np.std(parameters[layer]["kernel"]) == pytest.approx(0.02, rel=0.4)
    assert np.all(parameters["transform_norm"]["scale"] != 0)
    assert not np.any(parameters["follows"]["kernel"])


@pytest.mark.long
@pytest.mark.parametrize("name", BASES)
def test_fine_tuning_begins_with_the_encoder_of_a_folder(name, tmp_path):
    pytest.importorskip("tokenizers")
    import_folder(str(copy_with_tokenizer(name, tmp_path)), str(tmp_path / "out"))
    source = runs.load(str(tmp_path / "out"))
    write_tables(tmp_path)
    model = dataclasses.replace(source.task.config.model, head="classes")
    tokenizer = str(tmp_path / "out" / "vocabulary.model")
    config = make_config(tmp_path, model, tokenizer=tokenizer, max_length=16)
    (tmp_path / "run").mkdir()
    task = classification.create(config, str(tmp_path / "run"))
    target = task.init(jax.random.key(1))
    taken = load_variables(target, source.variables, ["*=*"], "the folder")["params"]
    for part in ("encoder", "positions", "embedding_norm", "pooler"):
        assert_trees_equal(taken[part], source.params[part])
    np.testing.assert_array_equal(taken["embedding"]["table"], source.params["embedding"]["table"])
    np.testing.assert_array_equal(taken["head"]["kernel"], target["params"]["head"]["kernel"])


def test_folder_of_a_number_predicts_it(tmp_path):
    pytest.importorskip("tokenizers")
    import_folder(str(copy_with_tokenizer("bert-number", tmp_path)), str(tmp_path / "out"))
    run, check = runs.load(str(tmp_path / "out")), np.load(FOLDER / "bert-number" / "check.npz")
    assert isinstance(run.task, classification.TextRegression)
    inputs = convert_inputs(Imported(FOLDER / "bert-number"), check)
    numbers = run.task.model.apply(run.variables, *inputs, train=False)
    np.testing.assert_allclose(numbers, check["logits"], atol=2e-5)


def make_byte_pairs(size=300):
    """Returns a tokenizer of the form of RoBERTa's, and its size."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    texts = ["the dog runs and the cat runs, too", "Žluťoučký kůň 猫 €5"] * 9
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        texts, vocab_size=size, min_frequency=1, special_tokens=special, show_progress=False
    )
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    return tokenizer, tokenizer.get_vocab_size()


def test_ids_of_roberta_are_the_ids_of_its_vocabulary(tmp_path):
    original, size = make_byte_pairs()
    (tmp_path / "tokenizer.json").write_text(original.to_str())
    vocabulary = read_roberta(str(tmp_path), Fields({"vocab_size": size}, "config.json"), Languages())
    tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
    assert tokenizer.pieces(range(3)) == ["<pad>", "<s>", "</s>"]
    texts = ["the dog", "The  DOGS run.", "Žluť 猫 é", "", "don't"]
    expected = [original.encode(text, add_special_tokens=False).ids for text in texts]
    assert tokenizer.encode(texts) == [
        [vocabulary.order.ids.tolist().index(i, 3) for i in ids] for ids in expected
    ]
    masked = add_mask(tokenizer)
    assert len(masked) == size
    assert tokenizer.pieces([masked.mask_id]) == ["<mask>"]
    theirs = original.encode("the <mask> runs", add_special_tokens=False).ids
    expected = [vocabulary.order.ids.tolist().index(i, 3) for i in theirs]
    assert masked.encode_masked(f"the {MASK} runs") == expected


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "roberta-masked",
            {"architectures": ["RobertaForCausalLM"]},
            r"RobertaForMaskedLM.*RobertaForCausalLM",
        ),
        ("roberta-classes", {"problem_type": "multi_label_classification"}, "problem_type"),
        ("distilbert-masked", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("bert-number", {"problem_type": "single_label_classification"}, "problem_type"),
    ],
)
def test_models_that_tfm_lacks_are_an_error(name, fields, message, tmp_path):
    folder = pathlib.Path(shutil.copytree(FOLDER / name, tmp_path / "model"))
    values = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        import_folder(str(folder), str(tmp_path / "out"))


def test_array_of_a_head_that_is_missing_is_an_error():
    """Only classes without a head may lack the layers of pretraining."""
    imported = Imported(FOLDER / "roberta-masked")
    weights = {name: x for name, x in imported.weights.items() if name != "lm_head.dense.weight"}
    weights = type("Weights", (dict,), {"folder": "FOLDER", "shapes": imported.weights.shapes})(weights)
    with pytest.raises(UserError, match=r"FOLDER has no array lm_head\.dense\.weight"):
        imported.convert(weights)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"types": 0}, "model.types is 0"), ({"pooler_activation": "relu"}, "pooler_activation")],
)
def test_exports_need_what_bert_has_in_transformers(fields, problem):
    config = classification.Config(model=BertConfig(head="classes", **fields))
    assert any(problem in text for text in find_problems(config, add_mask(Characters())))
