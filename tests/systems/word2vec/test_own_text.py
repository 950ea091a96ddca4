"""Tests of word2vec on a user's own text: reading, the vocabulary, the questions and the files of vectors.

The files in the folder gensim were written by gensim, and so were the scores that they are compared with.
"""

import collections
import dataclasses
import gzip
import json
import logging
import pathlib
import re
import time

import numpy as np
import pytest

from tests.support.word_texts import PAIRS, QUESTIONS, WORDS, write_texts
from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError
from tfm.export.formats import import_file
from tfm.systems.word2vec import corpus
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.corpus import open_lines, open_sentences, read_lines, split_words
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.question_files import (
    WordIndex,
    find_paths,
    read_analogies,
    read_pairs,
    score_analogies,
    score_similarities,
)
from tfm.systems.word2vec.skip_grams import SkipGramBatches, SkipGramsConfig, number_sentences
from tfm.systems.word2vec.vector_files import read_vectors, write_binary, write_text
from tfm.training.config import TrainingConfig
from tfm.workdir import runs

GENSIM = pathlib.Path(__file__).parent / "gensim"
CHECK = json.loads((GENSIM / "check.json").read_text(encoding="utf-8"))


def make_data(folder, **fields):
    names = {"train": "train.txt", "validation": "validation.txt", "test": "test.txt"}
    sizes = {"minimum_count": 1, "subsampling": 1.0, "window": 2, "batch_size": 40, "validation_pairs": 80}
    folders = {"directory": str(folder), "cache_dir": str(folder / "cache")}
    return SkipGramsConfig(kind="text", **{**folders, **names, **sizes, **fields})


def make_config(folder, **fields):
    training = TrainingConfig(seed=5)
    return word_vectors.Config(
        model=Word2VecConfig(features=4), data=make_data(folder, **fields), training=training
    )


def read_texts(folder, **fields):
    return [text for (text,) in open_lines(make_data(folder, **fields), "train")]


@pytest.fixture
def folder(tmp_path):
    write_texts(tmp_path)
    return tmp_path


def test_words_are_separated_by_the_white_space_of_word2vec():
    assert split_words(" The\tbig  caf\u00e9,\u00a0x \r") == ["The", "big", "caf\u00e9,\u00a0x"]
    assert split_words("The BIG", lower_case=True) == ["the", "big"]


def test_long_lines_are_cut_after_a_thousand_words(tmp_path):
    words = [f"w{number}" for number in range(2500)]
    (tmp_path / "train.txt").write_text(f"a b\n\n{' '.join(words)}\nc d\n")
    pieces = [text.split() for text in read_texts(tmp_path)]
    assert [len(piece) for piece in pieces] == [2, 1000, 1000, 500, 2]
    assert [word for piece in pieces[1:4] for word in piece] == words


@pytest.mark.parametrize(
    "text", ["ab cd\nef gh", "ab cd\r\n\nef gh\n", "\ufeffab cd\nef gh\n", "ab cd\nef\ngh"]
)
def test_lines_are_read_in_blocks_of_any_size(text, tmp_path, monkeypatch):
    (tmp_path / "train.txt").write_bytes(text.encode())
    for size in (8, 9, 10, 100):
        monkeypatch.setattr(corpus, "BLOCK_BYTES", size)
        words = [split_words(line) for line in read_lines(TextFile(str(tmp_path / "train.txt")))]
        flat = [word for line in words for word in line]
        assert flat == ["ab", "cd", "ef", "gh"]
    lines = text.removeprefix("\ufeff").splitlines()
    assert [line for line in words if line] == [line.split() for line in lines if line]


