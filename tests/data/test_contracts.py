"""Tests that all readers fulfil the contracts of readers, and all batches the laws of epochs."""

import re

from tests.data import cases
from tests.support.epochs import EpochLaws
from tests.support.pairs import read_and_check_sentences
from tests.support.paths import ROOT
from tests.support.reader_contracts import ImageReaderContract, ReaderContract

# {file with sources, below tfm: the case that covers it}
CASE_OF = {
    "data/sources/parallel_text.py": "text",
    "data/sources/tmx.py": "translation memory",
    "data/sources/test_sets.py": "test set in XML",
    "data/sources/tables.py": "tsv",
    "data/sources/arrow.py": "parquet",
    "data/sources/huggingface.py": "huggingface",
    "data/sources/documents.py": "lines",
    "systems/parsing/treebank.py": "treebank",
    "systems/bert/conll.py": "columns of CoNLL",
    "systems/t_dmca/summaries.py": "summaries in columns",
    "systems/word2vec/corpus.py": "lines of word2vec",
}
NOT_COVERED = {
    "data/source.py": "defines what a source is, and joins and tags sources",
    "data/sources/tfds.py": "its fingerprint depends on files that TFDS writes, see test_sources.py",
    "data/sources/builtin.py": "reads files of the package, see test_sources.py",
    "data/sources/sentences.py": "divides the rows of documents, see test_masked_pairs.py",
    "data/sources/opening.py": "opens sources that users define, see test_found_by_name.py",
    "systems/universal/algorithms.py": "generates its rows, see test_generated_sources.py",
    "systems/bert/builtin_labels.py": "generates its rows, see test_generated_sources.py",
    "systems/t_dmca/reports.py": "generates its rows, see test_generated_sources.py",
}


class TestPairs(ReaderContract):
    cases = cases.PAIRS | cases.TREES | cases.TAGS


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
    files = {path.relative_to(ROOT / "tfm").as_posix(): path for path in (ROOT / "tfm").rglob("*.py")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    names = {name for name, text in texts.items() if re.search(r"return (Source|hold)\(", text)}
    assert names == CASE_OF.keys() | NOT_COVERED.keys()
    cases_of_readers = {**cases.PAIRS, **cases.TREES, **cases.TAGS, **cases.TABLES, **cases.DOCUMENTS}
    assert set(CASE_OF.values()) <= cases_of_readers.keys()
