"""Tests of the import from and the export to folders of Hugging Face transformers.

tests/export/huggingface has small models with random weights, inputs and the logits of transformers 5.24. The
script tests/export/huggingface/make.py made them. The tests need neither torch nor transformers.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.support.comparison import assert_trees_equal
from tests.support.imported import Imported
from tests.support.tokenizers import make_json
from tfm.errors import UserError
from tfm.export.fairseq import import_checkpoint
from tfm.export.from_huggingface import import_folder
from tfm.export.to_huggingface import to_arrays
from tfm.family import find_parts
from tfm.huggingface import lookup
from tfm.huggingface.arrays import to_ours, to_theirs
from tfm.huggingface.families import gpt2_model
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import Weights
from tfm.huggingface.tokenizer_file import enclose_texts
from tfm.huggingface.vocabulary import Languages
from tfm.positions import sinusoidal_encoding
from tfm.testing.models import quick_jit
from tfm.workdir import runs

FOLDER = pathlib.Path(__file__).parent / "huggingface"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def pad_pictures(pictures):
    """Returns the images of a batch, from -1 to 1 and 0 in padding, and which pixels are no padding."""
    height, width = np.max([picture.shape[:2] for picture in pictures], axis=0)
    images = np.zeros((len(pictures), height, width, 3), np.float32)
    valid = np.zeros((len(pictures), height, width), bool)
    for row, picture in enumerate(pictures):
        place = row, slice(picture.shape[0]), slice(picture.shape[1])
        images[place] = picture / 127.5 - 1
        valid[place] = True
    return images, valid


@pytest.mark.parametrize(
    "name", [name if name == "marian-swish" else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_logits_of_an_imported_model_equal_those_of_transformers(name):
    imported, check = Imported(FOLDER / name), np.load(FOLDER / name / "check.npz")
    task, expected = imported.task, check["logits"]
    if task == "detection":
        arguments = pad_pictures([check["picture_0"], check["picture_1"]])
    elif task == "image_classification":
        arguments = (check["pixel_values"].transpose(0, 2, 3, 1),)
    elif task == "language_modeling":
        arguments = (imported.new_ids(check["input_ids"]),)
        arguments[0][:, 0] = 1
    else:
        inputs = np.where(check["attention_mask"], imported.new_ids(check["input_ids"]), 0)
        arguments = inputs, check.get("token_type_ids")
    if task == "translation":
        arguments = inputs, imported.new_ids(check["decoder_input_ids"])
        arguments[1][:, 0] = 1
    apply = quick_jit(functools.partial(imported.model.apply, train=False))
    logits = apply(imported.variables, *arguments)
    if task == "detection":
        logits, boxes = (x[-1] for x in logits)
        np.testing.assert_allclose(boxes, check["pred_boxes"], atol=1e-5)
    if task == "masked_language_modeling":
        logits, follows = logits
        expected_follows = check.get("seq_relationship_logits", np.zeros(follows.shape))
        np.testing.assert_allclose(follows[:, ::-1], expected_follows, atol=2e-5)
    logits = np.asarray(logits)
    if not task.endswith(("classification", "detection")):
        assert (logits[..., imported.order.excluded] < -9e3).all()
        kept = ~imported.order.excluded & (imported.order.ids < expected.shape[-1])
        logits, expected = logits[..., kept], expected[..., imported.order.ids[kept]]
    np.testing.assert_allclose(logits, expected, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_entries_of_all_families_are_inverses(name):
    imported = Imported(FOLDER / name)
    parts = {}
    for entry in imported.family.entries(imported.config, imported.fields):
        if entry.theirs not in imported.weights or entry.layout.startswith("token"):
            continue
        shape = imported.shapes[entry.ours]
        ours = to_ours(entry, imported.weights[entry.theirs], shape)
        theirs = to_theirs(entry, ours)
        np.testing.assert_allclose(to_ours(entry._replace(part=None), theirs, shape), ours, rtol=1e-6)
        parts.setdefault(entry.theirs, []).append(theirs[entry.skip :])
        if entry.part in (None, 2):
            joined = np.concatenate(parts[entry.theirs], -1) if entry.part else parts[entry.theirs][0]
            expected = imported.weights[entry.theirs][entry.skip :]
            np.testing.assert_allclose(joined, expected, rtol=1e-6)


def test_fields_that_the_first_config_of_gpt2_lacks_have_the_defaults_of_transformers():
    values = json.loads((FOLDER / "gpt2" / "config.json").read_text())
    model = gpt2_model(Fields(values, "config.json"))
    for name in ("activation_function", "layer_norm_epsilon", "n_inner", "scale_attn_weights"):
        del values[name]
    assert gpt2_model(Fields(values, "config.json")) == model


def test_bias_of_logits_that_gpt2_lacks_is_an_error():
    imported = Imported(FOLDER / "gpt2")
    entries = list(imported.family.entries(imported.config, imported.fields))
    bias = imported.parameters["embedding/bias"] + 0.5
    to_arrays(imported.config, imported.parameters, entries, is_sines_first=False)
    with pytest.raises(UserError, match="embedding/bias"):
        to_arrays(
            imported.config, {**imported.parameters, "embedding/bias": bias}, entries, is_sines_first=False
        )


def test_first_files_of_bert_have_other_names_of_norms(tmp_path):
    imported = Imported(FOLDER / "bert")
    arrays = dict(imported.weights) | {
        "cls.predictions.decoder.weight": imported.weights["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": imported.weights["cls.predictions.bias"],
    }
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in arrays.items()
    }
    safetensors.numpy.save_file(renamed, tmp_path / "model.safetensors")
    parameters = imported.convert(Weights(str(tmp_path)))
    for name, x in imported.parameters.items():
        np.testing.assert_array_equal(parameters[name], x)


@pytest.mark.parametrize(
    ("field", "value"),
    [("architectures", ["BertForQuestionAnswering"]), ("is_decoder", True), ("problem_type", "regression")],
)
def test_bert_that_tfm_lacks_is_an_error(field, value, tmp_path):
    folder = shutil.copytree(FOLDER / "bert", tmp_path / "model")
    values = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=field):
        import_folder(str(folder), str(tmp_path / "out"))


@pytest.mark.parametrize("option", [{"source_prefix": "summarize:"}, {"languages": Languages("en", "de")}])
def test_option_of_translation_is_an_error_for_other_models(option, tmp_path):
    with pytest.raises(UserError, match=r"--source_prefix have no effect.*family vit"):
        import_folder(str(FOLDER / "vit"), str(tmp_path / "out"), **option)


@pytest.mark.long
def test_prefix_of_the_user_follows_the_prefix_of_the_tokenizer(tmp_path):
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    folder = shutil.copytree(FOLDER / "bart", tmp_path / "model")
    post_processor = enclose_texts("<s>", 0, "</s>", 2)
    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    content = make_json("bytes", tokens=tokens, post_processor=post_processor)
    (folder / "tokenizer.json").write_bytes(content)
    tokenizer = json.loads(content)
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    size = len(tokenizer["model"]["vocab"].keys() | ids.keys())
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays["model.shared.weight"] = np.zeros((size, arrays["model.shared.weight"].shape[1]), np.float32)
    arrays.pop("final_logits_bias", None)
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    values |= {"vocab_size": size, "pad_token_id": ids["<pad>"], "eos_token_id": ids["</s>"]}
    (folder / "config.json").write_text(json.dumps(values | {"decoder_start_token_id": ids["</s>"]}))
    import_folder(str(folder), str(tmp_path / "out"), source_prefix="summarize:")
    data = runs.load(str(tmp_path / "out")).task.config.data
    assert data.source_prefix == "<text> summarize:"


@pytest.mark.parametrize("name", ["model.encoder.embed_positions.weight", "lm_head.weight"])
def test_array_that_is_no_copy_is_an_error(name, tmp_path):
    imported = Imported(FOLDER / "marian-swish")
    other = dict(imported.weights) | {name: np.ones_like(imported.weights["model.shared.weight"])}
    safetensors.numpy.save_file(other, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=name):
        imported.convert(Weights(str(tmp_path)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sinusoids_of_a_file_in_half_precision_are_left_out(dtype, tmp_path):
    imported = Imported(FOLDER / "marian-swish")
    table = np.asarray(sinusoidal_encoding(np.arange(64), imported.config.d_model, layout="interleaved"))
    sinusoids = np.concatenate([table[:, ::2], table[:, 1::2]], 1).astype(dtype)
    arrays = dict(imported.weights) | {"model.encoder.embed_positions.weight": sinusoids}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    assert_trees_equal(imported.convert(Weights(str(tmp_path))), imported.parameters)


@pytest.mark.parametrize(
    ("name", "original", "copy"),
    [
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        pytest.param("bart", "model.shared.weight", "lm_head.weight", marks=pytest.mark.long),
        pytest.param(
            "marian-separate", "model.decoder.embed_tokens.weight", "lm_head.weight", marks=pytest.mark.long
        ),
        pytest.param("t5-v1_1", "shared.weight", "decoder.embed_tokens.weight", marks=pytest.mark.long),
    ],
)
def test_tied_array_may_have_the_name_of_its_copy(name, original, copy, tmp_path):
    imported = Imported(FOLDER / name)
    arrays = dict(imported.weights)
    arrays[copy] = arrays.pop(original)
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    assert_trees_equal(imported.convert(Weights(str(tmp_path))), imported.parameters)


def test_files_without_the_prefix_and_with_masks_are_read(tmp_path):
    imported = Imported(FOLDER / "gpt2")
    headless = {name.removeprefix("transformer."): x for name, x in imported.weights.items()}
    headless["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
    safetensors.numpy.save_file(headless, tmp_path / "model.safetensors")
    parameters = imported.convert(Weights(str(tmp_path), imported.family.prefix))
    for key, x in imported.parameters.items():
        np.testing.assert_array_equal(parameters[key], x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_read(dtype, tmp_path):
    array = np.array([[1.5, -2.25]], ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    safetensors.numpy.save_file({"a": array}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(Weights(str(tmp_path))["a"], np.float32([[1.5, -2.25]]))


def test_folder_of_an_image_classifier_becomes_an_export(tmp_path):
    import_folder(str(FOLDER / "vit"), str(tmp_path / "out"))
    run, check = runs.load(str(tmp_path / "out")), np.load(FOLDER / "vit" / "check.npz")
    found = run.task.classify(run.variables, check["pixel_values"].transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, jax.nn.log_softmax(check["logits"]), atol=1e-5)
    assert run.task.label_names[3] == "label 3"


@pytest.mark.parametrize("pooler", [True, False], ids=["pooler", "no pooler"])
def test_encoder_without_a_classifier_is_imported_with_a_head_of_zeros(pooler, folder, tmp_path, caplog):
    """`ViTModel` is the class of the usual checkpoints for ImageNet-21k. Its arrays have no prefix."""
    arrays = {
        name.removeprefix("vit."): x
        for name, x in safetensors.numpy.load_file(folder / "model.safetensors").items()
        if not name.startswith("classifier")
    }
    if pooler:
        arrays |= {
            "pooler.dense.weight": np.ones((8, 8), np.float32),
            "pooler.dense.bias": np.ones(8, np.float32),
        }
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text()) | {"architectures": ["ViTModel"]}
    (folder / "config.json").write_text(json.dumps(values))
    import_folder(str(folder), str(tmp_path / "headless"))
    assert "has no classifier" in caplog.text
    assert "--warm_start_map='*=*'" in caplog.text
    import_folder(str(FOLDER / "vit"), str(tmp_path / "whole"))
    headless, whole = (runs.load(str(tmp_path / name)) for name in ("headless", "whole"))
    assert headless.task.config.model.classes == 2
    assert not np.any(headless.params["head"]["kernel"])
    for name in ("class_token", "embedding", "encoder", "positions"):
        assert_trees_equal(headless.params[name], whole.params[name])


def test_decoder_of_masked_patches_is_left_out(folder, tmp_path):
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    del arrays["classifier.weight"], arrays["classifier.bias"]
    arrays |= {"vit.embeddings.mask_token": np.ones((1, 1, 8), np.float32)}
    arrays |= {
        "decoder.0.weight": np.ones((48, 8, 1, 1), np.float32),
        "decoder.0.bias": np.ones(48, np.float32),
    }
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    values |= {"architectures": ["ViTForMaskedImageModeling"]}
    (folder / "config.json").write_text(json.dumps(values))
    import_folder(str(folder), str(tmp_path / "out"))
    assert runs.load(str(tmp_path / "out")).task.config.model.classes == 2


@pytest.mark.parametrize("name", ["vit", pytest.param("detr", marks=pytest.mark.long)])
def test_assumed_normalization_is_a_warning(name, tmp_path, caplog):
    folder = shutil.copytree(FOLDER / name, tmp_path / "model")
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    import_folder(str(folder), str(tmp_path / "out"))
    mean = {"vit": "0.5, 0.5, 0.5", "detr": "0.485, 0.456, 0.406"}[name]
    assert "no preprocessor_config.json. Assumed the normalization that transformers uses" in caplog.text
    assert mean in caplog.text


@pytest.mark.long
def test_detector_with_names_of_timm_equals_the_detector_with_names_of_transformers(tmp_path):
    """The usual checkpoints, such as facebook/detr-resnet-50, have timm's names."""
    folder = shutil.copytree(FOLDER / "detr", tmp_path / "model")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    safetensors.numpy.save_file(
        {to_timm(name): x for name, x in arrays.items()}, folder / "model.safetensors"
    )
    theirs = Imported(FOLDER / "detr").parameters
    for name, x in Imported(folder).parameters.items():
        np.testing.assert_array_equal(x, theirs[name])