def test_line_that_is_longer_than_a_block_is_read_in_parts(tmp_path, monkeypatch):
    text = " ".join(f"word{number}" for number in range(300))
    (tmp_path / "train.txt").write_text(text)
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 64)
    lines = list(read_lines(TextFile(str(tmp_path / "train.txt"))))
    assert len(lines) > 10
    assert " ".join(" ".join(lines).split()) == text
    (tmp_path / "train.txt").write_text("x" * 100)
    with pytest.raises(UserError, match=r"Line 1 .* word of more than 64 bytes"):
        list(read_lines(TextFile(str(tmp_path / "train.txt"))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a b\nc\xe9 d\n", "Line 2 .*UTF-8"),
        (b"a\0b\0 \0c\0", "NUL"),
        (b"", "at least two words"),
        (b"a a a\n", "at least two words .* got 1"),
        (b"a\nb\n", "a line with two words"),
    ],
)
def test_unusable_text_is_one_error(content, message, tmp_path):
    (tmp_path / "train.txt").write_bytes(content)
    config = make_config(tmp_path, validation="train.txt")
    with pytest.raises(UserError, match=message):
        word_vectors.create(config, str(tmp_path)).open_data()


def test_tables_and_compressed_files_have_the_words_of_text_files(folder):
    texts = read_texts(folder)
    with gzip.open(folder / "packed.txt.gz", "wt") as file:
        file.write((folder / "train.txt").read_text())
    assert read_texts(folder, train="packed.txt") == texts
    rows = [
        json.dumps({"body": f"{first}\n{second}"})
        for first, second in zip(texts[::2], texts[1::2], strict=True)
    ]
    (folder / "train.jsonl").write_text("\n".join(rows))
    config = dataclasses.replace(make_data(folder, train="train.jsonl"), kind="table", feature="body")
    assert [text for (text,) in open_lines(config, "train")] == texts


def test_sentences_of_the_cache_are_those_in_memory(folder):
    counts = collections.Counter(" ".join(read_texts(folder)).split())
    counts = {word: count for word, count in counts.most_common() if word != "the"}  # leaves words out
    cached = open_sentences(make_data(folder), "train", counts)
    assert isinstance(cached.words, np.memmap)
    held = number_sentences([text.split() for text in read_texts(folder)], counts)
    rows = np.array([3, 0, 59, 3])
    for actual, expected in zip(cached.take(rows), held.take(rows), strict=True):
        np.testing.assert_array_equal(actual, expected)
    batches = [SkipGramBatches(sentences, counts, make_data(folder), 1) for sentences in (cached, held)]
    np.testing.assert_equal(batches[0].batch(2), batches[1].batch(2))


def test_lower_case_merges_words(folder):
    (folder / "train.txt").write_text("The the THE a\n")
    counts = [word_vectors.count_training_words(make_data(folder, lower_case=case)) for case in (True, False)]
    assert counts == [{"the": 3, "a": 1}, {"THE": 1, "The": 1, "a": 1, "the": 1}]
    sentences = open_sentences(make_data(folder, lower_case=True), "train", counts[0])
    assert sentences.take(np.array([0]))[0].tolist() == [0, 0, 0, 1]


