"""Tests of lines and CSV records that are read from a file in blocks of any size."""

import csv
import random
from contextlib import nullcontext

import pytest

from tests.support.corpora import pairs_of, table_config, write_csv
from tfm.data.sources import text_files
from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError


@pytest.mark.parametrize("block", [1, 3, 64, 1 << 20])
def test_csv_records_equal_those_of_the_standard_library(tmp_path, monkeypatch, block):
    """Quotes and line ends occur anywhere, and blocks end within them."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    rng = random.Random(5)
    rows = [("".join(rng.choices('a,"\n\r', k=rng.randrange(9))), f"{i}") for i in range(200)]
    write_csv(tmp_path / "train.csv", rows)
    with open(tmp_path / "train.csv", encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[1:] == list(map(list, rows))
    assert [int(target) for _, target in pairs_of(table_config(tmp_path))] == list(range(200))


@pytest.mark.parametrize(("longest", "is_error"), [(3, True), (4, False)])
def test_line_may_be_as_long_as_the_limit(tmp_path, longest, is_error):
    (tmp_path / "file").write_bytes("a\nb\u00e4c\n\n".encode())  # 4 bytes on line 2
    file = TextFile(str(tmp_path / "file"), max_line_bytes=longest)
    error = pytest.raises(UserError, match=r"Line 2 of .*file has more than 3 bytes")
    with error if is_error else nullcontext():
        assert list(file) == ["a", "b\u00e4c", ""]
