"""Tests of text files, TFDS and the built-in language as sources of pairs."""

import gzip
import shutil
import unicodedata

import pytest
import tensorflow_datasets as tfds

from tests.support import tfds_sets
from tests.support.corpora import pairs_of, table_config, text_config, write, write_tsv
from tfm.data.config import PairsConfig
from tfm.data.source import Source, clean_rows, join, prefix_targets, tag_sources
from tfm.data.sources import opening as sources
from tfm.data.sources.builtin import read_feature
from tfm.errors import UserError
from tfm.systems.parsing.treebank import BUILTIN_TREES, TREEBANK


def test_only_newlines_separate_lines(tmp_path):
    """Real corpora contain U+2028 and form feeds within lines. A BOM and CRLF are removed."""
    source = "\ufeffone  \r\n two\u2028half\x0bx\x85y\r\n\nlast".encode()
    write(tmp_path, source, b"eins\nzwei\n\n  vier \n")
    assert pairs_of(text_config(tmp_path)) == [
        ("one", "eins"),
        ("two\u2028half\x0bx\x85y", "zwei"),
        ("", ""),
        ("last", "vier"),
    ]


@pytest.mark.parametrize("index", [0, 2, -1, -3, slice(1, None), slice(-2, None), slice(None, None, 2)])
def test_rows_of_a_source_have_the_indices_of_a_list(index):
    rows = [("a",), ("b",), ("c",)]
    assert Source(lambda: rows, lambda: "")[index] == rows[index]


@pytest.mark.parametrize("index", [3, -4])
def test_index_beyond_the_rows_is_an_error(index):
    with pytest.raises(IndexError):
        Source(lambda: [("a",), ("b",), ("c",)], lambda: "")[index]


def test_split_is_a_field_or_a_file_stem(tmp_path):
    write(tmp_path, b"a\n", b"b\n", stem="val.2016")
    config = text_config(tmp_path, validation="val.2016")
    assert pairs_of(config, "validation") == pairs_of(config, "val.2016") == [("a", "b")]
    stem = str(tmp_path / "val.2016")
    assert pairs_of(text_config(tmp_path, directory="", train=stem)) == [("a", "b")]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_of_files_may_have_another_unicode_form(tmp_path, forms):
    """macOS and archives write decomposed names."""
    named, on_disk = (unicodedata.normalize(form, "Sätze") for form in forms)
    write(tmp_path, b"a\n", b"b\n", stem=on_disk)
    assert pairs_of(text_config(tmp_path, train=named)) == [("a", "b")]
    write_tsv(tmp_path / f"{on_disk}.tsv", [("c", "d")])
    assert pairs_of(table_config(tmp_path, train=f"{named}.tsv")) == [("c", "d")]
    assert pairs_of(table_config(tmp_path, train=named)) == [("c", "d")]
    (tmp_path / f"{on_disk}.mrg").write_text("(S (NP (NN dogs)) (VP (VBP sleep)))\n", encoding="utf-8")
    trees = PairsConfig(kind=TREEBANK, directory=str(tmp_path), target_language="mrg", train=named)
    assert pairs_of(trees)[0][0] == "dogs sleep"
    write(tmp_path, b"e\n", b"f\n", stem=named)  # the exact name has priority
    assert pairs_of(text_config(tmp_path, train=named)) == [("e", "f")]


def test_missing_and_damaged_files_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"train\.en .*but there is none"):
        pairs_of(text_config(tmp_path))
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:-9])
    (tmp_path / "train.de").write_bytes(b"eins\n")
    with pytest.raises(UserError, match="does not unpack"):
        pairs_of(text_config(tmp_path))


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


def tfds_config(folder, **fields):
    return PairsConfig(**{"kind": "tfds", "name": "tiny_translate", "directory": str(folder)} | fields)


@pytest.mark.long
def test_tfds_set_is_prepared_and_read_in_both_directions(tfds_dir):
    pairs = sources.open_pairs(tfds_config(tfds_dir), "train")
    expected = [(f"sentence {i}", f"Satz {i}") for i in range(6)]
    assert sorted(pairs[i] for i in range(len(pairs))) == expected  # each text is one stripped line
    assert pairs[1:6:2] == [pairs[1], pairs[3], pairs[5]]
    with pytest.raises(IndexError):
        pairs[6]
    assert list(tfds_dir.glob("tiny_translate/1.0.0/*.array_record*"))
    reverse = sources.open_pairs(tfds_config(tfds_dir, source_language="de", target_language="en"), "train")
    assert reverse[0] == pairs[0][::-1]
    assert reverse.fingerprint != pairs.fingerprint


