"""Tests of the user's own pictures with captions: their forms, their tokens, their order and bad input."""

import dataclasses
import itertools
import json
import os
import shutil
import time
import types
import unicodedata
import weakref

import jax
import numpy as np
import pytest
from PIL import Image

from tests.support.captioned_pictures import SPLITS, write_captions
from tests.systems.dalle import numpy_dalle, numpy_dvae
from tests.tasks import cases
from tfm.data.batches.generated import EVALUATION, GeneratedBatches
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.files import load_tokenizer
from tfm.errors import UserError
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.caption_text import TokenText
from tfm.systems.dalle.captioned_pictures import CaptionedPictures
from tfm.systems.dalle.stored_captions import find_captions
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.task import Context

LENGTH = 16
TEXT = TokenText(Characters(), LENGTH)


def open_split(data, split="train", text=TEXT, size=8):
    return CaptionedPictures(data, find_captions(data, split), size=size, channels=3, text=text)


def list_pairs(data, split="train"):
    """Returns (name of a picture, its captions) of a split."""
    stored = find_captions(data, split)
    return [
        (os.path.basename(path), texts) for path, texts in zip(stored.paths, stored.captions, strict=True)
    ]


EXPECTED = [
    ("0.png", ["a red picture"]),
    ("1.png", ["a green picture", "number 1"]),
    ("2.png", ["a blue picture"]),
    ("3.png", ["a red picture", "number 3"]),
]


@pytest.mark.parametrize("kind", ["table", "txt", "coco"])
def test_all_forms_have_the_same_pictures_and_captions(tmp_path, kind):
    assert list_pairs(write_captions(tmp_path, kind), "validation") == EXPECTED


def write_table(folder, name, content, **fields):
    """Writes the pictures of the training split without their table, and another table of two of them."""
    data = write_captions(folder)
    (folder / "train" / "metadata.jsonl").unlink()
    (folder / name).write_text(content, encoding="utf-8")
    return dataclasses.replace(data, train=name, **fields)


