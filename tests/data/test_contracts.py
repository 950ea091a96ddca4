"""The contracts of tfm.testing over every reader of the project, and every source of batches."""

import importlib
import inspect
import pkgutil

from tests.data import cases
from tests.support.epochs import EpochLaws
from tests.support.pairs import sentences
from tfm import data
from tfm.data.images import Images
from tfm.data.text_source import TextSource
from tfm.testing.readers import ImageReaderContract, ReaderContract

INTERFACES = (TextSource, Images)
NOT_COVERED = {
    "RecordPairs": "its fingerprint is the name and version of a TFDS data set, see test_sources.py",
    "RecordImages": "its fingerprint is the name and version of a TFDS data set, see test_images.py",
    "DatasetTexts": "is in the case huggingface, if the package datasets is installed",
}


class TestPairs(ReaderContract):
    cases = cases.PAIRS | cases.TREES


class TestTables(ReaderContract):
    cases = cases.TABLES


class TestDocuments(ReaderContract):
    cases = cases.DOCUMENTS


class TestImages(ImageReaderContract):
    cases = cases.IMAGES


class TestPairBatches(EpochLaws):
    cases = cases.PAIR_BATCHES

    def examples(self, batch):
        return sentences(batch)


class TestMixtures(TestPairBatches):
    cases = cases.MIXTURES
    same_examples = False


class TestPackedDocuments(EpochLaws):
    cases = cases.PACKED

    def examples(self, batch):
        found = []
        for targets, segments in zip(batch["targets"], batch["segments"], strict=True):
            numbers = range(1, segments.max(initial=0) + 1)
            found += [tuple(targets[segments == number].tolist()) for number in numbers]
        return found


class TestContiguousDocuments(TestPackedDocuments):
    cases = cases.CONTIGUOUS
    same_examples = False


class TestImageBatches(EpochLaws):
    cases = cases.IMAGE_BATCHES

    def steps(self, batches):
        return 4

    def examples(self, batch):
        return batch["labels"][batch["weights"] > 0].tolist()


def test_every_reader_has_a_contract(tmp_path):
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(data.__path__, "tfm.data.")
    ]
    classes = {one for module in modules for one in vars(module).values() if is_reader(one)}
    readers = {**cases.PAIRS, **cases.TREES, **cases.TABLES, **cases.DOCUMENTS, **cases.IMAGES}
    covered = set()
    for name, reader in readers.items():
        if not reader.package:
            (tmp_path / name).mkdir()
            reader.write(tmp_path / name, reader.rows)
            covered.add(type(reader.open(tmp_path / name)).__name__)
    # Several corpora are joined, and each part has its tag.
    covered |= {"TaggedPairs"}
    assert {one.__name__ for one in classes} == covered | NOT_COVERED.keys()


def is_reader(value):
    """Returns whether a value is a class of tfm.data with a length, rows and a fingerprint of its own."""
    if not inspect.isclass(value) or not value.__module__.startswith("tfm.data."):
        return False
    if value in INTERFACES or issubclass(value, tuple):
        return False
    has_rows = hasattr(value, "__getitem__") or hasattr(value, "take")
    return has_rows and hasattr(value, "__len__") and "fingerprint" in inspect.getsource(value)
