"""Tests of test sets in WMT's XML and SGML, and of several references."""

import pytest

from tests.data.cases import write_segments, write_test_set
from tests.support.corpora import pairs_of, problem, text_config, write_text, write_tsv
from tfm.data.sources.opening import read_references
from tfm.errors import UserError

DOCUMENT = '<doc id="{}" origlang="en"{}><src lang="en"><p>{}</p></src>{}</doc>'
REFERENCE = '<ref lang="de" translator="{}"><p>{}</p></ref>'


def write_xml(folder, *documents):
    (folder / "test.xml").write_text(f"<dataset id='x'>{''.join(documents)}</dataset>", encoding="utf-8")
    return text_config(folder, train="test.xml", validation="test.xml", test="test.xml")


def write_sgml(folder, source, target):
    (folder / "set-src.en.sgm").write_text(source, encoding="utf-8")
    (folder / "set-ref.de.sgm").write_text(target, encoding="utf-8")
    return text_config(folder, train="set", validation="set", test="set")


def test_xml_has_the_pairs_of_sacrebleu(tmp_path):
    """Segments are in the order of their numbers. Test suites and segments without references are absent."""
    texts = "<seg id='10'>ten</seg><seg id='2'>two &amp; more</seg><seg id='3'>three</seg>"
    references = REFERENCE.format("A", "<seg id='2'>zwei</seg><seg id='10'>zehn</seg>")
    references += REFERENCE.format("B", "<seg id='2'>2</seg><seg id='10'></seg>")
    hypothesis = "<hyp system='x'><p><seg id='2'>no</seg><seg id='10'>no</seg></p></hyp>"
    config = write_xml(
        tmp_path,
        DOCUMENT.format("a", "", texts, references + hypothesis),
        DOCUMENT.format("b", " testsuite='t'", texts, references),
        f"<collection id='general'>{DOCUMENT.format('c', '', texts, references + hypothesis)}</collection>",
    )
    expected = [("two & more", "zwei"), ("ten", "zehn")] * 2  # as sacreBLEU 2.6 unwraps the file
    assert pairs_of(config) == expected
    further = read_references(text_config(tmp_path, test="test.xml", references="B,A"), "test")
    assert further == [["2", None] * 2, ["zwei", "zehn"] * 2]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (
            [DOCUMENT.format("a", "", write_segments("xy"), "")],
            r"Expected references \(<ref>\) in .*test\.xml",
        ),
        (
            [DOCUMENT.format("a", "", write_segments("xy"), '<ref lang="fr"><seg id="1">x</seg></ref>')],
            "target language of the document 'a' .* is 'fr', but data.target_language is 'de'",
        ),
        ([DOCUMENT.format("a", "", "<seg id='1'/><seg id='1'/>", "")], "segment 1 of the document 'a' twice"),
        (["<doc>"], r"Line 1 of .*test\.xml is no well-formed XML \(mismatched tag\)"),
    ],
)
def test_unusable_xml_is_an_error(tmp_path, documents, message):
    with pytest.raises(UserError, match=message):
        pairs_of(write_xml(tmp_path, *documents))


def test_html_is_no_test_set(tmp_path):
    (tmp_path / "test.xml").write_text("<html></html>")
    assert "begins with <html>" in problem(text_config(tmp_path, train="test.xml", validation="test.xml"))


@pytest.mark.parametrize("name", ["set", "set-src.en.sgm", "set-ref.de.sgm", "set-*.en.sgm"])
def test_sgml_is_found_by_its_stem_and_by_its_names(tmp_path, name):
    config = write_sgml(tmp_path, "<seg id=1> R&D &lt; A&amp;B </seg>", "<seg id='1'>1 < 2</seg>")
    assert pairs_of(config) == [("R&D < A&B", "1 < 2")]
    assert pairs_of(text_config(tmp_path, train=name)) == pairs_of(config)


