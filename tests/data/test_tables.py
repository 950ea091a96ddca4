"""Tests of TSV, CSV, JSON Lines and Parquet files as sources of pairs, and of hostile files."""

import gzip
import json
import lzma
import os
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.corpora import (
    PAIRS,
    WRITERS,
    pairs_of,
    problem,
    table_config,
    text_config,
    write_csv,
    write_parquet,
    write_text,
    write_tsv,
)
from tfm.data.config import PairsConfig, remove_paths
from tfm.data.sources import opening as sources
from tfm.data.sources import text_files
from tfm.data.sources.text_files import expand_names
from tfm.errors import UserError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_line_ends_within_a_text_become_blanks(tmp_path, form):
    WRITERS[form](tmp_path / f"train.{form}", [("a\nb", "c\r\n\r\nd"), ("e\n", "f")])
    assert pairs_of(table_config(tmp_path)) == [("a b", "c d"), ("e", "f")]


@pytest.mark.parametrize("write", [write_tsv, write_csv])
def test_columns_without_a_header_are_selected_by_number(tmp_path, write):
    path = tmp_path / f"train.{'tsv' if write is write_tsv else 'csv'}"
    write(path, [("0", *pair) for pair in PAIRS], header=None)
    config = table_config(tmp_path, source_column="2", target_column="3")
    assert (
        pairs_of(config) == pairs_of(table_config(tmp_path, source_column="02", target_column="3")) == PAIRS
    )
    message = problem(table_config(tmp_path, source_column="2", target_column="4"))
    assert "no column '4'" in message


def test_nested_columns_are_found(tmp_path):
    """As in Hugging Face's WMT, the languages may be fields of the column "translation"."""
    nested = [{"translation": {"en": a, "de": b}, "of": {"id": "x"}} for a, b in PAIRS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in nested))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(nested), tmp_path / "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        assert pairs_of(table_config(tmp_path, train=name)) == PAIRS
        other = table_config(tmp_path, train=name, target_column="of.id")
        assert pairs_of(other) == [(a, "x") for a, _ in PAIRS]
        message = problem(table_config(tmp_path, train=name, target_column="fr"))
        assert "'fr', but 'translation." in message
        assert "'of.id'" in message


def test_missing_values_become_empty_texts(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"en": null, "de": "a"}\n\n{"en": "b", "de": "c"}\n\r\n')
    assert pairs_of(table_config(tmp_path)) == [("", "a"), ("b", "c")]
    table = pyarrow.table({"en": [None, "b"], "de": pyarrow.array(["a", "c"]).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "other.parquet")
    assert pairs_of(table_config(tmp_path, train="other")) == [("", "a"), ("b", "c")]


@pytest.mark.parametrize("position", [0, 1])
def test_null_in_place_of_a_pair_becomes_empty_texts(tmp_path, position):
    rows = [{"translation": {"en": "a", "de": "b"}}, {"translation": {"en": "c", "de": "d"}}]
    rows[position] = {"translation": None}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "b.parquet")
    expected = [("a", "b"), ("c", "d")]
    expected[position] = ("", "")
    for name in ("a.jsonl", "b.parquet"):
        assert pairs_of(table_config(tmp_path, train=name)) == expected


@pytest.mark.parametrize("is_nested", [False, True])
def test_parquet_file_with_a_column_twice_is_an_error(tmp_path, is_nested):
    names = ["en", "en", "de"]
    table = pyarrow.table([pyarrow.array(["a"])] * 3, names=names)
    if is_nested:
        pair = pyarrow.StructArray.from_arrays([pyarrow.array(["a"])] * 3, names)
        table = pyarrow.table({"translation": pair})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    message = problem(table_config(tmp_path))
    assert "several columns" in message
    assert "'en'" in message


def test_file_extension_determines_the_format(tmp_path):
    write_tsv(tmp_path / "plain.txt", PAIRS)
    content = (tmp_path / "plain.txt").read_bytes()
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(content))
    for name in ("a.tsv.gz", "a.tsv", "a"):
        assert pairs_of(table_config(tmp_path, train=name)) == PAIRS
    assert "plain.txt does not say its format" in problem(table_config(tmp_path, train="plain.txt"))
    assert pairs_of(table_config(tmp_path, train="plain.txt", format="tsv")) == PAIRS
    (tmp_path / "a.csv").write_text("en,de\nx,y\n")
    message = problem(table_config(tmp_path, train="a"))
    assert "a.tsv and " in message
    assert "a.csv" in message


