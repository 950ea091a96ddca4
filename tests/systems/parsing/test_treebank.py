"""Tests of treebanks as sources of pairs: files, damaged files and the built-in treebank."""

import pytest

from tfm.data.config import PairsConfig
from tfm.data.sources.opening import check_splits, open_pairs, read_sides
from tfm.errors import UserError
from tfm.systems.parsing.treebank import BUILTIN_TREES, TREEBANK

LINES = (
    "( (S (NP-SBJ (NNP Ann)) (VP (VBZ sleeps)) (. .)) )\n(FRAG (-LRB- -LRB-)\n  (NN x))\n((NP (-NONE- *)))\n"
)
PAIRS = [("Ann sleeps .", "(S (NP NNP )NP (VP VBZ )VP . )S"), ("-LRB- x", "(FRAG -LRB- NN )FRAG")]


def make(folder, **fields):
    languages = {"source_language": "words", "target_language": "trees"}
    data = {"kind": TREEBANK, "directory": str(folder), "cache_dir": str(folder / "cache")}
    return PairsConfig(**data | languages | fields)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.mrg").write_text(LINES, encoding="utf-8")
    (tmp_path / "validation.txt").write_text("(NN a)", encoding="utf-8")
    return tmp_path


def test_pairs_are_words_and_tokens_of_trees(folder, caplog):
    pairs = open_pairs(make(folder), "train")
    assert pairs[:] == PAIRS
    assert pairs[1] == PAIRS[1]
    assert len(pairs) == 2
    assert "Left out 1 trees" in caplog.text
    assert read_sides(make(folder), "validation") == (["a"], ["NN"])


def test_file_extension_does_not_change_the_treebank(folder):
    plain = open_pairs(make(folder), "train")
    (folder / "other.mrg").write_bytes(b"\xef\xbb\xbf" + LINES.encode())
    (folder / "bare").write_text(LINES.replace("\n", "\r\n"), encoding="utf-8")
    for name in ("train.mrg", "other", "bare"):
        assert open_pairs(make(folder), name).fingerprint == plain.fingerprint
    assert open_pairs(make(folder), "validation").fingerprint != plain.fingerprint


def test_a_name_without_ending_prefers_mrg_to_txt_and_txt_to_no_ending(folder):
    for words, ending in (("c", ""), ("b", ".txt"), ("a", ".mrg")):
        (folder / f"other{ending}").write_text(f"(NN {words})", encoding="utf-8")
        assert open_pairs(make(folder), "other")[:] == [(words, "NN")]


def test_no_warning_without_empty_trees(folder, caplog):
    open_pairs(make(folder), "validation")
    assert not caplog.text


def test_a_changed_file_is_read_again_and_its_fingerprint_depends_on_words_and_trees(folder):
    fingerprints = []
    for text in ("(S (NN a))", "(S (NN bb))", "(S (VB bb))", "(S (NN a))"):
        (folder / "validation.txt").write_text(text, encoding="utf-8")
        pairs = open_pairs(make(folder), "validation")
        tag, word = text[4:-2].split()
        assert pairs[:] == [(word, f"(S {tag} )S")]
        fingerprints.append(pairs.fingerprint)
    assert len(set(fingerprints)) == 3
    assert fingerprints[0] == fingerprints[3]


def test_all_trees_may_be_on_one_line(folder):
    (folder / "validation.txt").write_text("(S (NN a)) " * 20_000, encoding="utf-8")
    assert len(open_pairs(make(folder), "validation")) == 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"validation\.txt is empty"),
        (b"((NP (-NONE- *)))", "has no tree with words"),
        (b"(NN a)\n(S (NN b)", r"validation\.txt .* line 2"),
        (b"(NN a)\n" + b"(S " * 10_000, r"Line 2 of .*validation\.txt .*200"),
    ],
)
def test_damaged_treebank_is_an_error_with_file_and_line(folder, content, message):
    (folder / "validation.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        check_splits(make(folder))


def test_builtin_treebank_needs_no_file(tmp_path):
    config = make(tmp_path, kind=BUILTIN_TREES, directory="")
    pairs = open_pairs(config, "validation")
    assert len(pairs) == 500
    assert all(words.endswith(" .") and tokens.startswith("(S ") for words, tokens in pairs[:])
    with pytest.raises(UserError, match="validation, test, got 'other'"):
        open_pairs(config, "other")
    with pytest.raises(UserError, match=r"data\.directory"):
        open_pairs(make(tmp_path, kind=BUILTIN_TREES), "validation")
