"""Divides a corpus into splits: tfm split --config=multi30k_en_de --config.data.directory=DIR --output=FOLDER

Reads the training data of the config, and writes the files FOLDER/train.en, FOLDER/train.de,
FOLDER/validation.en and so on. Their endings are the languages of the config. No two splits share a sentence,
because all pairs that have a sentence in common stay together. Repeated pairs are left out. The choice is
random, and the same --seed makes the same choice.
"""

import collections
import contextlib
import dataclasses
import os

from tfm.commands.command import command
from tfm.commands.options import Split
from tfm.data.config import PairsConfig
from tfm.data.hold_out import hold_out
from tfm.data.source import Source
from tfm.data.sources.opening import check_splits, open_pairs
from tfm.errors import UserError
from tfm.export.write import check_absent
from tfm.io import local_copies
from tfm.io.files import atomic_folder, only_writer

HELD_OUT = ("validation", "test")


@command
def main(options: Split) -> None:
    """Writes the splits and prints the number of pairs in each.

    Raises:
      UserError: if the task has no sentence pairs, the output is not an empty or a new folder, another
        process writes it, or `write_splits` raises it.
    """
    data = getattr(options.config, "data", None)
    if not isinstance(data, PairsConfig):
        raise UserError(
            f"tfm split divides sentence pairs, but the task '{options.config.task}' has other data."
        )
    check_absent(options.output)
    with only_writer(options.output, "--output"):
        counts = write_splits(data, options.output, options.rows, options.seed)
    pairs = ", ".join(f"{split} {counts[split]:,}" for split in ("train", *HELD_OUT))
    print(f"wrote {local_copies.show(options.output)}: {pairs} pairs, left out {counts[None]:,}")


def write_splits(data: PairsConfig, folder: str, rows: int, seed: int) -> collections.Counter[str | None]:
    """Divides the training pairs of `data`, and writes two text files for each split.

    Args:
      data: the data section of a config.
      folder: the folder to write, with the files train.LANGUAGE, validation.LANGUAGE and test.LANGUAGE of
        both languages. It must be empty or not exist. After an error, it is not written.
      rows: number of pairs of the validation and of the test split.
      seed: seed of the random choice.

    Returns:
      The number of pairs of each split, and of those that are left out under None.

    Raises:
      UserError: if the pairs cannot be read, are too few, or both languages are the same.
      OSError: if the folder cannot be written.
    """
    languages = data.source_language, data.target_language
    if languages[0] == languages[1]:
        raise UserError(
            f"data.source_language and data.target_language are both {languages[0]}, but their files need "
            "different endings."
        )
    # Tags and prefixes are added again when the splits are read.
    plain = dataclasses.replace(
        data, joined_share=0.0, source_prefix="", target_prefix="", tags="", mixing=""
    )
    check_splits(plain, ["train"])
    pairs = open_pairs(plain, "train")
    try:
        assigned = hold_out(pairs, HELD_OUT, rows, seed)
    except ValueError as error:
        raise UserError(f"{error} Reduce --rows={rows}.") from None
    with atomic_folder(folder) as unfinished:
        _write_files(pairs, assigned, unfinished, languages)
    return collections.Counter(assigned)


def _write_files(pairs: Source, assigned: list[str | None], folder: str, languages: tuple[str, str]) -> None:
    """Writes each pair into the two files of its split, in the order of the corpus."""
    with contextlib.ExitStack() as stack:
        files = {
            split: [
                stack.enter_context(open(os.path.join(folder, f"{split}.{language}"), "w", encoding="utf-8"))
                for language in languages
            ]
            for split in ("train", *HELD_OUT)
        }
        for row, split in zip(pairs, assigned, strict=True):
            if split is None:
                continue
            for text, file in zip(row, files[split], strict=True):
                file.write(f"{text}\n")