@pytest.mark.parametrize("kind", ["text", "table"])
def test_split_may_be_a_list_or_a_pattern_of_files(tmp_path, kind):
    """Files of a pattern are sorted, files of a list are not, and the name of the folder has no effect."""
    prints = {}
    for folder in (tmp_path / "a", tmp_path / "z[1]"):
        folder.mkdir()
        for number, first in ((2, 3), (1, 0)):
            if kind == "text":
                write_text(folder, PAIRS[first : first + 3], f"part-{number}")
            else:
                write_tsv(folder / f"part-{number}.tsv", PAIRS[first : first + 3])
        config = text_config(folder, kind=kind, train="part-*", validation="part-1")
        assert problem(config) == ""
        assert pairs_of(config) == PAIRS
        named = text_config(folder, kind=kind, train="part-2, part-1")
        assert pairs_of(named) == PAIRS[3:] + PAIRS[:3]
        same, other = (sources.open_pairs(each, "train").fingerprint for each in (config, named))
        prints[folder.name] = same
        assert same != other
        assert pairs_of(config, "validation") == PAIRS[:3]
        absolute = text_config(folder, kind=kind, train=f"{folder}/part-1,{folder}/part-2")
        assert remove_paths(absolute).train == "part-1,part-2"
    assert len(set(prints.values())) == 1
    config = text_config(tmp_path, kind=kind, train="**/part-1*")
    assert pairs_of(config) == PAIRS[:3] * 2
    twice = "named more than once"
    names = {"part-1,part-1": twice, "part-1,./part-1": twice, "no-*": "No file has a name such as"}
    for name, message in names.items():
        assert message in problem(text_config(tmp_path / "a", kind=kind, train=name))


def test_patterns_leave_out_folders(tmp_path):
    (tmp_path / "sub").mkdir()
    for path, text in (("one.txt", "a"), ("sub/two.txt", "b")):
        (tmp_path / path).write_text(f"{text}\n")
    paths = {name: expand_names(str(tmp_path), name, [""]) for name in ("*", "**")}
    assert paths == {
        "*": [f"{tmp_path}/one.txt"],
        "**": [f"{tmp_path}/one.txt", f"{tmp_path}/sub/two.txt"],
    }


def test_pattern_reads_a_file_and_its_compressed_copy_once(tmp_path):
    write_tsv(tmp_path / "part-1.tsv", PAIRS)
    (tmp_path / "part-1.tsv.gz").write_bytes(gzip.compress((tmp_path / "part-1.tsv").read_bytes()))
    (tmp_path / "part-2.tsv.gz").write_bytes(gzip.compress((tmp_path / "part-1.tsv").read_bytes()))
    for pattern in ("part-*", "*.tsv", "part-*.tsv*"):
        assert pairs_of(table_config(tmp_path, train=pattern)) == PAIRS * 2


def test_existing_file_with_brackets_and_commas_is_no_pattern(tmp_path):
    write_text(tmp_path, PAIRS, "t[x],y*")
    assert pairs_of(text_config(tmp_path, train="t[x],y*")) == PAIRS