def to_timm(name):
    """Returns timm's name of an array of the ResNet of transformers."""
    prefix, inside, rest = name.partition("model.backbone.conv_encoder.model.")
    kind = {"convolution": "conv", "normalization": "bn"}
    if match := re.fullmatch(r"embedder\.embedder\.(\w+)\.(\w+)", rest):
        rest = f"{kind[match[1]]}1.{match[2]}"
    elif match := re.fullmatch(r"encoder\.stages\.(\d)\.layers\.(\d)\.layer\.(\d)\.(\w+)\.(\w+)", rest):
        stage, block, part, module, leaf = match.groups()
        rest = f"layer{int(stage) + 1}.{block}.{kind[module]}{int(part) + 1}.{leaf}"
    elif match := re.fullmatch(r"encoder\.stages\.(\d)\.layers\.(\d)\.shortcut\.(\w+)\.(\w+)", rest):
        stage, block, module, leaf = match.groups()
        number = {"convolution": 0, "normalization": 1}[module]
        rest = f"layer{int(stage) + 1}.{block}.downsample.{number}.{leaf}"
    return prefix + inside + rest


@pytest.mark.long
def test_detector_becomes_an_export_for_pictures_in_cocos_format(tmp_path):
    import_folder(str(FOLDER / "detr"), str(tmp_path / "out"))
    config = runs.load(str(tmp_path / "out")).task.config
    assert (config.task, config.data.kind) == ("detection", "coco")
    assert (config.model.classes, config.model.queries) == (3, 3)
    assert config.model.pixel_mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dilation", True, "dilation"),
        ("position_embedding_type", "learned", "position_embedding_type"),
        ("decoder_ffn_dim", 16, "decoder_ffn_dim to be 12, got 16"),
        ("architectures", ["DetrForSegmentation"], "DetrForObjectDetection.*DetrForSegmentation"),
    ],
)
def test_detector_that_tfm_lacks_is_an_error(field, value, message, tmp_path):
    folder = shutil.copytree(FOLDER / "detr", tmp_path / "model")
    values = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        import_folder(str(folder), str(tmp_path / "out"))


