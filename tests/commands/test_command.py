"""Tests of the parsing of arguments into options."""

import re

import pytest

from tfm.commands import command
from tfm.commands.command import REQUIRED, option, options, parse, positional, read_flags
from tfm.commands.options import (
    OPTIONS,
    Evaluate,
    Export,
    Quickstart,
    Replay,
    Sweep,
    Train,
    Translate,
    Visualize,
)
from tfm.errors import UserError


@options
class Options:
    first: str = positional("FIRST")
    others: tuple[str, ...] = positional("[OTHER ...]")
    folder: str = option(REQUIRED, "A folder.")
    count: int = option(1, "A number.", minimum=1)
    rate: float | None = option(None, "A rate.")
    format: str = option("text", "A choice.", choices=("text", "jsonl"))
    name: str = option("", "A name.")
    names: tuple[str, ...] = option((), "Names.", flag="each")
    switch: bool = option(False, "A switch.")
    text: str | None = option(None, "A text.", allow_empty=True)


FOLDER = "--folder=x"


def test_flags_and_positional_arguments_become_fields():
    found = parse(
        Options, ["a", FOLDER, "--count", "3", "--rate=-0.5", "b", "--each=1", "--each=2", "--switch"]
    )
    expected = Options(
        first="a", others=("b",), folder="x", count=3, rate=-0.5, names=("1", "2"), switch=True
    )
    assert found == expected


@pytest.mark.parametrize(
    ("cls", "flag"),
    [
        *((cls, "workdir") for cls in (Train, Sweep, Quickstart)),
        *((cls, "output") for cls in (Export, Replay, Translate, Visualize)),
        (Evaluate, "output_dir"),
    ],
)
def test_output_folder_is_a_path_or_a_url_without_a_tilde(cls, flag):
    for path in ("~", "~/a"):
        with pytest.raises(UserError, match=re.escape(f"got '{path}'")):
            read_flags(cls, [f"--{flag}={path}"])
    for path in ("gs://bucket/run", "S3://bucket", "/a/b", "a:/b", "a//b", "1://x", "a\nb"):
        values, _ = read_flags(cls, [f"--{flag}={path}"])
        assert values[flag] == path


def test_flag_with_allow_empty_may_be_empty():
    assert parse(Options, ["a", FOLDER, "--text="]).text == ""


def test_missing_flags_have_defaults_and_repeated_flags_their_last_value():
    found = parse(Options, ["a", "--folder=x", "--folder=y", "--switch", "--noswitch"])
    assert (found.folder, found.switch, found.format, found.names) == ("y", False, "text", ())


def test_arguments_after_two_dashes_are_positional():
    found = parse(Options, [FOLDER, "--", "--count=2", "-b"])
    assert (found.first, found.others, found.count) == ("--count=2", ("-b",), 1)


def test_flag_file_is_replaced_by_its_flags(tmp_path):
    (tmp_path / "flags").write_text("# a comment\n--folder=x\n--count=3\n")
    assert parse(Options, ["a", f"--flagfile={tmp_path / 'flags'}", "--count=4"]).count == 4
    found = parse(Options, ["--flagfile", f"{tmp_path / 'flags'}", "--", "--flagfile=x"])
    assert (found.first, found.count) == ("--flagfile=x", 3)
    with pytest.raises(UserError, match="none"):
        parse(Options, ["a", "--flagfile=none"])
    with pytest.raises(UserError, match="--flagfile with no argument"):
        parse(Options, ["a", "--flagfile"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", FOLDER, "--count=many"], "--count: expected an integer, got 'many'."),
        (["a", FOLDER, "--count=0"], "--count must be at least 1, got 0."),
        (["a", FOLDER, "--rate=x"], "--rate: expected a number, got 'x'."),
        (["a", FOLDER, "--rate=nan"], "--rate must be a finite number, got nan."),
        (["a", FOLDER, "--format=xml"], "--format must be one of 'text', 'jsonl', got 'xml'."),
        (["a", FOLDER, "--switch=maybe"], "--switch: expected true or false, got 'maybe'."),
        (["a", FOLDER, "--name="], "--name is empty. Give it a value, or leave it out."),
        (["a", FOLDER, "--name", ""], "--name is empty. Give it a value, or leave it out."),
        (["a", FOLDER, "--each=a", "--each="], "--each is empty. Give it a value, or leave it out."),
        (["a", FOLDER, "--cuont=3"], "There is no flag --cuont: did you mean 'count'?"),
        (["a", FOLDER, "--config.training.steps=3"], "There is no flag --config.training.steps: "),
        (["a"], "--folder must be given."),
        ([FOLDER], "Expected FIRST [OTHER ...] in addition to the flags, got nothing."),
        (["a", "--folder"], "Missing value for flag"),
    ],
)
def test_mistakes_are_errors(arguments, message):
    with pytest.raises(UserError) as error:
        parse(Options, arguments)
    assert message in str(error.value)


def test_error_truncates_a_long_value():
    with pytest.raises(UserError, match=r"--count.*'999") as error:
        parse(Options, ["a", FOLDER, "--count=" + "9" * 5000 + "x"])
    assert len(str(error.value)) < 150


def test_config_file_for_a_command_on_a_run_is_an_error():
    with pytest.raises(UserError, match=r"--config=FILE.*--config\.field=value"):
        command.parse_flags(Evaluate, ["--workdir=x", "--config=y.py"])


@pytest.mark.parametrize("name", OPTIONS)
def test_every_flag_has_a_help_text(name):
    for flag, field in command.flag_fields(OPTIONS[name]).items():
        assert field.metadata["info"].help.endswith("."), flag


def test_short_flag_sets_a_field_and_must_not_contradict_the_long_flag(tiny_run):
    short = parse(Translate, [f"--workdir={tiny_run}", "--beam_size=2", "--temperature=0.5"])
    assert (short.config.decoding.beam_size, short.config.decoding.temperature) == (2, 0.5)
    both = [f"--workdir={tiny_run}", "--beam_size=2"]
    for same in (["--config.decoding.beam_size=2"], ["--config.decoding.beam_size", "2"]):
        assert parse(Translate, [*both, *same]).config.decoding.beam_size == 2
    for other in (
        ["--config.decoding.beam_size=3"],
        ["--config.decoding.beam_size", "3"],
        ["-config.decoding.beam_size=3"],
    ):
        with pytest.raises(UserError, match=r"--beam_size is short for --config\.decoding\.beam.*: 2 and 3"):
            parse(Translate, [*both, *other])
