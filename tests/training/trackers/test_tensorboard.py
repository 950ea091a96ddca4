"""Tests of the events that the TensorBoard tracker writes."""

import json
import struct

import matplotlib.image
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from tests.support.tiny_regression import make_config
from tests.support.tracked_regression import SampledRegression, train_tracked
from tfm.training.samples import picture_path, read_samples
from tfm.workdir import resume


def read_values(folder):
    """Returns (step, value) of all events in all files.

    An event of a TFRecord consists of the length, its checksum, the data, and their checksum.
    """
    found = []
    for path in sorted(folder.iterdir()):
        content, events = path.read_bytes(), []
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            data = content[12 : 12 + length]
            assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
            assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_crc32c(data)
            events.append(Event.FromString(data))
            content = content[16 + length :]
        assert events[0].file_version == "brain.Event:2"
        for event in events:
            if event.HasField("session_log"):  # TensorBoard drops earlier events from this step on
                found = [(step, value) for step, value in found if step < event.step]
            found += [(event.step, value) for value in event.summary.value]
    return found


@pytest.mark.long
def test_events_contain_everything_logged(tmp_path):
    train_tracked(tmp_path, "tensorboard", steps=3)
    found = {(step, value.tag): value for step, value in read_values(tmp_path / "tensorboard")}
    assert found[3, "train/loss"].simple_value > 0
    assert found[3, "validation/score"].simple_value < 0
    (config,) = found[0, "config"].tensor.string_val
    assert json.loads(config)["training"]["steps"] == 3
    assert found[0, "config"].metadata.plugin_data.plugin_name == "text"
    (table,) = found[3, "samples"].tensor.string_val
    (samples,) = read_samples(str(tmp_path))
    assert all(text in table.decode() for row in samples.rows for text in row.values())
    path = picture_path(str(tmp_path), 3, "slope")
    image = found[3, "samples/slope"].image
    with open(path, "rb") as file:
        assert image.encoded_image_string == file.read()
    assert matplotlib.image.imread(path).shape == (image.height, image.width, image.colorspace)


@pytest.mark.long
def test_steps_of_a_resumed_run_are_in_the_events_once(tmp_path):
    for steps in (2, 4):
        train_tracked(tmp_path, "tensorboard", steps=steps)
    steps = [step for step, value in read_values(tmp_path / "tensorboard") if value.tag == "train/loss"]
    assert sorted(steps) == [2, 4]


@pytest.mark.long
def test_steps_that_are_trained_again_replace_their_events(tmp_path):
    train_tracked(tmp_path, "tensorboard", steps=4)
    task = SampledRegression(make_config(trackers=("tensorboard",), steps=4))
    resume.resume_from(2, task, str(tmp_path))
    train_tracked(tmp_path, "tensorboard", steps=4)
    steps = [step for step, value in read_values(tmp_path / "tensorboard") if value.tag == "train/loss"]
    assert sorted(steps) == sorted(set(steps))


@pytest.mark.long
def test_evaluation_that_a_signal_interrupted_drops_no_point_of_its_step(tmp_path):
    train_tracked(tmp_path, "tensorboard", steps=4, eval_every=2)
    path = tmp_path / "scores.jsonl"
    first, _ = path.read_text().splitlines(keepends=True)
    path.write_text(first)  # a start that is interrupted in its evaluation writes no line
    train_tracked(tmp_path, "tensorboard", steps=6, eval_every=2)
    found = [(step, value.tag) for step, value in read_values(tmp_path / "tensorboard")]
    assert [step for step, tag in found if tag == "train/loss"] == [4, 6]
    assert [step for step, tag in found if tag == "config"] == [0, 4]
    assert {step for step, tag in found if tag == "validation/score"} == {2, 4, 6}