TABLES = {
    "csv": ("c.csv", 'file_name,text\n0.png,one\n1.png,"two, three"\n', {}),
    "captions of Flickr8k": (
        "captions.txt",
        'image,caption\n0.png,one\n1.png,"two, three"\n',
        {"format": "csv", "picture_column": "image", "text_column": "caption"},
    ),
    "tokens of Flickr8k": (
        "Flickr8k.token.txt",
        "0.png#0\tone\n1.png#0\ttwo, three\n",
        {"format": "tsv", "picture_column": "1", "text_column": "2"},
    ),
    "json": (
        "c.json",
        '[{"file_name": "0.png", "text": "one"}, {"file_name": "1.png", "text": "two, three"}]',
        {},
    ),
    "without ending": (
        "c.jsonl",
        '{"file_name": "0.png", "text": "one"}\n{"file_name": "1.png", "text": "two, three"}',
        {},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_may_have_other_formats_columns_and_places(tmp_path, name):
    file, content, fields = TABLES[name]
    data = write_table(tmp_path, file, content, pictures="train", **fields)
    assert list_pairs(data) == [("0.png", ["one"]), ("1.png", ["two, three"])]


def test_slices_divide_the_pictures_at_random(tmp_path):
    data = write_captions(tmp_path)
    parts = [dict(list_pairs(dataclasses.replace(data, train=f"train[{part}]"))) for part in (":60%", "60%:")]
    whole = dict(list_pairs(data))
    assert [len(part) for part in parts] == [5, 4]
    assert parts[0] | parts[1] == whole
    assert list(parts[0]) != list(whole)[:5]
    middle = dict(list_pairs(dataclasses.replace(data, train="train[60%:80%]")))
    assert middle.items() <= parts[1].items()
    with pytest.raises(UserError, match=r"slice .* got 'train\[60%:60%\]'"):
        list_pairs(dataclasses.replace(data, train="train[60%:60%]"))


def test_rows_have_a_padding_token_for_each_position_and_weights_up_to_the_end():
    ids, weights = TEXT.pad([5, 6])
    tokens = len(Characters())
    assert ids.tolist() == [5, 6, *range(tokens + 2, tokens + LENGTH)]
    assert weights.tolist() == [1, 1, 1] + [0] * (LENGTH - 3)
    assert TEXT.pad([5] * LENGTH)[1].tolist() == [1] * LENGTH


def test_captions_are_restored_from_their_ids():
    ids = TEXT.parse(" a red Äpfel ")
    assert TEXT.describe(ids) == "a red Äpfel"
    assert TEXT.label(ids)[:3] == ["a", " ", "r"]
    assert TEXT.label(ids)[-1] == "-"
    for caption, message in {" ": "empty text", "a" * (LENGTH + 1): r"at most 16 tokens .* got 17"}.items():
        with pytest.raises(UserError, match=message):
            TEXT.parse(caption)


def test_long_captions_are_cut_and_counted(tmp_path, caplog):
    data = write_table(tmp_path, "train/c.csv", f"file_name,text\n0.png,{'a' * 40}\n1.png,short\n")
    batch = open_split(data).assemble([open_split(data).make(EVALUATION, index) for index in range(2)], 2)
    assert [TEXT.describe(text) for text in batch["text"]] == ["a" * LENGTH, "short"]
    assert "1 captions are longer than model.text_length (16)" in caplog.text


def test_empty_captions_and_pictures_without_captions_are_left_out_and_counted(tmp_path, caplog):
    data = write_captions(tmp_path, "txt")
    (tmp_path / "train" / "0.txt").unlink()
    (tmp_path / "train" / "2.txt").write_text(" \n\n")
    pictures = open_split(data)
    assert pictures.size == SPLITS["train"] - 2
    assert "2 pictures without a caption are left out" in caplog.text
    assert "2 empty captions are left out" in caplog.text
    assert open_split(data, text=None).size == SPLITS["train"]


def test_pictures_are_cropped_in_the_middle_and_resized(tmp_path):
    data = write_captions(tmp_path)
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :10] = 255
    pixels[:10, 10:30] = 255
    Image.fromarray(pixels).save(tmp_path / "train" / "0.png")
    image = open_split(data).make(EVALUATION, 0).image
    expected = np.repeat([1.0, -1.0], 4)[:, None] * np.ones(8)
    np.testing.assert_allclose(image[..., 0], expected, atol=0.5)


def test_each_epoch_has_each_picture_once_with_one_of_its_captions(tmp_path):
    pictures = open_split(write_captions(tmp_path, batch_size=3))
    batches = GeneratedBatches(pictures, 3, seed=5)
    texts = [[TEXT.describe(text) for text in batches.batch(step)["text"]] for step in range(60)]
    epochs = [list(itertools.chain(*texts[start : start + 3])) for start in range(0, 60, 3)]
    captions = [texts for _, texts in list_pairs(write_captions(tmp_path / "again"))]
    for epoch in epochs:
        assert len(epoch) == len(captions)
        for texts in captions:
            assert any(text in epoch for text in texts)
    assert {text for epoch in epochs for text in epoch} == {text for texts in captions for text in texts}
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    again = GeneratedBatches(pictures, 3, seed=5).batch(7)
    np.testing.assert_array_equal(batches.batch(7)["text"], again["text"])


def test_the_fingerprint_depends_on_captions_and_pictures(tmp_path):
    data = write_captions(tmp_path, "txt")
    prints = [open_split(data).fingerprint, open_split(data).fingerprint]
    (tmp_path / "train" / "2.txt").write_text("another")
    prints.append(open_split(data).fingerprint)
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / "2.png")
    prints.append(open_split(data).fingerprint)
    assert [prints.index(each) for each in prints] == [0, 0, 2, 3]


