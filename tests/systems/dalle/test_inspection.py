"""Tests of what `tfm data` shows of pictures with captions."""

import dataclasses

import pytest
from PIL import Image

from tests.support.captioned_pictures import SPLITS, write_captions
from tests.tasks import cases
from tfm.commands.data import summarize_splits
from tfm.errors import UserError
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import CaptionsConfig


def inspect(data, split="train", **model):
    """Returns the summary of a split for the second stage."""
    config = text_to_image.Config(model=dataclasses.replace(cases.OWN_DALLE, **model), data=data)
    return text_to_image.inspect_split(config, split)


@pytest.mark.parametrize("kind", ["table", "txt", "coco"])
def test_captions_are_counted(tmp_path, kind):
    summary = inspect(write_captions(tmp_path, kind))
    assert summary.title == "9 pictures with captions"
    assert summary.values == {
        "empty": 0,
        "left_out": 0,
        "without_captions": 0,
        "sizes": {"width": [20, 20], "height": [10, 18]},
        "pictures": 9,
        "captions": 13,
        "repeated_captions": 6,
        "words": 35,
        "different_words": 10,
        "histogram": {"0": 0, "1": 0, "2-3": 13},
    }
    assert summary.hints == []


def test_missing_captions_and_damaged_pictures_are_shown(tmp_path):
    data = write_captions(tmp_path, "txt")
    (tmp_path / "train" / "0.txt").unlink()
    (tmp_path / "train" / "2.txt").write_text("\n")
    (tmp_path / "train" / "4.png").write_bytes(b"no picture")
    summary = inspect(data)
    assert ("left out", "2 pictures have no caption") in summary.lines
    assert ("left out", "1 captions are empty") in summary.lines
    assert summary.hints[0].startswith(f"1 pictures cannot be read. {tmp_path}/train/4.png cannot be read")


def test_captions_that_will_be_cut_are_a_hint(tmp_path):
    data = write_captions(tmp_path)
    assert inspect(data, text_length=2).hints == [
        "9 captions have more words, and so even more tokens, than model.text_length (2) and will be cut"
    ]
    hints = inspect(dataclasses.replace(data, tokenizer="bytes"), text_length=13).hints
    assert hints == ["6 captions have more tokens than model.text_length (13) and will be cut"]


def test_both_stages_inspect_all_splits_and_count_repeated_pictures(tmp_path):
    data = write_captions(tmp_path)
    for name in ("train/1.png", "validation/0.png"):
        with Image.open(tmp_path / "train" / "0.png") as picture:
            picture.save(tmp_path / name)
    config = image_tokens.Config(model=cases.DVAE, data=data)
    summaries = list(summarize_splits(config, [], image_tokens.inspect_split))
    assert [summary.values["pictures"] for summary in summaries] == list(SPLITS.values())
    assert summaries[0].values["duplicates"] == 1
    assert summaries[1].values["overlap"] == 3  # the splits have the same small pictures
    with pytest.raises(UserError, match="none"):
        list(summarize_splits(config, ["none"], image_tokens.inspect_split))


def test_generated_captions_are_summarized():
    config = text_to_image.Config(model=cases.DALLE, data=CaptionsConfig(evaluated=5))
    summary = text_to_image.inspect_split(config, "test")
    assert summary.title == "5 generated pictures with captions"
    assert summary.values["captions"] == len(summary.hashes) == 5