@pytest.mark.parametrize(
    ("fields", "split", "message"),
    [
        ({}, "train[:0]", r"'train\[:0\]' of .* is empty"),
        ({"name": "no_such_set"}, "train", "'no_such_set'"),
        ({"name": "tiny_translate:9.9.9"}, "train", r"'tiny_translate:9.9.9' .* 1.0.0"),
        ({"name": "tiny_translate/nothing"}, "train", "tiny_translate/nothing"),
    ],
)
def test_missing_tfds_sets_and_splits_are_errors(tfds_dir, fields, split, message):
    with pytest.raises(UserError, match=message):
        sources.open_pairs(tfds_config(tfds_dir, **fields), split)


@pytest.mark.long
def test_fingerprint_of_a_tfds_set_depends_on_its_content(tfds_dir, tmp_path):
    """The sets have the same name, splits and sizes."""

    with tfds.core.registered.skip_registration():

        class Other(tfds_sets.TinyTranslate):
            name = "tiny_translate"

            def _generate_examples(self, first, last):
                for i in range(first, last):
                    yield i, {"de": f"Satz {i}", "en": "another sentence"}

    Other(data_dir=str(tmp_path), file_format="array_record").download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    sources.open_pairs(tfds_config(tfds_dir), "train")  # prepares the set
    copy = shutil.copytree(tfds_dir, tmp_path / "copy")
    here, there, other = (
        sources.open_pairs(tfds_config(folder), "train[:3]").fingerprint
        for folder in (tfds_dir, copy, tmp_path)
    )
    assert here == there != other


def test_features_of_a_tfds_set_import_no_module(tmp_path, monkeypatch):
    """The folder of a set that somebody else made may be part of the folder of a run."""
    (tmp_path / "evil_features.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "stranger" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(
        '{"name": "stranger", "version": "1.0.0", "fileFormat": "array_record"}'
    )
    (folder / "features.json").write_text('{"pythonClassName": "evil_features.Feature"}')
    with pytest.raises(UserError, match=r"evil_features\.Feature, which is not part of TFDS"):
        sources.open_pairs(tfds_config(tmp_path, name="stranger"), "train")


@pytest.mark.parametrize("kind", ["builtin", BUILTIN_TREES])
def test_builtin_data_with_a_folder_are_an_error(tmp_path, kind):
    """A user who sets a folder has probably forgotten to set the kind."""
    with pytest.raises(UserError, match=rf"{tmp_path}.* data\.kind=text"):
        sources.open_pairs(PairsConfig(kind=kind, directory=str(tmp_path)), "train")


def builtin_config(**fields):
    return PairsConfig(kind="builtin", **fields)


def test_builtin_language_needs_no_files(tmp_path):
    config = builtin_config(cache_dir=str(tmp_path / "cache"))
    sources.check_splits(config)
    pairs = sources.open_pairs(config, "pronoun")
    assert pairs.fingerprint == "tfds-tfm_language/2.0.0-pronoun-500-en-de"
    famous = "The animal didn't cross the street because it was too tired."
    right = "Das Tier überquerte die Straße nicht, weil es zu müde war."
    assert pairs[0] == (famous, right)
    assert read_feature("pronoun", "wrong")[0] == right.replace(" es ", " sie ")
    reverse = builtin_config(
        source_language="de", target_language="en", validation="validation[:2]+test[99%:]"
    )
    expected = [*sources.open_pairs(config, "validation")[:2], *sources.open_pairs(config, "test")[990:]]
    assert [pair[::-1] for pair in sources.open_pairs(reverse, "validation")] == expected
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"test": "testing"}, "'testing'"),
        ({"train": "train[:x]"}, r"train\[:x\]"),
        ({"target_language": "fr"}, "'fr', but en, de"),
    ],
)
def test_missing_parts_of_the_builtin_language_are_errors(fields, problem):
    with pytest.raises(UserError, match=problem):
        sources.check_splits(builtin_config(**fields))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: tag_sources(rows, "<de>"),
        lambda rows: prefix_targets(rows, "<de>"),
        lambda rows: clean_rows(rows, str.strip),
        lambda rows: join([Source(lambda: [("x", "y")], lambda: "x"), rows]),
    ],
    ids=["tags", "prefixes", "cleaning", "joining"],
)
def test_changed_rows_stay_at_their_place_in_the_file(wrap):
    """A message about a row of a table names its line."""
    rows = Source(lambda: [("a", "b")], lambda: "a", locate=lambda row: f"line {row + 7} of a file")
    wrapped = wrap(rows)
    assert wrapped.locate(len(wrapped) - 1) == "line 7 of a file"
