"""Records of a CSV file as lines, against Python's csv module; lines of text are in test_sources.py."""

import csv
import random
from contextlib import nullcontext

import pytest

from tests.support.corpora import table_config, write_csv
from tfm.data import lines, sources
from tfm.errors import UserError


def test_csv_records_are_those_of_python(tmp_path, monkeypatch):
    """Quotes and line ends anywhere, and chunks that cut them; the csv module reads the whole file."""
    rng = random.Random(5)
    rows = [("".join(rng.choices('a,"\n\r', k=rng.randrange(9))), f"{i}") for i in range(200)]
    write_csv(tmp_path / "train.csv", rows)
    with open(tmp_path / "train.csv", encoding="utf-8", newline="") as file:
        expected = [tuple(row) for row in csv.reader(file)][1:]
    assert expected == rows
    for chunk in (1, 3, 64):
        monkeypatch.setattr(lines, "CHUNK", chunk)
        records = lines.Lines(str(tmp_path / "train.csv"), "file", lines.find_record_ends)
        found = [next(csv.reader([records.read(i).rstrip("\r")])) for i in range(1, len(records))]
        assert [tuple(row) for row in found] == rows
    pairs = sources.open_pairs(table_config(tmp_path), "train")
    assert [int(target) for _, target in pairs[:]] == list(range(200))


@pytest.mark.parametrize(("longest", "is_error"), [(3, True), (4, False)])
def test_a_line_may_be_as_long_as_the_limit(tmp_path, longest, is_error):
    (tmp_path / "file").write_bytes("a\nb\u00e4c\n\n".encode())  # 4 bytes on line 2
    made = lines.Lines(str(tmp_path / "file"), "file")
    with (
        pytest.raises(UserError, match=r"Line 2 of file .* 4 bytes.* 3 bytes") if is_error else nullcontext()
    ):
        made.check(longest)


def test_iterating_gives_every_line_stripped(tmp_path):
    path = tmp_path / "train.en"
    path.write_text(" one\ntwo \n\nthree", encoding="utf-8")
    assert list(lines.Lines(str(path), "file")) == ["one", "two", "", "three"]