def test_references_of_sgml_are_found_by_document_and_number(tmp_path):
    source = f"<doc docid='a'>{write_segments('xy')}</doc>\n<doc docid='b'>{write_segments('z')}</doc>"
    documents = [("b", "1", "c"), ("a", "1", "ab"), ("a", "2", "de"), ("b", "2", "f")]
    target = "".join(
        f"<DOC docid='{name}' sysid='{system}'>\n{write_segments(texts)}</DOC>\n"
        for name, system, texts in documents
    )
    config = write_sgml(tmp_path, source, f"<refset>\n{target}</refset>")
    assert pairs_of(config) == [("x", "a"), ("y", "b"), ("z", "c")]
    further = read_references(text_config(tmp_path, test="set", references="2"), "test")
    assert further == [["d", "e", "f"]]


def test_segments_without_ids_and_sets_of_several_translators_are_read(tmp_path):
    """As mteval's own tools write them: the translator is an attribute of the set."""
    segments = [f"<DOC docid='d'>\n<seg>{a}</seg>\n<seg>{b}</seg>\n</DOC>" for a, b in ("xy", "ab", "de")]
    sets = [f"<refset refid='r{number}'>{each}</refset>" for number, each in enumerate(segments[1:])]
    config = write_sgml(tmp_path, f"<srcset>{segments[0]}</srcset>", f"<mteval>\n{''.join(sets)}</mteval>")
    assert pairs_of(config) == [("x", "a"), ("y", "b")]
    assert read_references(text_config(tmp_path, test="set", references="r1"), "test") == [["d", "e"]]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("<seg id='1'>a</seg>", "2 segments and .* has 1 for them.* segment 2 of the document ''"),
        (write_segments("abc"), "2 segments and .* has 3 for them.* segment 3"),
        (
            "<seg id='1'>a\n<seg id='2'>b</seg>",
            r"Line 1 of .*set-ref\.de\.sgm begins a segment that does not end",
        ),
    ],
)
def test_sgml_whose_references_do_not_fit_is_an_error(tmp_path, target, message):
    with pytest.raises(UserError, match=message):
        pairs_of(write_sgml(tmp_path, write_segments("xy"), target))


def test_missing_half_of_a_test_set_in_sgml_is_an_error(tmp_path):
    write_sgml(tmp_path, "<seg id='1'>x</seg>", "")
    (tmp_path / "set-ref.de.sgm").unlink()
    assert "set-ref.de.sgm" in problem(text_config(tmp_path, train="set", validation="set", test=""))


def test_further_references_are_files_columns_or_translators(tmp_path):
    write_text(tmp_path, [("a", "x"), ("b", "y")], "test")
    (tmp_path / "test.de.1").write_text("x1\n\n")
    write_tsv(tmp_path / "test.tsv", [("a", "x", "x1"), ("b", "y", "")], ("en", "de", "second"))
    (tmp_path / "folder").mkdir()
    write_test_set(tmp_path / "folder", [("a", "x"), ("b", "y")])
    files = text_config(tmp_path, references="de.1")
    table = text_config(tmp_path, kind="table", test="test.tsv", references="second")
    xml = text_config(tmp_path / "folder", test="train.xml", references="B")
    assert read_references(files, "test") == read_references(table, "test") == [["x1", None]]
    assert read_references(xml, "test") == [["x!", "y!"]]
    assert read_references(text_config(tmp_path), "test") == []


def test_references_of_another_number_are_an_error(tmp_path):
    write_text(tmp_path, [("a", "x"), ("b", "y")], "test")
    (tmp_path / "test.de.1").write_text("x\n")
    config = text_config(tmp_path, references="de.1")
    assert "test.en has 2 lines and" in problem(config, "test")


def test_references_of_a_kind_that_has_none_are_an_error(tmp_path):
    (tmp_path / "test.tmx").write_text(
        "<tmx><tu><tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg>b</seg></tuv></tu></tmx>"
    )
    assert "no further references" in problem(text_config(tmp_path, test="test.tmx", references="B"), "test")
