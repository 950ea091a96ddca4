"""Data sets that this module registers with TFDS when it is imported."""

import io
import os
import pathlib

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as tf

from tfm.data.config import PairsConfig


def config_of(folder, **fields):
    """Returns the config of a data set in a folder."""
    return PairsConfig(**{"kind": "tfds", "name": "downloaded", "directory": str(folder)} | fields)


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """Six German-English pairs with white space around lines. Defining the class registers it with TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.Translation(languages=("de", "en")), description="Tiny."
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 6), "validation": self._generate_examples(6, 8)}

    def _generate_examples(self, first, last):
        for i in range(first, last):
            yield i, {"de": f"Satz\n{i} ", "en": f" sentence {i}"}


class Downloaded(TinyTranslate):
    """The pairs of `TinyTranslate`, which first downloads files from the server in TFM_TEST_SERVER."""

    VERSION = tfds.core.Version("1.0.0")

    def _split_generators(self, dl_manager):
        server = os.environ["TFM_TEST_SERVER"]
        dl_manager.download({name: f"{server}/{name}" for name in ("first", "second")})
        return super()._split_generators(dl_manager)


class TinyReviews(tfds.core.GeneratorBasedBuilder):
    """Texts whose label is a class, an integer or a boolean, as in GLUE, SST-2 and IMDB."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["neg", "pos"]),
            "stars": tfds.features.Scalar(np.int64),
            "is_long": tfds.features.Scalar(np.bool_),
            "share": tfds.features.Scalar(np.float32),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), description="Tiny."
        )

    def _split_generators(self, dl_manager):
        return {
            split: self._generate_examples(split == "unsupervised")
            for split in ("train", "test", "unsupervised")
        }

    def _generate_examples(self, is_unlabelled):
        for i, text in enumerate(("bad", "good film", "good")):
            label = -1 if is_unlabelled else int(text != "bad")
            yield i, {"text": text, "label": label, "stars": 3 * i, "is_long": " " in text, "share": 0.5}


class TinyImages(tfds.core.GeneratorBasedBuilder):
    """Six colour images of 4 x 6 pixels in PNG files."""

    VERSION = tfds.core.Version("1.0.0")

    @staticmethod
    def image(number):
        """Returns an image, uint8 [4, 6, 3]. Its first value is its number."""
        return np.arange(72, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(number)

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(4, 6, 3)),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), description="Tiny."
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(6):
            file = io.BytesIO()
            Image.fromarray(self.image(i)).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": i % 2}


class ArrayImages(TinyImages):
    """The images of `TinyImages` as arrays, read with TensorFlow like MNIST and CIFAR-10 in TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _generate_examples(self):
        with tf.io.gfile.GFile(__file__, "rb") as file:
            assert file.read(3) == b'"""'
        for i in range(6):
            yield i, {"image": self.image(i), "label": i % 2}


class TinyRows(tfds.core.GeneratorBasedBuilder):
    """Nine rows of a training split with texts in three languages, two labels and an image.

    The texts contain the names of the folder and of the data set, so that two folders have different texts.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        texts = ("en", "de", "fr", "text", "other", "letter")
        features = {name: tfds.features.Text() for name in texts}
        features["label"] = tfds.features.ClassLabel(names=["no", "yes"])
        features["image"] = tfds.features.Image(shape=(4, 6, 3))
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), description="Tiny."
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        folder, name, _ = pathlib.Path(self.data_dir).parts[-3:]
        for i in range(9):
            file = io.BytesIO()
            Image.fromarray(TinyImages.image(i)).save(file, "PNG")
            file.seek(0)
            texts = {
                column: f"{folder} {name} {i} {column}" for column in ("en", "de", "fr", "text", "other")
            }
            yield i, texts | {"letter": "abc"[i % 3], "label": i % 2, "image": file}


class TinyOtherRows(TinyRows):
    """The rows of `TinyRows` under another name."""

    VERSION = tfds.core.Version("1.0.0")
