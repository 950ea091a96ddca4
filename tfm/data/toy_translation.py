"""The built-in language as a TFDS dataset: made on the spot, needs neither a download nor TensorFlow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import tensorflow_datasets as tfds

from tfm.data.tfds_preparation import prepare_builder
from tfm.datasets.toy_translation.grammar import SIZES, generate
from tfm.errors import UserError


class TfmLanguage(tfds.core.GeneratorBasedBuilder):
    """English-German sentence pairs of a grammar: 50,000 to train on, and two challenges."""

    name = "tfm_language"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        names = ("en", "de", "wrong", "alignment")
        return tfds.core.DatasetInfo(
            builder=self,
            description="English-German sentence pairs with word alignments, from a generative grammar.",
            features=tfds.features.FeaturesDict({name: tfds.features.Text() for name in names}),
            supervised_keys=("en", "de"),
            disable_shuffling=True,  # the order of `generate` is random already, and twins stay together
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for index, example in enumerate(generate(split)):
            yield index, example._asdict()


def prepare(data_dir: str) -> tfds.core.DatasetBuilder:
    """The builder with its files written; writes them if they are not there. Prints nothing.

    Raises UserError if `data_dir` is a file.
    """
    path = Path(data_dir).expanduser()
    if path.exists() and not path.is_dir():
        raise UserError(f"expected a folder for the language's files, got the file {path}; name a folder")
    chatter = io.StringIO()  # TFDS announces a download, and draws progress bars over a few seconds
    with redirect_stdout(chatter), redirect_stderr(chatter):
        return prepare_builder(lambda root: TfmLanguage(data_dir=root, file_format="array_record"), str(path))