HOSTILE = {
    "torn.jsonl": (
        b'{"en": "a", "de": "b"}\n{"en": "c", "d',
        r"Line 2 of .*torn.jsonl .*no JSON \(Unterm",
    ),
    "list.jsonl": (b'["a", "b"]\n', r"Element 1 of .* expected a JSON object .*got a str"),
    "lists.jsonl": (b'["a", "b"]\n["c", "d"]\n', r"begins like a JSON array.*Extra data"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "begins like a JSON array.*recursion"),
    "number.jsonl": (
        b'{"en": "a", "de": "b"}\n{"en": 3, "de": "b"}\n',
        "Line 2 .* column 'en', got int",
    ),
    "lines.jsonl": (
        b'{\n "en": "a",\n "de": "b"\n}\n',
        r"Line 1 of .*no JSON .*each object on one line.*jq -c",
    ),
    "nested.jsonl": (
        b'{"data": [{"en": "a", "de": "b"}]}\n',
        r"Line 1 .*in the field 'data'.*jq -c '\.data\[\]'",
    ),
    "half.jsonl": (b'{"en": "\\ud83d", "de": "b"}\n', "Line 1 .*ud83d"),
    "key.jsonl": (b'{"en": "a", "de": "b"}\n{"en": "c"}\n', "Line 2 .*it has no column 'de'"),
    "column.tsv": (b"en\tfr\na\tb\n", "Line 1 of .*it has no column 'de', but 'en', 'fr'"),
    "twice.tsv": (b"en\tde\tde\na\tb\tc\n", "Line 1 of .*2 columns .*'de'"),
    "fewer.tsv": (b"en\tde\na\tb\n\nc\n", "Line 4 of .*expected 2 columns .*got 1"),
    "more.tsv": (b"en\tde\na\tb\tc\n", "Line 2 of .*expected 2 columns .*got 3"),
    "quotes.csv": (b'en,de\na,"b\nc,d\n', "Line 2 of .*quotes"),
    "stray.csv": (
        b'en,de\n"a\nb","c"\n5" pipe,d\n6" pipe,e\n',
        "Line 4 of .*quotes",
    ),
    "after.csv": (b'en,de\n"a"b,c\n', "Line 2 of .*quotes"),
    "cr.csv": (b"en,de\na,b\na\rc,d\n", "Line 3 of .*CR outside quotes"),
    "nul.tsv": ("en\tde\na\tb\n".encode("utf-16"), "UTF-16"),
    "nul.csv": (b"en,de\n\0,\0\n\0,\0\n", "NUL"),
    "mixed.tsv": (b"en\tde\na\tb\ngr\xfcn\tx\nc\td\n", "Line 3 of .*mixed.tsv is not UTF-8"),
    "empty.tsv": (b"", "empty.tsv is empty"),
    "blank.jsonl": (b"\n \n\n", "Line 2 of .*blank.jsonl .*JSON"),
    "header.csv": (b"en,de\n", "header.csv has no row"),
    "blank.tsv": (b"\n\r\n", "blank.tsv has no row"),
    "blank.csv": (b"\n\n", "blank.csv has no row"),
    "sides.tsv": (b"en\tde\na\t\n\tb\n", "'sides.tsv' .*both sides"),
    "packed.tsv": (gzip.compress(b"en\tde\na\tb\n"), r"packed\.tsv .*\.gz"),
    "text.parquet": (b"en\tde\n", "text.parquet is no Parquet file"),
    "empty.parquet": (b"", "empty.parquet is no Parquet file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables_are_errors(tmp_path, name):
    content, message = HOSTILE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        sources.check_splits(table_config(tmp_path, train=name), ("train",))


@pytest.mark.parametrize("name", ["header.csv", "blank.tsv", "blank.csv"])
def test_table_without_rows_has_length_0(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name][0])
    assert len(sources.open_pairs(table_config(tmp_path, train=name), "train")) == 0


def test_hostile_parquet_files_are_errors(tmp_path):
    write_parquet(tmp_path / "whole.parquet", PAIRS)
    content = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "flipped.parquet").write_bytes(content[:4] + bytes(60) + content[64:])
    bad = pyarrow.array([b"a", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"en": bad, "de": ["a", "b"]}), tmp_path / "latin.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"en": [1, 2], "de": ["a", "b"]}), tmp_path / "int.parquet")
    none = pyarrow.table(
        {"en": pyarrow.array([], pyarrow.string()), "de": pyarrow.array([], pyarrow.string())}
    )
    pyarrow.parquet.write_table(none, tmp_path / "none.parquet")
    for name, message in {
        "cut": "cut.parquet .*damaged",
        "flipped": "flipped.parquet .*damaged",
        "latin": "'en' of .*latin.parquet .*UTF-8",
        "int": "'en' of .*int.parquet .*int64",
        "none": "none.parquet has no rows",
    }.items():
        with pytest.raises(UserError, match=message):
            sources.check_splits(table_config(tmp_path, train=f"{name}.parquet"), ("train",))


def test_missing_and_unusable_tables_are_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    (tmp_path / "folder.tsv").mkdir()
    assert "pipe.tsv, got a folder, pipe" in problem(table_config(tmp_path, train="pipe.tsv"))
    assert "folder.tsv, got a folder" in problem(table_config(tmp_path, train="folder.tsv"))
    assert "Expected a table" in problem(table_config(tmp_path))
    assert "no.tsv (or " in problem(table_config(tmp_path, train="no.tsv"))
    assert "Expected a folder" in problem(table_config(tmp_path / "no"))
    write_tsv(tmp_path / "train.tsv", PAIRS)
    assert "are both 'en'" in problem(table_config(tmp_path, target_column="en"))
    assert problem(table_config(tmp_path), "train", "test") == ""  # the default test split may be absent
    assert "tset" in problem(table_config(tmp_path, test="tset"), "train", "test")


def test_table_that_changes_during_reading_is_an_error(tmp_path):
    for form in WRITERS:
        path = tmp_path / f"{form}.{form}"
        WRITERS[form](path, PAIRS)
        pairs = sources.open_pairs(table_config(tmp_path, train=path.name), "train")
        with open(path, "ab") as file:
            file.write(b" ")
        with pytest.raises(UserError, match=r"changed while it was read"):
            pairs[:]


