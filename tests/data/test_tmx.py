"""Tests of translation memories. The contract of readers has further tests."""

import gzip
import logging
import time

import pytest

from tests.support.corpora import pairs_of, problem, text_config
from tfm.data.sources.xml_reader import fits_language

UNIT = "<tu><tuv xml:lang='{}'><seg>{}</seg></tuv><tuv xml:lang='{}'><seg>{}</seg></tuv></tu>\n"


def memory(folder, *units, start="<tmx version='1.4'><header/><body>\n", end="</body></tmx>"):
    """Writes train.tmx and returns a config that reads it."""
    (folder / "train.tmx").write_text(start + "".join(units) + end, encoding="utf-8")
    return text_config(folder, train="train.tmx", validation="train.tmx", test="")


@pytest.mark.parametrize(
    ("language", "wanted", "fits"),
    [
        ("en", "en", True),
        ("EN-US", "en", True),
        ("en", "en-us", True),
        ("en_US", "en-US", True),
        ("en-GB", "en-US", False),
        ("eng", "en", False),
        ("zh-Hant-TW", "zh-Hant", True),
        ("", "en", False),
    ],
)
def test_languages_fit_with_and_without_regions(language, wanted, fits):
    assert fits_language(language, wanted) == fits


def test_equal_codes_precede_related_codes(tmp_path):
    unit = "<tu><tuv xml:lang='en-GB'><seg>colour</seg></tuv>" + UNIT.format("en", "color", "de", "Farbe")[4:]
    assert pairs_of(memory(tmp_path, unit)) == [("color", "Farbe")]


def test_inline_codes_are_removed_and_highlighted_text_stays(tmp_path):
    codes = "<bpt i='1'>&lt;b&gt;<sub>title</sub></bpt>Save<ept i='1'>&lt;/b&gt;</ept>"
    source = f"{codes} <hi>all</hi> files<ph x='1'/> &amp; exit&#160;now"
    assert pairs_of(memory(tmp_path, UNIT.format("en", source, "de", "x"))) == [
        ("Save all files & exit\xa0now", "x")
    ]


def test_units_without_a_language_are_left_out_with_their_number(tmp_path, caplog):
    config = memory(
        tmp_path,
        UNIT.format("en", "a", "de", "b"),
        UNIT.format("en", "c", "fr", "d"),
        UNIT.format("en", "", "de", "e"),
    )
    with caplog.at_level(logging.WARNING):
        assert problem(config) == ""
    assert pairs_of(config) == [("a", "b")]
    assert "Left out 2 of 3 translation units" in caplog.text


def test_memory_of_other_languages_is_an_error_that_names_them(tmp_path):
    message = problem(memory(tmp_path, UNIT.format("en", "a", "fr-FR", "b")))
    assert "none of its 1 units" in message
    assert "'en' (1)" in message
    assert "'fr-FR' (1)" in message


def test_memory_that_was_cut_short_is_an_error_with_its_line(tmp_path):
    config = memory(tmp_path, UNIT.format("en", "a", "de", "b"), "<tu><tuv xml:lang='en'>", end="")
    message = problem(config)
    assert message.startswith(f"Line 3 of {tmp_path}/train.tmx is no well-formed XML")


def test_declared_entities_are_an_error_and_html_entities_of_a_dtd_are_text(tmp_path):
    start = "<!DOCTYPE tmx [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;'>]>\n<tmx><body>"
    assert "declares the entity 'a'" in problem(
        memory(tmp_path, UNIT.format("en", "&b;", "de", "b"), start=start)
    )
    start = "<!DOCTYPE tmx SYSTEM 'tmx14.dtd'><tmx><body>"
    config = memory(tmp_path, UNIT.format("en", "caf&eacute;", "de", "b"), start=start)
    assert pairs_of(config) == [("café", "b")]


def test_declared_defaults_of_attributes_are_not_copied_into_each_element(tmp_path):
    """Otherwise, this file of 2 MB would take minutes."""
    start = f"<!DOCTYPE tmx [<!ATTLIST a x CDATA '{'y' * 1_000_000}'>]>\n<tmx><body>{'<a/>' * 250_000}"
    config = memory(tmp_path, UNIT.format("en", "a", "de", "b"), start=start)
    began = time.process_time()
    assert pairs_of(config) == [("a", "b")]
    assert time.process_time() - began < 10


def test_error_of_a_packed_file_is_a_single_sentence(tmp_path):
    memory(tmp_path)
    with gzip.open(tmp_path / "train.tmx.gz", "wb") as file:
        for _ in range(300):
            file.write(b" " * (1 << 20))
    config = text_config(tmp_path, train="train.tmx.gz", validation="train.tmx.gz", test="")
    assert problem(config).startswith("Expected ")


def test_memories_of_other_encodings_are_read(tmp_path):
    config = memory(tmp_path, UNIT.format("en", "ä", "de", "ß"))
    text = (tmp_path / "train.tmx").read_text("utf-8")
    for encoding in ("utf-16", "windows-1252"):
        declared = f"<?xml version='1.0' encoding='{encoding}'?>{text}"
        (tmp_path / "train.tmx").write_bytes(declared.encode(encoding))
        assert pairs_of(config) == [("ä", "ß")]


def test_memories_and_files_of_lines_are_read_side_by_side(tmp_path):
    memory(tmp_path, UNIT.format("en", "a", "de", "b"))
    (tmp_path / "more.en").write_text("c\n")
    (tmp_path / "more.de").write_text("d\n")
    assert pairs_of(text_config(tmp_path, train="*.tmx, more")) == [("a", "b"), ("c", "d")]


def test_long_segment_is_an_error(tmp_path):
    config = memory(tmp_path, UNIT.format("en", "a" * (1 << 21), "de", "b"))
    assert "has a segment of more than 1,048,576 characters" in problem(config)