def test_analogies_have_sections(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("// a comment\n" + QUESTIONS)
    analogies = read_analogies(str(path))
    assert [analogy.relation for analogy in analogies] == ["capital-common-countries"] * 3 + [
        "gram3-comparative"
    ]
    assert analogies[0][1:] == ("Paris", "France", "Oslo", "Norway")
    for text, message in (("a b c\n", "Line 1 .* 3 words"), (": x\n", "none"), ("", "empty")):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_analogies(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "# Word 1\tWord 2\tHuman\ncat\tdog\t7.5\nold\tnew\t1\n",
        "Word 1,Word 2,Human (mean)\ncat,dog,7.5\nold,new,1\n",
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\ncat\tdog\tN\t7.5\t2\nold\tnew\tA\t1\t3\n",  # SimLex-999
        "cat dog 7.5\nold new 1\n",  # MEN
        "cat\tdog\t7.5\t3\t9\r\n\r\nold\tnew\t1\t2\t1\r\n",
    ],
)
def test_pairs_are_read_from_tables_of_any_form(text, tmp_path):
    (tmp_path / "pairs.txt").write_bytes(text.encode())
    assert read_pairs(str(tmp_path / "pairs.txt")) == [("cat", "dog", 7.5), ("old", "new", 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\t1\nc\td\n", "Line 2 "),
        ("a\tb\t1\nc\td\tx\n", "Line 2 .*column 3"),
        ("a\tb\t1\n\td\t2\n", "Line 2 "),
        ("a\tb\nc\td\n", "Line 2 .* no number"),
        ("a\tb\n", "none"),
        ("a\tb\tnan\nc\td\t2\n", "Line 1 .*nan"),
        ("a,b,1\n" + 'c,"' + "d" * 200_000 + "\n", "Line 2 "),
    ],
    ids=["two columns", "text", "no word", "two lines of titles", "titles only", "nan", "open quotation"],
)
def test_bad_pairs_are_an_error_with_the_line(text, message, tmp_path):
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_pairs(str(tmp_path / "pairs.tsv"))


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin", "glove.txt"])
def test_vectors_and_scores_are_those_of_gensim(name):
    words, vectors = read_vectors(str(GENSIM / name))
    np.testing.assert_array_equal(vectors, np.array(CHECK["vectors"], np.float32))
    assert words[:3] == ["the", "Paris", "France"]
    assert words[-1] == "caf\u00e9"
    index = WordIndex(words)
    analogies = score_analogies(vectors, index, read_analogies(str(GENSIM / "questions.txt")))
    scores = {score.name: score for score in analogies.scores}
    assert scores["analogies"].value == pytest.approx(100 * CHECK["analogies"])
    assert "; 1 with unknown words" in scores["analogies"].signature
    for section, right in CHECK["right"].items():
        share = right / (right + CHECK["wrong"][section])
        assert scores[f"analogies, {section}"].value == pytest.approx(100 * share)
    assert scores["analogies, syntactic"].value == scores["analogies, gram3-comparative"].value > 0
    assert scores["analogies, semantic"].value == scores["analogies, capital-common-countries"].value
    (similarity,) = score_similarities(
        vectors, index, {"pairs": read_pairs(str(GENSIM / "pairs.tsv"))}
    ).scores
    assert similarity.value == pytest.approx(100 * CHECK["spearman"])
    assert "4 pairs; 1 with" in similarity.signature
    assert CHECK["unknown"] == 20


def test_most_frequent_words_limit_questions_and_answers():
    words = ["a", "A", "b", "c", "d", "e"]
    index = WordIndex(words, 4)
    assert index.find(["A", "b"]) == [0, 2]  # the most frequent of several spellings
    assert index.find(["a", "d"]) == []
    assert WordIndex(words).find(["a", "D"]) == [0, 4]


@pytest.mark.parametrize("write", ["text", "glove", "binary"])
def test_written_vectors_are_read_again(write, tmp_path):
    words = ["the", "caf\u00e9", "no\u00a0break", "x"]
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 1e-3
    path = str(tmp_path / "vectors")
    if write == "binary":
        write_binary(path, words, vectors)
    else:
        write_text(path, words, vectors, header=write == "text")
    read_words, read = read_vectors(path)
    assert read_words == words
    np.testing.assert_array_equal(read, vectors)


def test_binary_vectors_are_read_in_linear_time(tmp_path):
    """A copy of the rest of a block for each row took 3.6 seconds for this file, and an hour for 3 GB."""
    words = [f"w{number}" for number in range(13_000)]
    vectors = np.ones((len(words), 300), np.float32)
    write_binary(str(tmp_path / "vectors.bin"), words, vectors)
    began = time.process_time()
    assert read_vectors(str(tmp_path / "vectors.bin")).words == words
    assert time.process_time() - began < 1


