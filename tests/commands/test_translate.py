"""Tests of translation: the class `Translator`, its options, and files with one text per line."""

import copy
import dataclasses
import functools
import gzip
import io
import itertools
import json
import lzma
import os
import subprocess
import sys
import threading
import types

import jax
import numpy as np
import pytest

import tfm
from tests.support.commands import run_command
from tests.support.processes import LIMIT
from tests.support.tiny import randomize_weights
from tfm.commands import resumable_output
from tfm.commands import translate as translate_module
from tfm.commands.options import Translate
from tfm.commands.resumable_output import open_output
from tfm.commands.translate import (
    LINE_BYTES,
    as_json,
    as_text,
    chunks,
    read_lines,
    split_phrases,
    translate_file,
    translate_lines,
)
from tfm.data.sources.text_files import one_line
from tfm.data.tokenizers.protocol import EOS_ID, split_ids
from tfm.decoding.config import DecodingConfig
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.io.files import open_locked
from tfm.tasks.translation.task import Config
from tfm.workdir import runs

TEXTS = ["red dog", "a", "big green bird sleeps runs red", "cat runs", ""]


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(randomize_weights(runs.load(str(tiny_run))))


@pytest.mark.long
def test_texts_keep_their_order_in_any_batch(translator):
    together = translator.translate(iter(TEXTS), beam_size=2)
    assert translator.translate([]) == []
    alone = [translator.translate([text], beam_size=2)[0] for text in TEXTS]
    assert together == alone
    assert all(together[:-1])
    assert together[-1] == ""


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("sentences", lambda translator, x: translator.translate(x)),
        ("sentences", lambda translator, x: translator.hypotheses(x, prefixes=["rot"])),
        ("prefixes", lambda translator, x: translator.hypotheses(["dog"] * 3, prefixes=x)),
        ("sources", lambda translator, x: translator.score(x, ["hund"])),
        ("targets", lambda translator, x: translator.score(["dog"], x)),
        ("sources", lambda translator, x: translator.align(x, ["hund"])),
        ("targets", lambda translator, x: translator.align(["dog"], x)),
    ],
)
def test_arguments_that_are_no_list_of_texts_are_errors(translator, name, call):
    """A single text is an iterable of letters, too."""
    for other in ("Dog", b"Dog", 3, *([None] if name != "prefixes" else [])):
        with pytest.raises(UserError, match=f"Expected a list of texts as {name}, got {other!r}"):
            call(translator, other)
    with pytest.raises(UserError, match=f"Expected texts in {name}, got 3 among them"):
        call(translator, ["dog", 3])


def test_half_a_character_is_an_error(translator):
    """Python reads such a character from a command line that is not UTF-8."""
    with pytest.raises(UserError, match=r"half of a character in 'red \\udcff dog'"):
        translator.translate(["dog", "red \udcff dog"])


def test_lists_of_different_lengths_are_errors(translator):
    for prefixes in (["rot"], ["rot"] * 3, []):
        with pytest.raises(UserError, match=f"as many prefixes as sentences, 2, got {len(prefixes)}"):
            translator.hypotheses(TEXTS[:2], prefixes=prefixes)
    for call in (translator.score, translator.align):
        with pytest.raises(UserError, match="as many targets as sources, 2, got 1"):
            call(TEXTS[:2], ["hund"])


@pytest.mark.long
def test_n_best_are_distinct_and_sorted_and_begin_with_the_translation(translator):
    hypotheses = translator.hypotheses(TEXTS[:4], n_best=3, beam_size=4)
    for of_text, best in zip(hypotheses, translator.translate(TEXTS[:4], beam_size=4), strict=True):
        texts, scores = zip(*of_text, strict=True)
        assert len(set(texts)) == len(texts) == 3
        assert list(scores) == sorted(scores, reverse=True)
        assert texts[0] == best


@pytest.mark.parametrize("field", ["beam_size", "samples"])
def test_more_hypotheses_than_the_search_finds_are_an_error(field, translator):
    with pytest.raises(UserError, match=rf"decoding\.{field} .*at least 5 .* 4\b"):
        translator.hypotheses(["red"], n_best=5, **{field: 4})


def test_no_hypotheses_are_an_error(translator):
    with pytest.raises(UserError, match="at least 1 translation"):
        translator.hypotheses(["red"], n_best=0)


