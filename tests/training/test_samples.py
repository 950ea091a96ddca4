"""Tests of samples.jsonl and of its pictures."""

import html
import re

import pytest

from tfm.errors import UserError
from tfm.training.samples import (
    SAMPLES_FILE,
    SamplesWriter,
    StepSamples,
    format_table,
    picture_path,
    read_samples,
)
from tfm.training.task import Samples

ROWS = [{"source": "a", "hypothesis": "b"}]


def write_picture(path):
    with open(path, "wb") as file:
        file.write(b"picture")


def test_written_samples_are_read_back(tmp_path):
    writer = SamplesWriter(str(tmp_path))
    writer.on_samples(20, Samples(ROWS, {"attention": write_picture}))
    writer.on_samples(3, Samples(ROWS, {}))
    path = picture_path(str(tmp_path), 20, "attention")
    expected = [StepSamples(3, ROWS, {}), StepSamples(20, ROWS, {"attention": path})]
    assert read_samples(str(tmp_path)) == expected
    (tmp_path / "samples" / "step-0000000020-attention.png").unlink()
    assert read_samples(str(tmp_path))[1].pictures == {}


def test_samples_that_a_resumed_run_repeats_do_not_count(tmp_path):
    """The second start resumes from step 4 and evaluates other steps."""
    for start, steps in ((0, (2, 4, 6)), (4, (5, 8))):
        writer = SamplesWriter(str(tmp_path))
        writer.on_start(start, None)
        assert (tmp_path / SAMPLES_FILE).exists() == (start > 0)
        for step in steps:
            writer.on_samples(step, Samples(ROWS, {}))
    assert [samples.step for samples in read_samples(str(tmp_path))] == [2, 4, 5, 8]


def test_line_that_a_kill_has_cut_is_left_out(tmp_path):
    path = tmp_path / SAMPLES_FILE
    SamplesWriter(str(tmp_path)).on_samples(3, Samples(ROWS, {}))
    line = path.read_text()
    path.write_text(line + line[:-9])
    assert [samples.rows for samples in read_samples(str(tmp_path))] == [ROWS]
    path.write_text(line[:-9])
    with pytest.raises(UserError, match=r"Expected samples of a run at .*samples\.jsonl"):
        read_samples(str(tmp_path))


def test_deleted_run_folder_is_not_created_again(tmp_path):
    gone = tmp_path / "gone"
    for pictures in ({}, {"attention": write_picture}):
        with pytest.raises(UserError, match="Cannot write"):
            SamplesWriter(str(gone)).on_samples(3, Samples(ROWS, pictures))
        assert not gone.exists()


def test_line_ends_and_bars_stay_within_their_cells():
    table = format_table([{"a|b": "x\n| y", "c": "\\|"}])
    assert table == "| a\\|b | c |\n| --- | --- |\n| x \\| y | \\\\\\| |"


@pytest.mark.parametrize(
    "text", ["<unk> </s>", "a & b &lt;", "*a* **b** _c_ __d__", "`x`", "[a](b) ![c](d)", "\\<|>", "plain."]
)
def test_markdown_shows_the_text_of_a_cell(text):
    """Removing escapes and entities restores the text. Markdown interprets no other character."""
    cell = format_table([{"x": text}]).splitlines()[-1].removeprefix("| ").removesuffix(" |")
    assert html.unescape(re.sub(r"\\(.)", r"\1", cell)) == text
    assert not re.search(r"[<`*_\[|]", re.sub(r"\\.", "", cell))