@pytest.mark.parametrize("header", ["", "2 3\n"])
def test_byte_order_mark_of_windows_is_no_part_of_a_header_or_word(header, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}the 1 2 3\na 4 5 6\n", encoding="utf-8-sig")
    words, vectors = read_vectors(str(path))
    assert words == ["the", "a"]
    assert vectors.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_odd_words_of_foreign_files_are_read(tmp_path, caplog):
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"the 1 2\n. . 3 4\n\xc2\xa0 5 6\nthe 7 8\n 9 9\n\xff 1 1\n")
    with caplog.at_level(logging.WARNING):
        words, vectors = read_vectors(str(path))
    assert words == ["the", ". .", "\u00a0", "\ufffd"]
    assert vectors.tolist() == [[1, 2], [3, 4], [5, 6], [1, 1]]
    assert "2 of 6" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Line 1 .* no header"),
        (b"the\n", "Line 1 "),
        (b"the x y\n", "Line 1 "),
        (b"2 2\na 1 2\n", "announces 2 words, but the file has 1"),
        (b"1 2\na 1 2\nb 1 2\n", "announces 1 words, but the file has 2"),
        (b"2 2\na 1 2\nb 1\n", "Line 3 .* 1 values"),
        (b"a 1 2\nb 1 x\n", "Line 2 .* no number"),
        (b"a 1 2\nb 1 nan\n", "Row 2 .* not finite"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb \0\0\0", "Row 2 .* cut short"),
        (b"0 2\n", "announces 0 words"),
    ],
)
def test_damaged_vectors_are_an_error_with_the_line(content, message, tmp_path):
    (tmp_path / "vectors.bin").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_vectors(str(tmp_path / "vectors.bin"))


def make_task(folder, **fields):
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return word_vectors.create(make_config(folder, **fields), str(run))


def test_best_checkpoint_follows_the_data(folder):
    questions = {"analogies": "questions.txt", "similarities": "pairs.csv"}
    task = make_task(folder, **questions)
    assert task.best == ("validation/loss", "min")
    assert task.validation_loss == "validation/loss"
    assert task.validation_scores == ("validation/loss", "validation/analogies", "validation/similarities")
    assert make_task(folder, validation="", **questions).best == ("validation/analogies", "max")
    task = make_task(folder, validation="", similarities="pairs.csv")
    assert (task.best, task.validation_loss) == (("validation/similarities", "max"), "")
    with pytest.raises(UserError, match=r"data\.validation.*data\.analogies.*data\.similarities"):
        make_task(folder, validation="").open_data()


def test_missing_held_out_lines_are_an_error_before_training(folder):
    with pytest.raises(UserError, match=r"dev\.txt.*data\.validation empty"):
        make_task(folder, validation="dev.txt", analogies="questions.txt").open_data()


def test_held_out_lines_without_a_pair_are_an_error_before_training(folder):
    with pytest.raises(UserError, match=r"'validation\.txt'.*data\.subsampling"):
        make_task(folder, subsampling=1e-9).open_data()


def test_questions_with_unknown_words_only_are_an_error_before_training(folder):
    (folder / "other.txt").write_text("Berlin Germany Rome Italy\n")
    with pytest.raises(UserError, match=r"none of the 1 analogies.*data\.most_frequent"):
        make_task(folder, analogies="other.txt")
    with pytest.raises(UserError, match=r"3 most frequent words"):
        make_task(folder, analogies="questions.txt", most_frequent=3)
    (folder / "other.csv").write_text("Berlin,Germany,3\nParis,Oslo,2\n")
    with pytest.raises(UserError, match=r"1 of the 2 pairs in other"):
        make_task(folder, similarities="other.csv")
    with pytest.raises(UserError, match=r"missing\.txt"):
        make_task(folder, similarities="missing.txt")
    assert find_paths(str(folder), "*.csv") == [str(folder / "other.csv"), str(folder / "pairs.csv")]