@pytest.mark.long
def test_translation_begins_with_its_prefix(translator):
    free = translator.translate(TEXTS[:4])
    prefixes = ["rot hund", "", "gross", "katze"]
    forced = [each[0].text for each in translator.hypotheses(TEXTS[:4], prefixes=prefixes)]
    assert all(text.startswith(prefix) for text, prefix in zip(forced, prefixes, strict=True))
    assert forced[1] == free[1]
    assert forced[0] != free[0]


@pytest.mark.long
def test_translation_has_at_least_the_minimum_number_of_tokens(tiny_run):
    run = runs.load(str(tiny_run))  # its translations end immediately
    source = [[*run.task.tokenizer.encode(["red"])[0], EOS_ID]]
    for minimum in (1, 7):
        config = DecodingConfig(max_extra_tokens=20, beam_size=3, min_length=minimum)
        assert len(translate_ids(run.task.model, run.params, source, config)[0][0].ids) == minimum


def with_members(translator, *members):
    """Returns the translator with other parameters, and with an ensemble for several trees of parameters."""
    variables = tuple({"params": params} for params in members)
    return tfm.Translator(translator.run._replace(variables=variables if len(members) > 1 else variables[0]))


PAIR = (["red dog"], ["rot hund"])


@pytest.fixture(scope="module")
def reversed_params(translator):
    """Returns other parameters for the model of the translator."""
    return jax.tree.map(lambda x: x[::-1], translator.run.params)


@pytest.mark.long
def test_ensemble_of_equal_models_equals_the_model(translator):
    twice = with_members(translator, translator.run.params, translator.run.params)
    assert twice.translate(TEXTS) == translator.translate(TEXTS)
    assert twice.align(*PAIR) == translator.align(*PAIR)
    np.testing.assert_allclose(twice.score(*PAIR)[0], translator.score(*PAIR)[0], rtol=1e-5)


@pytest.mark.long
def test_ensemble_averages_the_probabilities_of_its_models(translator, reversed_params):
    mixed = with_members(translator, translator.run.params, reversed_params)
    members = translator, with_members(translator, reversed_params)
    probabilities = [np.exp(member.score(*PAIR)[0]) for member in members]
    np.testing.assert_allclose(np.exp(mixed.score(*PAIR)[0]), np.mean(probabilities, axis=0), rtol=1e-4)
    assert mixed.translate(TEXTS) != translator.translate(TEXTS)


@pytest.mark.long
def test_an_ensemble_is_loaded_from_the_last_checkpoints(tiny_run):
    loaded = tfm.Translator.load(str(tiny_run), ensemble=2)
    assert loaded.run.steps == [4, 6]
    assert len(loaded.run.params) == 2


def test_an_average_of_an_ensemble_is_an_error(tiny_run):
    with pytest.raises(UserError, match="either averaged or an ensemble"):
        tfm.Translator.load(str(tiny_run), ensemble=2, average=2)


@pytest.mark.long
def test_samples_depend_on_the_seed(translator):
    options = {"samples": 6, "temperature": 0.5}
    first = translator.hypotheses(TEXTS, n_best=6, **options)
    assert first == translator.hypotheses(TEXTS, n_best=6, **options)
    assert first != translator.hypotheses(TEXTS, n_best=6, seed=1, **options)
    for each, best in zip(first, translator.translate(TEXTS, **options), strict=True):
        utilities = [score for _, score in each]
        assert each[0].text == best
        assert utilities == sorted(utilities, reverse=True)


@pytest.fixture(scope="module")
def sampler(translator):
    """Returns a translator that writes the best of three samples, and splits inputs after 13 tokens."""
    task = copy.copy(translator.run.task)
    task.config = dataclasses.replace(task.config, decoding=DecodingConfig(samples=3, max_input=14))
    return tfm.Translator(translator.run._replace(task=task))


def translate_in_chunks(translator, lines, most_lines):
    """Returns the lines that `translate_lines` writes for some lines."""
    source, target = io.BytesIO("".join(f"{line}\n" for line in lines).encode()), io.BytesIO()
    translate_lines(functools.partial(as_text, translator), source, target, most_lines=most_lines)
    return target.getvalue().decode().split("\n")[:-1]


