"""Tests that all readers fulfil the contracts of readers, and all batches the laws of epochs."""

import importlib
import inspect
import pkgutil
import re

from tests.data import cases
from tests.support.epochs import EpochLaws
from tests.support.pairs import read_and_check_sentences
from tests.support.reader_contracts import ImageReaderContract, ReaderContract
from tfm.data import sources

# The case that covers each module with sources.
CASE_OF = {
    "parallel_text": "text",
    "tables": "tsv",
    "arrow": "parquet",
    "huggingface": "huggingface",
    "documents": "lines",
    "treebank": "treebank",
}
NOT_COVERED = {
    "tfds": "its fingerprint depends on files that TFDS writes, see test_sources.py",
    "builtin": "reads files of the package, see test_sources.py",
    "algorithms": "generates its rows, see test_algorithms.py",
    "labelled": "generates its rows, see test_text_classification.py",
    "sentences": "divides the rows of documents, see test_masked_batches.py",
    "reports": "generates its rows, see test_summarization.py",
    "opening": "opens sources that users define, see test_found_by_name.py",
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
        return read_and_check_sentences(batch)


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


def test_every_module_with_sources_has_a_case():
    modules = {
        module.name: inspect.getsource(importlib.import_module(f"tfm.data.sources.{module.name}"))
        for module in pkgutil.iter_modules(sources.__path__)
    }
    names = {name for name, text in modules.items() if re.search(r"return (Source|hold)\(", text)}
    assert names == CASE_OF.keys() | NOT_COVERED.keys()
    cases_of_readers = {**cases.PAIRS, **cases.TREES, **cases.TABLES, **cases.DOCUMENTS}
    assert set(CASE_OF.values()) <= cases_of_readers.keys()
