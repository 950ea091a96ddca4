"""Functions that write, open and check files of sentence pairs."""

import csv
import json

import pyarrow
import pyarrow.parquet

from tfm.data.config import PairsConfig
from tfm.data.sources import opening as sources
from tfm.errors import UserError

PAIRS = [
    ("one", "eins"),
    ("two half", "zwei ä"),
    ("", "drei"),
    ('say "hi", you', "sag 'ja'; du"),
    ("five", "fünf"),
]


def text_config(folder, **fields):
    return PairsConfig(
        **{"kind": "text", "directory": str(folder), "cache_dir": str(folder / "cache")} | fields
    )


def table_config(folder, **fields):
    return text_config(folder, **{"kind": "table", "validation": "train"} | fields)


def write(folder, source, target, stem="train"):
    """Writes the bytes of both sides of text files."""
    (folder / f"{stem}.en").write_bytes(source)
    (folder / f"{stem}.de").write_bytes(target)


def write_text(folder, pairs, stem="train"):
    source, target = ("".join(f"{text}\n" for text in side).encode() for side in zip(*pairs, strict=True))
    write(folder, source, target, stem)


def write_tsv(path, pairs, header=("en", "de")):
    rows = ([header] if header else []) + list(pairs)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(path, pairs, header=("en", "de")):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(([header] if header else []) + list(pairs))


def write_jsonl(path, pairs):
    path.write_text("".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in pairs), encoding="utf-8")


def write_parquet(path, pairs):
    columns = {"de": [b for _, b in pairs], "id": list(range(len(pairs))), "en": [a for a, _ in pairs]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=3)


WRITERS = {"tsv": write_tsv, "csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def pairs_of(config, split="train"):
    """Returns the pairs of a split, read one by one."""
    pairs = sources.open_pairs(config, split)
    return [pairs[i] for i in range(len(pairs))]


def problem(config, *splits):
    """Returns the error message of the check of some splits, or "" if they are valid."""
    try:
        sources.check_splits(config, splits or ("train",))
    except UserError as error:
        return str(error)
    return ""