def test_backbone_without_bottlenecks_is_an_error(tmp_path):
    folder = shutil.copytree(FOLDER / "detr", tmp_path / "model")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays = {name: x for name, x in arrays.items() if ".layer.2." not in name}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"ResNet-50.*layer1\.0\.conv3"):
        import_folder(str(folder), str(tmp_path / "out"))


def test_two_classes_without_names_have_the_default_names(folder, tmp_path):
    """transformers leaves the names LABEL_0 and LABEL_1 out of config.json."""
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays |= {name: arrays[name][:2] for name in ("classifier.weight", "classifier.bias")}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    del values["id2label"]
    (folder / "config.json").write_text(json.dumps(values))
    import_folder(str(folder), str(tmp_path / "out"))
    assert runs.load(str(tmp_path / "out")).task.label_names == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("details", "mean", "deviation"),
    [
        ({}, 0.5, 0.5),
        ({"rescale_factor": 0.003921569}, 0.5, 0.5),
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]),
        ({"do_normalize": False, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, 0, 1),
    ],
    ids=["default", "rounded", "normalized", "not normalized"],
)
def test_imported_classifier_normalizes_pixels_like_its_preprocessor(
    details, mean, deviation, folder, tmp_path
):
    (folder / "preprocessor_config.json").write_text(json.dumps(details))
    import_folder(str(folder), str(tmp_path / "out"))
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    projection = "vit.embeddings.patch_embeddings.projection"
    patch = np.random.default_rng(0).random((4, 4, 3))
    normalized = ((patch - mean) / deviation).transpose(2, 0, 1)
    expected = (arrays[f"{projection}.weight"] * normalized).sum((1, 2, 3)) + arrays[f"{projection}.bias"]
    embedding = runs.load(str(tmp_path / "out")).params["embedding"]
    found = (2 * patch - 1).reshape(-1) @ np.asarray(embedding["kernel"]) + np.asarray(embedding["bias"])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"), [("do_rescale", False), ("rescale_factor", 1 / 256), ("do_normalize", "no")]
)
def test_preprocessor_that_tfm_lacks_is_an_error(field, value, folder, tmp_path):
    (folder / "preprocessor_config.json").write_text(json.dumps({field: value}))
    with pytest.raises(UserError, match=rf"preprocessor_config\.json.*{field}"):
        import_folder(str(folder), str(tmp_path / "out"))


