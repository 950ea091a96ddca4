"""Data sets that TFDS knows once this module is imported: one made on the spot, one from a server."""

import os

import tensorflow_datasets as tfds


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """Six German-English pairs; registered with TFDS by its definition."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.Translation(languages=("de", "en")), description="Tiny."
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 6), "validation": self._generate_examples(6, 8)}

    def _generate_examples(self, first, last):
        for i in range(first, last):
            yield i, {"de": f"Satz {i}", "en": f" sentence {i}"}


class Downloaded(TinyTranslate):
    """The same, with files from the server that the environment variable TFM_TEST_SERVER names."""

    VERSION = tfds.core.Version("1.0.0")

    def _split_generators(self, dl_manager):
        server = os.environ["TFM_TEST_SERVER"]
        dl_manager.download({name: f"{server}/{name}" for name in ("first", "second")})
        return super()._split_generators(dl_manager)