@pytest.mark.long
@pytest.mark.parametrize("most_lines", [1, 2, 6])
def test_equal_lines_have_different_samples(most_lines, sampler):
    assert len(set(translate_in_chunks(sampler, ["red dog"] * 6, most_lines))) == 6


@pytest.mark.long
def test_samples_of_a_line_do_not_depend_on_its_chunk(sampler):
    lines = [*TEXTS, "red dog small cat big bird blue dog runs red cat", *TEXTS]
    together = translate_in_chunks(sampler, lines, len(lines))
    assert translate_in_chunks(sampler, lines, 1) == together
    assert translate_in_chunks(sampler, lines, 4) == together


@pytest.mark.long
def test_samples_of_a_resumed_output_equal_those_of_an_unbroken_output(sampler, tmp_path):
    lines, calls = ["red dog"] * 5, itertools.count()

    def translate(chunk, start_index):
        if next(calls) == 2:
            raise Killed
        return as_text(sampler, chunk, start_index)

    with pytest.raises(Killed):
        write_output(translate, b"red dog\n" * 5, tmp_path / "out", {}, most_lines=1)
    write_output(translate, b"red dog\n" * 5, tmp_path / "out", {}, most_lines=2)
    assert (tmp_path / "out").read_text().splitlines() == translate_in_chunks(sampler, lines, 5)


@pytest.mark.long
@pytest.mark.parametrize("beam_size", [1, 2])
def test_searches_do_not_depend_on_the_index_of_a_text(beam_size, translator):
    expected = translator.hypotheses(TEXTS, beam_size=beam_size)
    assert translator.hypotheses(TEXTS, beam_size=beam_size, start_index=7) == expected
    translated = translator.translate(TEXTS, beam_size=beam_size, start_index=7)
    assert translated == [best[0].text for best in expected]


@pytest.mark.long
def test_samples_of_a_json_line_depend_on_its_index(sampler):
    first, second = as_json(sampler, ["red dog"] * 2, n_best=3)
    assert [second] == as_json(sampler, ["red dog"], n_best=3, start_index=1) != [first]


@pytest.mark.long
def test_input_over_the_limit_is_cut_on_request(translator, caplog):
    with caplog.at_level("WARNING", "tfm"):
        cut = translator.translate(["red dog " * 40], beam_size=1, max_input=9, overflow="cut")
    assert "Cut an input of" in caplog.text
    tokenizer = translator.run.task.tokenizer
    first, *_ = split_ids(tokenizer, tokenizer.encode(["red dog " * 40])[0], 8)
    assert cut == translator.translate([tokenizer.decode(first)], beam_size=1, max_input=9)


@pytest.mark.long
def test_no_line_is_lost_between_chunks(translator):
    lines = ["red dog", "", "cat", "blue bird runs"] * 3
    assert translate_in_chunks(translator, lines, 5) == translator.translate(lines)


@pytest.mark.long
def test_any_line_is_translated_to_one_line(translator, caplog):
    lines = [
        b"red\tdog",
        b"\xff\xfe cat",
        b"\x00\x1b[31m",
        "\U0001f600\u2028 x".encode(),
        b"",
        b"a\rb\r",
        b"dog " * 600,
    ]
    target = io.BytesIO()
    with caplog.at_level("WARNING", "tfm"):
        translate_lines(functools.partial(as_text, translator), io.BytesIO(b"\n".join(lines)), target)
    assert len(target.getvalue().decode().splitlines()) == len(lines)
    assert "Line 2 is not valid UTF-8" in caplog.text
    assert "Split an input of" in caplog.text


def test_too_long_line_is_cut(caplog):
    source = io.BytesIO(b"x" * (2 * LINE_BYTES + 5) + b"\nnext\n" + b"y" * (LINE_BYTES - 1) + b"\nlast")
    with caplog.at_level("WARNING", "tfm"):
        lines = list(read_lines(source))
    assert [len(line) for line in lines] == [LINE_BYTES, 4, LINE_BYTES - 1, 4]
    assert caplog.text.count("ignored the rest") == 1