@pytest.mark.parametrize("kind", ["table", "txt", "coco"])
def test_missing_splits_and_damaged_pictures_end_in_one_message(tmp_path, kind):
    data = write_captions(tmp_path, kind)
    with pytest.raises(UserError, match="none"):
        find_captions(data, "none")
    with pytest.raises(UserError, match=r"data\.directory"):
        find_captions(dataclasses.replace(data, directory=""), "train")
    path = tmp_path / "train" / "1.png"
    path.write_bytes(path.read_bytes()[:45])
    with pytest.raises(UserError, match=r"train/1\.png cannot be read as a picture"):
        open_split(data).make(EVALUATION, 1)


def test_rows_with_missing_pictures_are_named(tmp_path):
    data = write_table(
        tmp_path, "train/c.csv", "file_name,text\n0.png,one\n9.png,two\n../x/8.png,three\n,four\n"
    )
    with pytest.raises(UserError, match=r"3 rows .*c\.csv, row 2: '9\.png'; .*row 3: '\.\./x/8\.png'"):
        find_captions(data, "train")


def test_names_of_pictures_may_have_another_unicode_form(tmp_path):
    row = json.dumps({"file_name": unicodedata.normalize("NFC", "Ä.png"), "text": "one"})
    data = write_table(tmp_path, "train/c.jsonl", row)
    (tmp_path / "train" / "0.png").rename(tmp_path / "train" / unicodedata.normalize("NFD", "Ä.png"))
    assert [texts for _, texts in list_pairs(data)] == [["one"]]


@pytest.mark.parametrize(("kind", "file"), [("txt", "train/0.txt"), ("table", "train/metadata.jsonl")])
def test_files_of_another_encoding_are_named(tmp_path, kind, file):
    data = write_captions(tmp_path, kind)
    (tmp_path / file).write_bytes("file_name,text\n0.png,grün\n".encode("latin-1"))
    with pytest.raises(UserError, match=rf"{file}.*UTF-8"):
        find_captions(data, "train")


def test_captions_of_coco_need_their_pictures(tmp_path, caplog):
    data = write_captions(tmp_path, "coco")
    path = tmp_path / "annotations" / "captions_train.json"
    content = json.loads(path.read_text())
    content["annotations"] += [{"image_id": 99, "caption": "elsewhere"}, {"image_id": 0, "caption": "  "}]
    path.write_text(json.dumps(content))
    stored = find_captions(data, "train")
    assert (stored.left_out, stored.empty) == (1, 1)
    assert "1 of 15 annotations" in caplog.text
    (tmp_path / "train" / "3.png").unlink()
    with pytest.raises(
        UserError, match=r"train lacks 1 images of .*captions_train\.json, for example 3\.png"
    ):
        find_captions(data, "train")
    content["annotations"][2] = {"image_id": 0, "caption": None}
    path.write_text(json.dumps(content))
    Image.new("RGB", (20, 13)).save(tmp_path / "train" / "3.png")
    with pytest.raises(UserError, match=r"annotations\[2\]: expected a text in the field caption, got null"):
        find_captions(data, "train")


def test_a_split_without_any_caption_is_an_error(tmp_path):
    data = write_captions(tmp_path, "txt")
    for path in (tmp_path / "train").glob("*.txt"):
        path.unlink()
    with pytest.raises(UserError, match="none of the 9 pictures has a caption"):
        open_split(data)


# Of the captions below, two are shorter with their ends, one is as long, and one is cut.
DALLE = dataclasses.replace(cases.DALLE, text_vocabulary=320, text_length=15)


