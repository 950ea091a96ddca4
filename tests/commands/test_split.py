"""Tests of the command that divides a corpus."""

import itertools
import json

from tests.support.commands import run_command

PAIRS = [(f"The {number} dogs.", f"Die {number} Hunde.") for number in range(30)]
TABLE = ("--config=multi30k_en_de", "--config.data.kind=table", "--config.data.format=tsv")
COLUMNS = ("--config.data.source_column=1", "--config.data.target_column=2")


def split_table(folder, pairs, *flags):
    """Runs `tfm split` on a table like those of Tatoeba: two texts and their source, without a header."""
    lines = (f"{source}\t{target}\tCC-BY 2.0 (France)\n" for source, target in pairs)
    (folder / "deu.txt").write_text("".join(lines), encoding="utf-8")
    files = (f"--config.data.directory={folder}", "--config.data.train=deu.txt")
    return run_command("split", *TABLE, *COLUMNS, *files, f"--output={folder / 'corpus'}", *flags)


def read_pairs(folder, split):
    sides = ((folder / "corpus" / f"{split}.{language}").read_text("utf-8") for language in ("en", "de"))
    return list(zip(*(side.splitlines() for side in sides), strict=True))


def test_the_splits_contain_each_pair_once(tmp_path):
    result = split_table(tmp_path, [*PAIRS, PAIRS[3]], "--rows=5")
    assert result.code == 0, result.error
    splits = {split: read_pairs(tmp_path, split) for split in ("train", "validation", "test")}
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        "train": 20,
        "validation": 5,
        "test": 5,
    }
    assert sorted(itertools.chain.from_iterable(splits.values())) == sorted(PAIRS)
    assert "train 20, validation 5, test 5 pairs, left out 1" in result.output


def test_data_of_the_splits_have_no_overlap(tmp_path):
    assert split_table(tmp_path, PAIRS, "--rows=5").code == 0
    shown = run_command(
        "data",
        "--config=multi30k_en_de",
        f"--config.data.directory={tmp_path / 'corpus'}",
        "--config.data.validation=validation",
        "--config.data.test=test",
        "--format=json",
    )
    assert shown.code == 0, shown.error
    overlaps = {split["name"]: split["overlap"] for split in json.loads(shown.output)}
    none = {"rows": 0, "sources": 0}
    assert overlaps == {"train": None, "validation": none, "test": none}


def test_too_few_pairs_are_an_error_that_names_the_flag(tmp_path):
    result = split_table(tmp_path, PAIRS, "--rows=15")
    assert result.code == 2
    assert "got 30" in result.error
    assert "--rows=15" in result.error
    assert not (tmp_path / "corpus").exists()


def test_documents_are_not_divided(tmp_path):
    result = run_command("split", "--config=lm_pydoc", f"--output={tmp_path / 'corpus'}")
    assert result.code == 2
    assert "language_modeling" in result.error
