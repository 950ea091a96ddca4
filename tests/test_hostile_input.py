"""Property-based tests that any input gives either a result or a single error message."""

import csv
import dataclasses
import gzip
import io
import json
import lzma

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tfm
from tests.support import entries
from tests.support.hostile_values import JSON, answer, in_folder
from tests.support.pairs import TEXTS
from tests.support.tiny import randomize_weights
from tfm import config
from tfm.data.tokenizers.learning import UNK_ID, learn_word_pieces
from tfm.data.tokenizers.protocol import number_words, split_ids
from tfm.errors import UserError
from tfm.tasks.translation.task import Config
from tfm.workdir import runs


def fields(section, path="config"):
    """Yields the full names of all fields of a dataclass."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        yield f"{path}.{field.name}"
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{path}.{field.name}")


VALUES = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "None", "True", "()", "(1,", "{}", "1e999", "-0", "\udcff", "9" * 5000]),
)


@pytest.mark.long
@given(st.lists(st.tuples(st.sampled_from(list(fields(Config()))), VALUES), min_size=1, max_size=3))
@settings(max_examples=150)
def test_any_override_is_either_valid_or_an_error(chosen):
    made = answer(entries.overrides, [f"--{name}={value}" for name, value in chosen])
    if not isinstance(made, UserError):
        assert config.from_mapping(Config, json.loads(json.dumps(dataclasses.asdict(made)))) == made
        assert config.from_mapping(Config, config.to_config_dict(made)) == made


@pytest.mark.long
@given(st.lists(st.text(max_size=20).map("--config".__add__), min_size=1, max_size=2))
def test_override_of_any_name_is_either_valid_or_an_error(arguments):
    answer(entries.overrides, arguments)


@pytest.mark.long
@given(st.sampled_from(list(fields(Config()))), JSON)
@settings(max_examples=200)
@example("config.training.steps", 10**400)
@example("config.label_smoothing", 10**400)
@example("config.data.target_language", "../../secret")
@example("config.data.directory", "a\0b")
@example("config.data.name", "community:anything")
@example("config.training.learning_rate_scale", float("nan"))
@example("config.training.steps", {"\x1b[31m\n": None})
def test_any_saved_value_is_either_valid_or_an_error(name, value):
    saved = dataclasses.asdict(Config())
    *sections, field = name.split(".")[1:]
    section = saved
    for part in sections:
        section = section[part]
    section[field] = value
    made = in_folder(entries.saved_config, json.dumps(saved).encode())
    if not isinstance(made, UserError):
        assert not {"/", ":"} & {*made.data.target_language, *made.data.name.partition("/")[0]}
        assert json.loads(json.dumps(dataclasses.asdict(made), allow_nan=False))


@pytest.mark.long
@given(st.binary(max_size=200) | JSON.map(lambda x: json.dumps(x).encode()))
@example(b"1" * 5000)
@example(b"\xff\xfe")
def test_any_saved_content_is_either_valid_or_an_error(content):
    in_folder(entries.saved_config, content)


# Texts.

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r", "\u2028", "\x85", "\v", "\0", "\ufeff", ""])
CONTENTS = st.one_of(
    st.binary(max_size=100),
    st.lists(st.text(max_size=10) | LINE_ENDS, max_size=8)
    .map("".join)
    .flatmap(
        lambda text: st.sampled_from(["utf-8", "utf-16", "latin-1", "utf-8-sig"]).map(
            lambda encoding: text.encode(encoding, errors="replace")
        )
    ),
)


def rows_of(excluded):
    """Returns a strategy of rows of two texts without some characters."""
    text = st.text(st.characters(exclude_characters=excluded, exclude_categories=["Cs"]), max_size=9)
    return st.lists(st.tuples(text, text), min_size=1, max_size=5)


@given(rows_of("\0\r"), st.sampled_from(["\n", "\r\n"]), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_csv_table_is_read_as_it_was_written(rows, line_end, quoting):
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=line_end, quoting=quoting).writerows([("en", "de"), *rows])
    assert in_folder(entries.table, file.getvalue().encode("utf-8"), "csv") == rows


@pytest.mark.long
@given(rows_of("\0\r\n\t"), st.sampled_from(["", "\ufeff"]), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_tsv_table_is_read_as_it_was_written(rows, mark, line_end):
    content = mark + "".join(f"{source}\t{target}{line_end}" for source, target in [("en", "de"), *rows])
    assert in_folder(entries.table, content.encode("utf-8"), "tsv") == rows


@pytest.mark.long
@given(
    st.one_of(CONTENTS, CONTENTS.map(b'en,de\n"'.__add__), CONTENTS.map(b"en\tde\n".__add__)),
    st.sampled_from(["tsv", "csv", "jsonl", "parquet"]),
)
def test_any_file_is_either_a_table_or_an_error(content, form):
    in_folder(entries.table, content, form)


@pytest.mark.long
@given(CONTENTS, CONTENTS)
def test_any_two_files_are_either_pairs_or_an_error(source, target):
    pairs = in_folder(entries.texts, source, target)
    sides = () if isinstance(pairs, UserError) else zip(*pairs, strict=True)
    for side, content in zip(sides, (source, target), strict=False):  # without pairs, there are no sides
        if content == b"\xef\xbb\xbf":
            continue  # a file with only a byte order mark is an empty line
        lines = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8").split("\n")
        assert list(side) == [line.strip() for line in lines[: len(side)]]
        assert len(lines) - len(side) == (lines[-1] == "")


@pytest.mark.long
@given(
    st.sampled_from([(".gz", gzip.compress), (".xz", lzma.compress)]),
    st.integers(0, 40),
    st.integers(0, 10_000),
    st.integers(0, 255),
)
@settings(max_examples=200)
def test_damaged_archive_is_either_read_correctly_or_an_error(kind, missing, place, byte):
    """Both formats contain checksums, but some bytes of their headers have no meaning."""
    ending, compress = kind
    plain = b"".join(b"line %d\n" % i for i in range(50))
    packed = bytearray(compress(plain))
    packed[place % len(packed)] = byte
    pairs = in_folder(entries.texts, bytes(packed[: len(packed) - missing]), b"x\n" * 50, ending)
    assert isinstance(pairs, UserError) or [source for source, _ in pairs] == plain.decode().splitlines()


TREEBANKS = st.lists(
    st.sampled_from([b"(", b"((", b")", b"))", b" ", b"\n", b"NP", b"-NONE-", b"(NN a)", b"\xff"])
)


@pytest.mark.long
@given(st.binary(max_size=50) | st.text(max_size=50).map(str.encode) | TREEBANKS.map(b"".join))
@example(b"(S " * 100_000)
@example(b"(" * 100_000)
@example(b"(NN a)" + b")" * 100_000)
@example(b"(S (NN \xc2\x85) (NN \xe2\x80\xa8))")
@example(b"((A|B (-NONE- 0) (=X= =)) (. .))")
@settings(max_examples=300)
def test_any_file_is_either_a_treebank_or_an_error(content):
    in_folder(entries.treebank, content)


# Vocabulary.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return learn_word_pieces(TEXTS, 310, str(tmp_path_factory.mktemp("vocabulary") / "v.model"))


SPECIAL = st.sampled_from(["<pad>", "<s>", "</s>", "<unk>", "\u2581", "<0x0A>", "\0", "\ufeff", "\u200b"])
ANY_TEXT = st.lists(st.text(st.characters(codec="utf-8"), max_size=20) | SPECIAL, max_size=5).map("".join)


@pytest.mark.long
@given(text=ANY_TEXT)
@settings(max_examples=300)
def test_any_text_is_unchanged_by_a_second_round_trip(tokenizer, text):
    """The first round trip normalises the text, and the second changes nothing."""
    (ids,) = tokenizer.encode([text])
    assert all(UNK_ID < i < len(tokenizer) for i in ids)
    once = tokenizer.decode(ids)
    twice = tokenizer.decode(tokenizer.encode([once])[0])
    assert twice == once
    assert len(number_words(tokenizer, ids)) == len(tokenizer.pieces(ids)) == len(ids)
    for longest in (1, 2, 7):
        parts = split_ids(tokenizer, ids, longest)
        assert [i for part in parts for i in part] == ids


@given(ids=st.lists(st.integers(0, 309), max_size=20))
def test_any_ids_are_decoded_to_a_text(tokenizer, ids):
    tokenizer.decode(ids).encode("utf-8")


# Translation.


@pytest.mark.long
@given(CONTENTS, st.lists(st.text(st.characters(codec="utf-8")) | LINE_ENDS, min_size=1, max_size=4))
@settings(max_examples=200)
def test_every_input_line_gives_an_output_line(content, answers):
    entries.translated(content, answers)


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(randomize_weights(runs.load(str(tiny_run))))


@pytest.mark.long
@given(content=CONTENTS)
@settings(max_examples=5)
def test_every_input_line_gives_an_output_line_with_a_model(translator, content):
    entries.translated(content, [], translator)


# Files of a run.


@pytest.mark.long
@given(st.binary(max_size=200) | JSON.map(lambda x: json.dumps(x).encode()))
@example(b"[" * 100_000)
@example(b'{"config": {"training": 5}}')
@example(json.dumps(dataclasses.asdict(Config())).encode())
@example(json.dumps({"config": dataclasses.asdict(Config())}).encode())
def test_any_file_of_a_run_is_either_read_or_an_error(content):
    for entry in (entries.changed_config, entries.started, entries.evaluation, entries.metrics):
        in_folder(entry, content)
    in_folder(entries.resumed, b"<0>\n<1", content)


@pytest.mark.long
@given(CONTENTS)
def test_resumed_output_keeps_its_complete_lines(content):
    in_folder(entries.resumed, content, entries.ORIGIN)


@pytest.mark.long
@given(CONTENTS, CONTENTS)
def test_data_without_a_problem_can_be_read(source, target):
    in_folder(entries.data_problems, source, target)