def test_checkpoint_of_fairseq_needs_pytorch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(UserError, match="torch"):
        import_checkpoint(str(tmp_path), str(tmp_path / "out"))


@pytest.fixture
def folder(tmp_path):
    return pathlib.Path(shutil.copytree(FOLDER / "vit", tmp_path / "model"))


def test_config_with_a_byte_order_mark_is_imported(folder, tmp_path):
    """Editors on Windows can write the mark when they save a file as UTF-8."""
    text = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(text, encoding="utf-8-sig")
    import_folder(str(folder), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", ".x.safetensors", 3]
)
def test_index_must_not_name_a_file_outside_of_the_folder(folder, tmp_path, place):
    os.rename(folder / "model.safetensors", tmp_path / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(UserError, match="as the file of a"):
        import_folder(str(folder), str(tmp_path / "out"))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "preprocessor_config.json"])
def test_json_above_64_megabytes_is_refused(folder, tmp_path, file):
    if file == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    with open(folder / file, "wb") as large:
        large.truncate(2**26 + 1)  # without blocks on the disk
    with pytest.raises(UserError, match=rf"67,108,864.*{re.escape(file)}.*67,108,865"):
        import_folder(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_code_of_a_folder_is_not_executed(folder, tmp_path):
    """transformers would execute the class that auto_map names if the user trusts the folder."""
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Mine: ...\n")
    values = json.loads((folder / "config.json").read_text())
    values |= {"auto_map": dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "mine.Mine")}
    (folder / "config.json").write_text(json.dumps(values | {"trust_remote_code": True}))
    import_folder(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "executed").exists()
    assert "auto_map" not in (tmp_path / "out" / "config.json").read_text()
    assert not any("mine" in path.name for path in (tmp_path / "out").iterdir())


