"""Tests of the examples of `tfm explore`: the user's own pictures, and the parts of a model of pictures."""

import base64
import copy
import dataclasses
import io
import math
import zlib

import jax
import numpy as np
import pytest
from PIL import Image

from tests.support import images as tiny
from tfm.commands.page_server import MAX_BODY_BYTES
from tfm.data.config import ImagesConfig
from tfm.data.picture_files import PictureFiles
from tfm.errors import UserError
from tfm.interpret.observation import observe_example
from tfm.tasks import image_classification as classification
from tfm.visualize.live import MAX_PICTURE_BYTES, Example, LiveExamples

HEAD = "encoder.layers_0.self_attention.head_outputs"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    tiny.write_arrays(folder / "images.npz", {"train": 13, "validation": 7, "test": 5}, (6, 6, 3))
    data = ImagesConfig(kind="arrays", file=str(folder / "images.npz"), batch_size=4)
    config = classification.Config(model=dataclasses.replace(tiny.MODEL, channels=3), data=data)
    return classification.create(config, str(folder))


@pytest.fixture(scope="module")
def variables(task):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def live(task, variables):
    return LiveExamples(task, variables, lambda example, edits: f"{example} {edits}", 64)


def write_picture(pixels, **options):
    """Returns the content of a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def look(live, content, off=(), name="my cat.png"):
    """Returns the example of a picture."""
    picture = content if isinstance(content, str | None) else base64.b64encode(content).decode()
    return live.answer({"text": name, "picture": picture, "off": list(off), "known": []})["example"]


@pytest.fixture(scope="module")
def content(task):
    with np.load(task.config.data.file) as arrays:
        return write_picture(arrays["test_images"][1])


@pytest.mark.long
def test_an_own_picture_has_the_observation_of_the_same_picture_of_the_data(live, task, variables, content):
    expected = task.observe(variables, "1", 64)
    found = look(live, content)
    assert found["title"] == "my cat.png"
    assert found["result"] == expected.result
    assert found["predictions"][0]["probability"] == pytest.approx(expected.predictions[0].probability)
    assert found["tracks"]["patches"]["grid"] == (3, 3)


@pytest.mark.parametrize("resizing", ["crop", "pad", "stretch"])
def test_an_own_picture_is_resized_like_the_pictures_of_the_data(resizing, task, tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(write_picture(np.random.default_rng(0).integers(0, 256, (40, 70, 4), dtype=np.uint8)))
    other = copy.copy(task)
    other.config = dataclasses.replace(
        task.config, data=dataclasses.replace(task.config.data, resizing=resizing)
    )
    (expected,) = PictureFiles([str(path)], 6, 3, resizing).take(np.array([0]))
    for picture in (str(path), path.read_bytes()):
        np.testing.assert_array_equal(other.read_picture(picture, "large.png"), expected)


@pytest.mark.long
def test_a_path_is_an_example_of_the_command_line_but_not_of_a_page(live, task, variables, content, tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    found = observe_example(task, variables, str(path), 64)
    assert found.title == "cat.png"
    assert found.predictions == task.observe(variables, "1", 64).predictions
    with pytest.raises(UserError, match="Expected a picture, or the number"):
        live.answer({"text": str(path), "off": [], "known": []})


@pytest.mark.long
def test_a_head_and_a_patch_of_an_own_picture_are_turned_off(live, content):
    found = look(live, content, [[HEAD, 1], ["encoder.embeddings", 5]])
    assert found["title"] == "my cat.png Without encoder layer 0, head 1, patch row 1, column 1."
    assert found["live"]["python"].startswith("my cat.png")
    assert len(found["live"]["changes"]) == 3
    assert any(abs(after - before) > 1e-4 for _, before, after in found["live"]["changes"])


@pytest.mark.long
def test_the_first_page_may_show_an_own_picture(live, content):
    page = live.make_page([Example("cat.png", content), Example("0")], "title", "/look")
    assert f'"text":"cat.png","picture":"{base64.b64encode(content).decode()}"' in page
    assert '"takesPictures":true' in page


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no picture", "my cat.png cannot be read as a picture, because its format is unknown"),
        (b"", "cannot be read as a picture"),
        ("no base64 \u00fc", "in base64"),
        ("a", "in base64"),
        (bytes(MAX_PICTURE_BYTES + 1), "at most 8,388,608 bytes"),
    ],
    ids=["text", "empty", "characters", "cut", "large"],
)
def test_mistakes_with_pictures_are_answered_with_a_message(content, message, live):
    with pytest.raises(UserError, match=message):
        look(live, content)


def test_a_text_that_is_too_long_is_not_read(live):
    with pytest.raises(UserError, match="at most 100,000 characters, got 100,001"):
        live.answer({"text": "7" * 100_001, "off": [], "known": []})


def test_a_picture_with_too_many_pixels_is_not_decoded(live):
    content = write_picture(np.zeros((1, 1), np.uint8))
    header = content[12:16] + (60_000).to_bytes(4, "big") * 2 + content[24:29]
    bomb = content[:12] + header + zlib.crc32(header).to_bytes(4, "big") + content[33:]
    with pytest.raises(UserError, match="pixels"):
        look(live, bomb)


def test_a_model_of_many_channels_reads_no_own_pictures(task, content):
    other = copy.copy(task)
    other.config = dataclasses.replace(task.config, model=tiny.MODEL)
    with pytest.raises(UserError, match="1 or 3 channels, but this model reads 5"):
        other.read_picture(content, "cat.png")


def test_the_server_accepts_the_largest_picture():
    assert 4 * math.ceil(MAX_PICTURE_BYTES / 3) + (1 << 18) < MAX_BODY_BYTES