@pytest.mark.long
def test_report_has_the_loss_of_its_split_and_all_questions(folder):
    task = make_task(folder, analogies="questions.txt", similarities="pairs.csv")
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(len(WORDS), 4)).astype(np.float32) for name in ("centers", "contexts")}
    losses = {}
    for split in ("validation", "test"):
        (report,) = task.report({"params": params}, split)
        scores = {score.name: score.value for score in report.scores}
        losses[split] = scores["loss"]
        assert len(report.examples) == len(report.outputs) == 6  # three known analogies and pairs
    assert losses["validation"] != losses["test"]
    evaluation = task.evaluate({"params": params}, None)
    assert evaluation.scores["validation/loss"] == pytest.approx(losses["validation"])
    assert evaluation.scores["validation/similarities"] == pytest.approx(scores["similarities"] / 100)
    assert len(evaluation.samples.rows) > 3
    (folder / "test.txt").unlink()
    task = make_task(folder, analogies="questions.txt")
    (report,) = task.report({"params": params}, "test")
    assert "loss" not in {score.name for score in report.scores}
    with pytest.raises(UserError, match=r"data\.analogies"):
        next(make_task(folder).report({"params": params}, "test"))


@pytest.mark.long
def test_report_without_questions_lists_neighbours(folder):
    task = make_task(folder)
    params = {
        name: np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
        for name in ("centers", "contexts")
    }
    (report,) = task.report({"params": params}, "test")
    assert [example["word"] for example in report.examples] == task.words
    assert [score.name for score in report.scores] == ["loss"]


def test_summary_counts_words_and_known_questions(folder):
    config = make_config(folder, analogies="questions.txt", similarities="pairs.csv", minimum_count=40)
    summary = word_vectors.inspect_split(config, "train")
    counts = collections.Counter(" ".join(read_texts(folder)).split())
    known = {word for word, count in counts.items() if count >= 40}
    assert summary.values["sentences"] == 60
    assert summary.values["words"] == counts.total()
    assert summary.values["vocabulary"] == len(known)
    assert summary.values["unknown_words"] == sum(
        count for word, count in counts.items() if word not in known
    )
    pairs = [line.split(",")[:2] for line in PAIRS.splitlines()[1:]]
    expected = sum(set(pair) <= known for pair in pairs)
    assert summary.values["questions"]["pairs"] == {"known": expected, "all": 4}


@pytest.mark.long
def test_summary_counts_the_sentences_of_the_built_in_language():
    config = word_vectors.Config(data=SkipGramsConfig(sentences=100))
    summary = word_vectors.inspect_split(config, "train")
    assert summary.values["sentences"] == 100
    assert summary.values["words"] > 100


def test_published_config_has_no_paths_of_this_machine(folder):
    config = make_config(folder, analogies=f"{folder}/questions.txt, other.txt")
    published = config.without_paths().data
    assert (published.directory, published.cache_dir, published.analogies) == (
        "",
        "",
        "questions.txt,other.txt",
    )
    assert str(folder) not in repr(published)
    assert re.match("text files", config.data.summary)
    assert "built-in" in SkipGramsConfig().summary


@pytest.mark.long
def test_imported_vectors_are_evaluated_and_exported(tmp_path):
    import_file(str(GENSIM / "vectors.bin"), str(tmp_path / "import"), format="word2vec")
    config = runs.open_folder(str(tmp_path / "import")).config
    data = dataclasses.replace(
        config.data, directory=str(GENSIM), analogies="questions.txt", similarities="pairs.tsv"
    )
    run = runs.load(str(tmp_path / "import"), config=dataclasses.replace(config, data=data))
    (report,) = run.task.report(run.variables, "test")
    scores = {score.name: score.value for score in report.scores}
    assert scores["analogies"] == pytest.approx(100 * CHECK["analogies"])
    assert scores["similarities"] == pytest.approx(100 * CHECK["spearman"])
    words = json.loads((tmp_path / "import" / "words.json").read_text())
    assert words[:3] == [["the", 11], ["Paris", 5], ["France", 3]]  # 11 / rank
    with pytest.raises(UserError, match=r"--format=word2vec"):
        import_file(str(tmp_path), str(tmp_path / "other"), format="word2vec")