def test_shards_are_read(folder, tmp_path):
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    os.remove(folder / "model.safetensors")
    names, places = sorted(arrays), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i}.safetensors"
        safetensors.numpy.save_file({name: arrays[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    import_folder(str(folder), str(tmp_path / "out"))
    np.testing.assert_array_equal(
        runs.load(str(tmp_path / "out")).params["head"]["bias"], arrays["classifier.bias"]
    )


def test_pickles_are_not_read(folder, tmp_path):
    os.rename(folder / "model.safetensors", folder / "pytorch_model.bin")
    advice = r"pytorch_model\.bin may execute code.*ViTForImageClassification\.from_pretrained"
    with pytest.raises(UserError, match=advice):
        import_folder(str(folder), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", "gpt_oss", "model_type.*gpt_oss"),
        ("hidden_size", 10**9, "hidden_size|d_model"),
        ("num_hidden_layers", 900, "encoder_layers is 900"),
        ("num_hidden_layers", -1, "encoder_layers"),
        ("hidden_size", "8", "hidden_size.*int.*'8'"),
        ("hidden_act", "quick_gelu", "hidden_act"),
        ("id2label", {"7": "x", "8": "y"}, "id2label"),
        ("intermediate_size", 6, "intermediate.dense.weight.*12, 8.*8, 6"),
    ],
)
def test_config_that_does_not_fit_is_an_error(folder, tmp_path, field, value, message):
    values = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        import_folder(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["truncated", "missing", "unknown", "nan"])
def test_damaged_arrays_are_an_error(folder, tmp_path, change):
    path = folder / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    if change == "missing":
        del arrays["classifier.bias"]
    elif change == "unknown":
        arrays["extra"] = np.zeros(2, np.float32)
    elif change == "nan":
        arrays["classifier.bias"] = arrays["classifier.bias"] * np.nan
    safetensors.numpy.save_file(arrays, path)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-10])
    message = {
        "truncated": "not a complete",
        "missing": "no array classifier.bias",
        "unknown": "extra",
        "nan": "head/bias",
    }
    with pytest.raises(UserError, match=message[change]):
        import_folder(str(folder), str(tmp_path / "out"))


def test_pooler_of_a_token_classifier_is_left_out(tmp_path):
    """Older versions of transformers saved a pooler that the model does not use."""
    folder = tmp_path / "bert-tags"
    shutil.copytree(FOLDER / "bert-tags", folder)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    size = arrays["classifier.weight"].shape[1]
    pooler = {"weight": np.ones((size, size), np.float32), "bias": np.ones(size, np.float32)}
    arrays |= {f"bert.pooler.dense.{name}": array for name, array in pooler.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    for name, array in Imported(FOLDER / "bert-tags").parameters.items():
        np.testing.assert_array_equal(Imported(folder).parameters[name], array)


@pytest.mark.parametrize("find", [lookup.find_families, lookup.find_targets])
def test_systems_are_searched_for_families_only_once(find, monkeypatch):
    searches = []

    def search(name):
        searches.append(name)
        return find_parts(name)

    monkeypatch.setattr(lookup, "find_parts", search)
    find.cache_clear()
    assert find() is find()
    assert searches == [lookup.PART]