def test_too_long_line_is_cut_between_characters(caplog):
    with caplog.at_level("WARNING", "tfm"):
        lines = list(read_lines(io.BytesIO(("日" * LINE_BYTES + "\nb\n").encode())))
    assert lines == ["日" * (LINE_BYTES // 3), "b"]
    assert "not valid UTF-8" not in caplog.text


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_input_is_unpacked_as_its_ending_says(tmp_path, ending, pack):
    path = tmp_path / f"x.en{ending}"
    path.write_bytes(pack("ä b\nc\n".encode()))
    with translate_module.open_source(types.SimpleNamespace(input=str(path))) as source:
        assert list(read_lines(source)) == ["ä b", "c"]


@pytest.mark.parametrize("name", ["x.en.gz", "x.en"])
def test_damaged_or_misnamed_compressed_input_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress("".join(f"{number} dogs\n" for number in range(9999)).encode())[:2000])
    with (
        pytest.raises(UserError, match=r"\.gz"),
        translate_module.open_source(types.SimpleNamespace(input=str(path))) as source,
    ):
        list(read_lines(source))


UNITS = (
    "<tu><tuv xml:lang='de'><seg>x</seg></tuv><tuv lang='EN-us'><seg>red <ph>{1}</ph>dog</seg></tuv></tu>\n"
    "<tu><tuv xml:lang='en'><seg>two\ncats</seg></tuv></tu><tu><tuv xml:lang='de'><seg>y</seg></tuv></tu>"
)
TMX = f"<?xml version='1.0'?>\n<!DOCTYPE tmx SYSTEM 'tmx14.dtd'>\n<tmx><body>{UNITS}</body></tmx>"
SEGMENTS = "<seg id='1'>red dog</seg><seg id='2'>R&amp;D</seg>"
MARKED_UP = {
    "TMX": (TMX.encode(), ["red dog", "two cats", ""]),
    "TMX in UTF-16": (TMX.encode("utf-16"), ["red dog", "two cats", ""]),
    "XML": (
        f"\ufeff<dataset><doc id='1'><src>{SEGMENTS}</src><ref>{SEGMENTS}</ref></doc></dataset>".encode(),
        ["red dog", "R&D"],
    ),
    "SGML": (f"<srcset setid='x'>\n<doc docid='1'>\n{SEGMENTS}\n".encode(), ["red dog", "R&D"]),
}


@pytest.mark.parametrize(("content", "texts"), MARKED_UP.values(), ids=MARKED_UP.keys())
def test_each_source_segment_of_a_file_with_tags_is_a_line(content, texts):
    assert list(read_lines(io.BytesIO(content), "en")) == texts


@pytest.mark.parametrize("start", ['<?xml version="1.0" encoding="utf-8"?>\n<html>', "<xliff version='1.2'>"])
def test_other_markup_is_no_input(start):
    with pytest.raises(UserError, match=r"neither TMX nor.*one on each line"):
        list(read_lines(io.BytesIO(f"{start}\nred dog\n".encode()), "en"))


def test_tags_in_a_line_of_text_are_text():
    lines = ["<b>red</b> dog", "<tmx version='1.4'>", "<de> dog"]
    assert list(read_lines(io.BytesIO("\n".join(lines).encode()), "en")) == lines


def test_markup_without_a_source_language_is_text():
    assert list(read_lines(io.BytesIO(b"<?xml version='1.0'?>\n<tmx>"))) == ["<?xml version='1.0'?>", "<tmx>"]


def test_utf_16_input_is_an_error():
    with pytest.raises(UserError, match="UTF-16"):
        list(read_lines(io.BytesIO("red dog\n".encode("utf-16"))))


def test_byte_order_mark_is_removed_from_the_first_line_only():
    source = io.BytesIO("\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(source)) == ["a", "\ufeffb"]


def test_valid_replacement_character_is_no_invalid_byte(caplog):
    with caplog.at_level("WARNING", "tfm"):
        assert list(read_lines(io.BytesIO("a\ufffdb\n".encode()))) == ["a\ufffdb"]
    assert not caplog.records


def test_many_invalid_lines_log_the_first_and_their_number(caplog):
    with caplog.at_level("WARNING", "tfm"):
        assert len(list(read_lines(io.BytesIO(b"ok\n" + b"\xff\n" * 3000)))) == 3001
    first, total = (record.getMessage() for record in caplog.records)
    assert "Line 2 " in first
    assert "3,000" in total


def test_chunks_have_at_most_the_given_lines_and_bytes():
    assert list(chunks("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(chunks(["aaa", "bbb", "c"], 9, most_bytes=5)) == [["aaa", "bbb"], ["c"]]
    assert list(chunks(["äöü", "b"], 9, most_bytes=5)) == [["äöü"], ["b"]]
    assert list(chunks([])) == []


def test_line_ends_in_a_translation_become_spaces():
    assert one_line("a\r\nb\u2028c\x85d\n") == "a b c d"


@pytest.mark.long
def test_json_lines_have_scores_and_alignments(translator):
    rows = [json.loads(line) for line in as_json(translator, ["red dog", ""], n_best=2, alignments=True)]
    assert [row["source"] for row in rows] == ["red dog", ""]
    found = translator.hypotheses(["red dog"], n_best=2)[0]
    translations = [(one["text"], one["score"]) for one in rows[0]["translations"]]
    assert translations == [(one_line(one.text), one.score) for one in found]
    assert rows[0]["translations"][0]["alignment"] == translator.align(["red dog"], [found[0].text])[0]
    assert rows[1]["translations"] == [{"text": "", "score": 0.0, "alignment": ""}]


class Killed(Exception):
    pass


def write_output(translate, text, path, origin, **options):
    """Calls `translate_file` as the command does."""
    with open_output(str(path)) as target:
        translate_file(translate, io.BytesIO(text), target, origin, **options)


def count_lines(calls, until):
    """Returns a translation that records its lines and raises `Killed` after `until` calls."""

    def translate(lines, _):
        if len(calls) == until:
            raise Killed
        calls.append(lines)
        return [f"<{line}>" for line in lines]

    return translate


def test_file_resumes_after_its_last_complete_line(tmp_path, caplog):
    lines, path, origin = [f"line {i}" for i in range(10)], tmp_path / "out", {"beam": 4, "input": ("a", 1)}
    text, calls = "".join(f"{line}\n" for line in lines).encode(), []
    with pytest.raises(Killed):
        write_output(count_lines(calls, 2), text, path, origin, most_lines=3)
    assert not path.exists()
    with open(f"{path}.part", "ab") as part:
        part.write(b"<line")  # an incomplete line, as after a kill
    with caplog.at_level("INFO", "tfm"):
        write_output(count_lines(calls, 99), text, path, origin, most_lines=3)
    assert "Resuming after line 6" in caplog.text
    assert [line for chunk in calls for line in chunk] == lines
    assert path.read_text().splitlines() == [f"<{line}>" for line in lines]
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_partial_output_of_other_options_is_kept(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(Killed):
        write_output(count_lines([], 1), b"a\nb\n", path, {"beam": 4}, most_lines=1)
    with pytest.raises(UserError, match=r"out\.part"):
        write_output(count_lines([], 9), b"a\nb\n", path, {"beam": 5})
    (tmp_path / "out.part").write_text("x\ny\nz\n")
    with pytest.raises(UserError, match=r"\b3 lines.*\b2\b"):
        write_output(count_lines([], 9), b"a\nb\n", path, {"beam": 4})
    path.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        write_output(count_lines([], 9), b"a\n", path, {"beam": 4})
    assert path.read_text() == "mine"


def test_resuming_with_another_input_is_an_error(tmp_path):
    path, text = tmp_path / "out", b"a\nb\nc\nd\n"
    with pytest.raises(Killed):
        write_output(count_lines([], 2), text, path, {}, most_lines=1)
    for other in (b"a\nx\nc\nd\n", b"a\r\nb\nc\nd\n", text + b"e\n"):
        with pytest.raises(UserError, match=r"out\.part"):
            write_output(count_lines([], 9), other, path, {})
        assert (tmp_path / "out.part").read_bytes() == b"<a>\n<b>\n"
    write_output(count_lines([], 9), text, path, {})
    assert path.read_text() == "<a>\n<b>\n<c>\n<d>\n"


def test_resuming_from_a_pipe_is_an_error(tmp_path):
    path, text = tmp_path / "out", b"a\nb\nc\n"

    def write_from_pipe(translate):
        source, end = os.pipe()
        os.write(end, text)
        os.close(end)
        with open(source, "rb") as file, open_output(str(path)) as target:
            translate_file(translate, file, target, {}, most_lines=1)

    with pytest.raises(KeyboardInterrupt, match=rf"^2 lines are complete in {path}\.part$"):
        write_from_pipe(interrupted([], 2))
    for write in (write_from_pipe, lambda translate: write_output(translate, text, path, {})):
        with pytest.raises(UserError, match=r"out\.part"):
            write(count_lines([], 9))
        assert (tmp_path / "out.part").read_bytes() == b"<a>\n<b>\n"
    (tmp_path / "out.part").unlink()
    write_from_pipe(count_lines([], 9))
    assert path.read_text() == "<a>\n<b>\n<c>\n"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.long
def test_origin_depends_on_the_parameters(tiny_run, monkeypatch):
    run = runs.load(str(tiny_run))
    options = Translate(workdir="", config=run.task.config, overrides={})
    origin = translate_module.describe_origin(run, options)
    assert translate_module.describe_origin(run, options) == origin
    assert translate_module.describe_origin(randomize_weights(run), options) != origin


def test_file_of_the_user_with_the_name_of_an_origin_is_kept(tmp_path):
    path, foreign = tmp_path / "out", tmp_path / "out.part.origin"
    foreign.write_text("precious")
    with pytest.raises(UserError, match=r"out\.part\.origin is in the way"):
        write_output(count_lines([], 9), b"a\n", path, {"beam": 4})
    assert foreign.read_text() == "precious"


def test_empty_partial_output_allows_other_options(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(Killed):
        write_output(count_lines([], 0), b"a\n", path, {"beam": 4})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.part").touch()  # as after a kill
    (tmp_path / "out.part.origin").write_text('{"origin": {"beam": 4}, "checksum": ""}')
    with pytest.raises(Killed):
        write_output(count_lines([], 1), b"a\nb\n", path, {"beam": 5}, most_lines=1)
    write_output(count_lines([], 9), b"a\nb\n", path, {"beam": 5})  # the new options were recorded
    assert path.read_text() == "<a>\n<b>\n"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_named_pipe_is_read_like_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\nb\n",))
    writer.start()
    with translate_module.open_source(types.SimpleNamespace(input=str(tmp_path / "pipe"))) as source:
        assert source.read() == b"a\nb\n"
    writer.join()


def test_unwritable_output_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"Cannot write .*No such file or directory"):
        write_output(count_lines([], 9), b"a\n", tmp_path / "no" / "out", {})


@pytest.mark.parametrize("ending", [".gz", ".XZ"])
def test_output_with_the_ending_of_a_compressed_file_is_an_error(ending, tmp_path):
    path = str(tmp_path / f"out{ending}")
    with pytest.raises(UserError, match=r"plain text file.*Choose .*/out, and compress"), open_output(path):
        pass
    assert not list(tmp_path.iterdir())


def test_output_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "out"

    def translate(lines, _):
        with pytest.raises(UserError, match=r"Another process is writing .*out.part.*--output"):
            write_output(count_lines([], 9), b"x\n", path, {})
        return lines

    write_output(translate, b"a\nb\n", path, {})
    assert path.read_text() == "a\nb\n"


def test_output_that_another_process_completes_is_kept(tmp_path, monkeypatch):
    """The other process completes the output between the first check and the lock."""
    path = tmp_path / "out"

    def lock_late(*arguments):
        path.write_text("theirs")
        return open_locked(*arguments)

    monkeypatch.setattr(resumable_output, "open_locked", lock_late)
    with pytest.raises(UserError, match="already exists"):
        write_output(count_lines([], 9), b"x\n", path, {})
    assert path.read_text() == "theirs"
    assert not (tmp_path / "out.part").exists()


def interrupted(calls, until):
    """Returns a translation as `count_lines` does, which raises KeyboardInterrupt instead."""
    inner = count_lines(calls, until)

    def translate(lines, start_index):
        try:
            return inner(lines, start_index)
        except Killed:
            raise KeyboardInterrupt from None

    return translate


def test_ctrl_c_keeps_complete_lines(tmp_path):
    path, origin = tmp_path / "out", {"beam": 4}
    with pytest.raises(KeyboardInterrupt) as stop:
        write_output(interrupted([], 2), b"a\nb\nc\n", path, origin, most_lines=1)
    assert str(stop.value).startswith(f"2 lines are complete in {path}.part; the same command")
    calls = []
    write_output(count_lines(calls, 9), b"a\nb\nc\n", path, origin, most_lines=1)
    assert path.read_text() == "<a>\n<b>\n<c>\n"
    assert calls == [["c"]]


def test_ctrl_c_before_the_first_line_leaves_no_files(tmp_path):
    with pytest.raises(KeyboardInterrupt, match=r"^0 lines are translated$"):
        write_output(interrupted([], 0), b"a\n", tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []
    target = io.BytesIO()
    with pytest.raises(KeyboardInterrupt, match=r"^1 lines are translated$"):
        translate_lines(interrupted([], 1), io.BytesIO(b"a\nb\n"), target, most_lines=1)
    assert target.getvalue() == b"<a>\n"


def test_folder_as_input_is_an_error(tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path}, but it is a folder"):
        translate_module.open_source(types.SimpleNamespace(input=str(tmp_path))).__enter__()


@pytest.mark.long
def test_modules_of_tfm_are_imported_on_first_use():
    code = """
import sys, tfm
assert not {"jax", "flax", "numpy", "absl"} & set(sys.modules)
assert {"attention", "search", "Translator"} <= set(dir(tfm))
assert not hasattr(tfm, "no_such_module")
assert not {"jax", "flax", "numpy", "absl"} & set(sys.modules)
assert callable(tfm.attention.dot_product_attention)
assert callable(tfm.search.beam_search)
assert tfm.positions.sinusoidal_encoding
assert "flax" not in sys.modules
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr


class Terminal(io.BytesIO):
    """Standard input that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.long
@pytest.mark.parametrize(("stream", "lines"), [(Terminal, 1), (io.BytesIO, translate_module.CHUNK_LINES)])
def test_lines_from_a_terminal_are_translated_one_by_one(stream, lines, tiny_run, monkeypatch):
    limits = []
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream()))
    monkeypatch.setattr(
        translate_module, "translate_lines", lambda *_, most_lines, **__: limits.append(most_lines)
    )
    translate_module.main([f"--workdir={tiny_run}"])
    assert limits == [lines]


@pytest.mark.long
def test_equal_lines_of_a_terminal_have_different_samples(tiny_run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Terminal(b"red dog\n" * 4)))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    translate_module.main([f"--workdir={tiny_run}", "--config.decoding.samples=2"])
    lines = sys.stdout.buffer.getvalue().splitlines()
    assert len(set(lines)) == len(lines) == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        "--n_best=2",
        "--alignments",
        "--checkpoint=last",
        "--average=2",
        "--ensemble=2",
        "--config.decoding.beam_size=2",
    ],
)
def test_interrupted_translation_resumes_only_with_the_same_options(other, tiny_run, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("red dog\n" * (translate_module.CHUNK_LINES + 1))
    files = (f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    arguments = ("translate", f"--workdir={tiny_run}", "--format=jsonl", *files)
    monkeypatch.setattr(translate_module, "as_json", fail_after_a_chunk)
    assert run_command(*arguments).code == 2
    part = (tmp_path / "out.part").read_text()
    assert part.count("\n") == translate_module.CHUNK_LINES
    refused = run_command(*arguments, other)
    assert (refused.code, str(tmp_path / "out.part") in refused.error) == (2, True)
    assert "Resuming" not in refused.error
    assert (tmp_path / "out.part").read_text() == part


def fail_after_a_chunk(translator, lines, start_index, **options):
    """Replaces the translation of a chunk of lines and raises an error after the first chunk."""
    if len(lines) < translate_module.CHUNK_LINES:
        raise UserError("The translation stops here.")
    return lines


def test_phrases_of_a_line_follow_its_source_after_tabs():
    lines = ["The cat sleeps.\tdie Katze\t schl\u00e4ft ", "A dog.", "\t"]
    sources, phrases = split_phrases(lines)
    assert sources == ["The cat sleeps.", "A dog.", ""]
    assert phrases == [["die Katze", "schl\u00e4ft"], [], []]


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, b"\\x1b[31mrot\n"), (False, b"\x1b[31mrot\n")])
def test_codes_in_translations_are_escaped_in_a_terminal_only(is_terminal, shown, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(
        translate_module, "load_translation", lambda _: (None, lambda lines, _: ["\x1b[31mrot"] * len(lines))
    )
    options = types.SimpleNamespace(config=Config())
    translate_module.print_output(options, io.BytesIO(b"red\n"), is_first=True)
    assert stdout.buffer.getvalue() == shown