def make_config(folder, **fields):
    """Writes pictures, captions and an autoencoder, and returns the config of a run."""
    return cases.make_text_to_image_of_own_captions(dataclasses.replace(DALLE, **fields), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def task(folder):
    return text_to_image.create(make_config(folder), str(folder / "run"))


@pytest.fixture(scope="module")
def variables(task):
    """Returns variables with which the tokens have very different probabilities."""
    return {"params": random_parameters(task.model, np.zeros((1, 5), int), deviation=0.4)}


@pytest.fixture(scope="module")
def batch(task):
    """Returns the validation pictures, with a padding row."""
    pictures = task.open_data().validation
    return pictures.assemble([pictures.make(EVALUATION, index) for index in range(4)], 5)


@pytest.fixture(scope="module")
def reference(task, variables, batch):
    """Returns the negative log probabilities of captions and of codes, [4], and the number of tokens."""
    autoencoder = task.first_stage.variables["params"]["encoder"]
    sizes = {"groups": cases.DVAE.groups, "blocks": cases.DVAE.blocks}
    codes = numpy_dvae.encode(autoencoder, batch["images"][:4], **sizes).argmax(-1).reshape(4, -1)
    rows = [[1, *text, *(320 + codes[row])] for row, text in enumerate(batch["text"][:4])]
    tokens = np.array(rows)
    found = numpy_dalle.log_probabilities(variables["params"], tokens, DALLE, ("row", "convolution"))
    nll = -np.take_along_axis(found[:, :-1], tokens[:, 1:, None], 2)[..., 0]
    counts = [min(len(caption) + 1, DALLE.text_length) for caption in CAPTIONS]
    assert min(counts) < DALLE.text_length  # otherwise no token of these captions has the weight 0
    text = [nll[row, :count].sum() for row, count in enumerate(counts)]
    return np.array(text), nll[:, DALLE.text_length :].sum(1), sum(counts)


CAPTIONS = [texts[0] for _, texts in EXPECTED]
READ_CAPTIONS = [caption[: DALLE.text_length] for caption in CAPTIONS]


def test_losses_count_the_tokens_of_captions_and_their_ends(task, variables, batch, reference):
    @quick_jit
    def loss(variables, constants):
        return task.loss(variables, batch, Context(constants=constants))

    output = loss(variables, task.constants())
    text, image, tokens = reference
    assert output.metrics["text_nll"] == pytest.approx((text.sum(), tokens), rel=1e-4)
    assert output.metrics["image_nll"] == pytest.approx((image.sum(), 4 * 16), rel=1e-4)
    assert output.terms["text"] == pytest.approx((text.sum() / 8, tokens), rel=1e-4)


@pytest.mark.long
def test_reports_have_the_nats_of_captions_tokens_and_codes(task, variables, reference):
    (report,) = task.report(variables, "validation")
    text, image, tokens = reference
    values = {score.name: score.value for score in report.scores}
    assert values == {
        "nats of a caption": pytest.approx(text.sum() / 4, rel=1e-4),
        "nats of a token": pytest.approx(text.sum() / tokens, rel=1e-4),
        "nats of a code": pytest.approx(image.sum() / 64, rel=1e-4),
    }
    assert [row["caption"] for row in report.examples] == READ_CAPTIONS
    numbers = [list(map(float, line.split("\t"))) for line in report.outputs]
    np.testing.assert_allclose(numbers, np.column_stack([text, image]), atol=0.01)


@pytest.mark.long
def test_evaluations_draw_some_captions_and_own_captions_can_be_observed(task, variables):
    evaluation = task.evaluate(variables, task.open_data())
    assert evaluation.scores.keys() == set(task.validation_scores)
    assert task.best.metric in evaluation.scores
    assert [row["caption"] for row in evaluation.samples.rows] == READ_CAPTIONS
    assert list(evaluation.samples.pictures) == ["drawn", "completed"]
    assert task.default_examples() == READ_CAPTIONS[:2]
    observation = task.observe(variables, "a red cat", 64)
    assert (observation.title, observation.result) == ("a red cat", "the picture is drawn")
    assert observation.tracks["tokens"].labels[:4] == ["start", "a", " ", "r"]
    with pytest.raises(UserError, match="at most 15 tokens"):
        task.observe(variables, "a very long caption", 64)


def count_held(references, expected):
    """Returns how many arrays are still referenced, after JAX has released what it does not need any more.

    If a computation reads an array without a copy, a thread of JAX gives the array up a moment after the
    result exists, and the next call of JAX releases it. This function waits up to a second until at most
    `expected` arrays are left.
    """
    for _ in range(100):
        jax.device_put(0).block_until_ready()
        held = sum(reference() is not None for reference in references)
        if held <= expected:
            break
        time.sleep(0.01)
    return held


def test_an_evaluation_holds_few_batches_of_pictures(task, variables):
    config = dataclasses.replace(
        task.config, data=dataclasses.replace(task.config.data, batch_size=1), validation_samples=0
    )
    pictures = task.open_data().validation
    references: list[weakref.ref] = []
    largest = 0

    class Watched:
        """The validation pictures, which remember their batches."""

        size = pictures.size

        def make(self, *numbers):
            return pictures.make(*numbers)

        def assemble(self, examples, rows):
            nonlocal largest
            batch = pictures.assemble(examples, rows)
            references.append(weakref.ref(batch["images"]))
            largest = max(largest, count_held(references, expected=2))
            return batch

    small = text_to_image.OwnTextToImage(config, task.first_stage, load_tokenizer("", "bytes"))
    small.evaluate(variables, types.SimpleNamespace(validation=Watched()))
    assert len(references) == pictures.size == 4
    assert largest <= 2  # the batch in the loop and the next batch


@pytest.mark.parametrize("channels", [1, 3])
def test_autoencoders_read_own_pictures_of_their_size(tmp_path, channels):
    model = dataclasses.replace(cases.DVAE, image_size=12, channels=channels)
    config = image_tokens.Config(model=model, data=write_captions(tmp_path, "txt"))
    batch = next(image_tokens.create(config, str(tmp_path)).open_data().train_batches(0))
    assert batch["images"].shape == (4, 12, 12, channels)
    assert batch.keys() == {"images", "weights"}
    with pytest.raises(UserError, match=r"model\.channels to be 1 or 3"):
        image_tokens.create(dataclasses.replace(config, model=dataclasses.replace(model, channels=2)), "")


@pytest.mark.parametrize("place", ["run", "new"])
def test_the_model_must_know_all_tokens(task, folder, place):
    if place == "new":
        (folder / "new").mkdir()
        shutil.copy(folder / "run" / "first_stage.safetensors", folder / "new")
    model = dataclasses.replace(DALLE, text_vocabulary=265)
    with pytest.raises(UserError, match=r"model\.text_vocabulary to be at least \d+, got 265"):
        text_to_image.create(dataclasses.replace(task.config, model=model), str(folder / place))
    assert (folder / place / "vocabulary.model").exists() == (place == "run")


@pytest.mark.long
def test_a_tokenizer_is_learned_once_and_kept(tmp_path):
    config = make_config(tmp_path, text_vocabulary=420)
    data = dataclasses.replace(config.data, tokenizer="word_pieces", vocabulary_size=280)
    config = dataclasses.replace(config, data=data)
    first = text_to_image.create(config, str(tmp_path / "run")).assets()
    (tmp_path / "train" / "metadata.jsonl").unlink()
    assert text_to_image.create(config, str(tmp_path / "run"), new=False).assets() == first
    assert set(first) == {"first_stage.safetensors", "vocabulary.model"}


def test_exports_have_no_paths(tmp_path):
    data = write_captions(tmp_path, pictures=str(tmp_path), train=str(tmp_path / "train"))
    for tokenizer, name in ((tmp_path / "t.json", "t.json"), (tmp_path / "gpt2", "tokenizer.json")):
        exported = dataclasses.replace(data, tokenizer=str(tokenizer)).without_paths()
        assert exported.tokenizer == name
        assert str(tmp_path) not in repr(exported)


def test_exports_keep_folders_inside_the_folder_of_the_data(tmp_path):
    names = {"train": "sub/train.csv", "test": "sub/test.csv", "pictures": "img/all"}
    exported = write_captions(tmp_path, **names).without_paths()
    assert {name: getattr(exported, name) for name in names} == names