def test_names_of_hugging_face_sets_are_invalid_for_tfds():
    assert PairsConfig(kind="huggingface", name="wmt/wmt14:de-en").name == "wmt/wmt14:de-en"
    for name in ("wmt/wmt14:de-en", "huggingface:x", ""):
        with pytest.raises(UserError, match=r"data\.name .*wmt14_translate/de-en"):
            PairsConfig(kind="tfds", name=name)


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.tsv.xz", "a.parquet"])
def test_file_that_unpacks_to_much_more_than_a_text_ends_early(name, tmp_path, monkeypatch):
    """A million equal rows need some kilobytes."""
    monkeypatch.setattr(text_files, "MAX_SMALL_BYTES", 1 << 20)
    text = "word " * 20
    if name.endswith("parquet"):
        column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200_000), [text])
        pyarrow.parquet.write_table(pyarrow.table({"en": column, "de": column}), tmp_path / name)
    else:
        opener = gzip.open if name.endswith("gz") else lzma.open
        with opener(tmp_path / name, "wt") as file:
            file.write("en\tde\n" + f"{text}\t{text}\n" * 20_000)
    config = table_config(tmp_path, train=name, source_column="en", target_column="de")
    with pytest.raises(UserError, match=rf"{name} .* to unpack to at most 200 times its size"):
        list(sources.open_pairs(config, "train"))
    monkeypatch.setattr(text_files, "MAX_SMALL_BYTES", 1 << 30)
    assert sources.open_pairs(config, "train")[:1] == [(text.strip(), text.strip())]


@pytest.mark.parametrize("has_schema", [True, False])
def test_text_that_a_small_parquet_file_repeats_is_once_in_memory(has_schema, tmp_path):
    """The file has 2 GB of text in some kilobytes."""
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10_000), ["x" * 200_000])
    table = pyarrow.table({"en": column, "de": column})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", store_schema=has_schema)
    before = pyarrow.default_memory_pool().max_memory()
    config = table_config(tmp_path, train="a.parquet", source_column="en", target_column="de")
    with pytest.raises(UserError, match="to unpack to at most 200 times its size"):
        list(sources.open_pairs(config, "train"))
    assert pyarrow.default_memory_pool().max_memory() < before + (1 << 28)


@pytest.mark.parametrize("indent", [None, 2])
def test_json_file_may_be_one_array(indent, tmp_path):
    records = [{"en": english, "de": german} for english, german in PAIRS]
    (tmp_path / "a.json").write_text("\ufeff \n" + json.dumps(records, indent=indent), encoding="utf-8")
    pairs = sources.open_pairs(table_config(tmp_path, train="a.json"), "train")
    assert pairs[:] == list(PAIRS)
    assert len(pairs) == len(PAIRS)


@pytest.mark.parametrize("indent", [None, 2])
def test_messages_number_the_elements_of_an_array(indent, tmp_path):
    """They called the fourth element, which begins in line 14, line 4."""
    records = [{"en": "a", "de": "b"}] * 3 + [{"en": "a", "de": 5}]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=indent), encoding="utf-8")
    pairs = sources.open_pairs(table_config(tmp_path, train="a.json"), "train")
    assert pairs.locate(2) == f"element 3 of {tmp_path / 'a.json'}"
    with pytest.raises(UserError, match=r"^Element 4 of .*a\.json .*'de', got int"):
        list(pairs)


def test_zst_files_equal_plain_files(tmp_path):
    WRITERS["tsv"](tmp_path / "a.tsv", PAIRS)
    (tmp_path / "b.tsv.zst").write_bytes(zstd.compress((tmp_path / "a.tsv").read_bytes()))
    plain, unpacked = (
        sources.open_pairs(table_config(tmp_path, train=name), "train") for name in ("a.tsv", "b.tsv")
    )
    assert unpacked[:] == plain[:]


@pytest.mark.parametrize("damage", ["cut short by 3 bytes", "cut in half", "other bytes follow"])
def test_damaged_zst_file_of_several_blocks_is_an_error(damage, tmp_path):
    pairs = [(f"sentence {i}", str(hash((i, 0.5)))) for i in range(50_000)]
    WRITERS["tsv"](tmp_path / "a.tsv", pairs)
    packed = zstd.compress((tmp_path / "a.tsv").read_bytes())
    damaged = {
        "cut short by 3 bytes": packed[:-3],
        "cut in half": packed[: len(packed) // 2],
        "other bytes follow": packed + b"other",
    }
    (tmp_path / "b.tsv.zst").write_bytes(damaged[damage])
    with pytest.raises(UserError, match=r"b\.tsv\.zst does not unpack"):
        sources.open_pairs(table_config(tmp_path, train="b.tsv"), "train")[:]


def test_zst_files_require_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, zstd.__name__.partition(".")[0], None)
    (tmp_path / "a.tsv.zst").write_bytes(b"")
    with pytest.raises(UserError, match=r"package backports.zstd.*pip install"):
        sources.open_pairs(table_config(tmp_path, train="a.tsv"), "train")[:]
