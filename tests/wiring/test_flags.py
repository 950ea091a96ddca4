"""Tests that every flag of every command has an observable effect.

With another value of the flag, a command prints, writes or calls something else. The other value follows from
the type and the choices of the flag. Only paths, names and patterns are listed, in `VALUES`.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

from tests.support import tiny_lm, tiny_regression
from tests.support.commands import CommandResult, run_command
from tests.support.paths import ROOT
from tests.support.random_runs import write_random_run
from tests.support.tiny import make_config
from tfm.commands.command import flag_fields
from tfm.commands.options import OPTIONS
from tfm.config import hints_of, info_of, save, value_class
from tfm.config.names import allowed_modules
from tfm.models import TransformerConfig
from tfm.testing.tasks import rows_without_times

pytestmark = pytest.mark.long

MODEL = TransformerConfig(encoder_layers=2, decoder_layers=3, d_model=24, d_ff=40, heads=4, dropout=0.1)
TOKENS = np.ones((1, 4), int)
OWN_MODULE = "users_own_module"  # does not exist


def files_in(folder: pathlib.Path) -> dict[str, str]:
    """Returns {path: hash of the content} of all files in a folder, except for files that contain times."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for name, path in sorted(files.items())
        if not name.endswith((".lock", ".tfm-lock", ".origin"))
    }


def see_everything(result: CommandResult, folder: pathlib.Path) -> Any:
    """Returns the exit code, the standard output and all files."""
    return result.code, result.output.replace(str(folder), "OUT"), files_in(folder)


def see_evaluation(result: CommandResult, folder: pathlib.Path) -> Any:
    """Returns the outputs and scores of an evaluation and the number of printed examples."""
    reports = [json.loads(path.read_text()) for path in sorted(folder.rglob("*.scores.json"))]
    scores = [(each["scores"], each["scores_of_the_last_checkpoint_alone"]) for each in reports]
    outputs = {name: text for name, text in files_in(folder).items() if name.endswith(".hypotheses")}
    return result.code, scores, outputs, result.output.count("hypothesis  ")


def see_run(result: CommandResult, folder: pathlib.Path) -> Any:
    """Returns the logged numbers of a run without times and the names of its files."""
    run = folder / "run"
    numbers = rows_without_times(run) if (run / "metrics.jsonl").exists() else []
    names = {
        path.name for pattern in ("*", "run/checkpoints/*", "run/profile") for path in folder.glob(pattern)
    }
    return result.code, numbers, names, bool(result.output)


class Base(NamedTuple):
    """A command and the function that observes its effects.

    Attributes:
      command: the name of the command.
      arguments: its arguments, in which {name} is replaced by a path of the fixture `paths`. {out} is a new
        folder, and {copy} is a copy of the run {line_run} in it.
      observe: (result, output folder of the command) -> observation.
      stdin: the standard input.
      replaced: functions that record their arguments and return [], such as the start of processes.
    """

    command: str
    arguments: tuple[str, ...]
    observe: Callable[[CommandResult, pathlib.Path], Any] = see_everything
    stdin: str = ""
    replaced: tuple[str, ...] = ("jax.distributed.initialize",)


SOURCE = "red dog\nthe small cat runs\n"
RUN = "--workdir={run}"
HOSTS = ("--coordinator=host:12", "--processes=3")
RESUMED = ("--config={line_run}/config.json", "--workdir={copy}")
PICTURE = ("--output={out}", "--layer=0", "--head=0", "red dog")
STARTS = tuple(f"tfm.commands.{name}.main" for name in ("train", "evaluate", "visualize"))
SWEEP_CALLS = ("tfm.commands.sweep.execute_runs", "tfm.sweep.results.make_table")
SERVER, BROWSER = SERVER_CALLS = ("tfm.commands.explore.PageServer", "webbrowser.open")
BASES = [
    Base("quickstart", (), replaced=STARTS),
    Base("evaluate", (RUN, "--output_dir={out}", "--samples=1"), see_evaluation),
    Base("evaluate", (RUN, "--output_dir={out}", *HOSTS), see_evaluation),
    Base("translate", (RUN,), stdin=SOURCE),
    Base("translate", (RUN, "--format=jsonl"), stdin=SOURCE),
    Base("translate", (RUN,), stdin=f"{SOURCE.rstrip()}\thund\n"),
    Base("translate", (RUN, "--samples=2"), stdin=SOURCE),
    Base("translate", (RUN, "--input={text}", "--output={out}/file")),
    Base("translate", (RUN, "--input={text}", "--output={out}/file", *HOSTS)),
    Base("generate", ("--workdir={lm}", "--prefix=red")),
    Base("generate", ("--workdir={lm}", "--prefix=red", "--samples=0")),
    Base("generate", ("--workdir={lm}", "--prefix=red", *HOSTS)),
    Base("visualize", (RUN, *PICTURE)),
    Base("visualize", (RUN, *PICTURE, "red cat")),
    Base("explore", (RUN, "red dog"), replaced=SERVER_CALLS),
    Base("export", (RUN, "--output={out}/export")),
    Base("import", ("--from={marian}", "--output={out}/import")),
    Base("replay", ("--workdir={tiny}", "--step=3")),
    Base("compare", ("{evaluated}", "{other}")),
    Base("status", ("{run}",)),
    Base("list", ("{run}",)),
    Base("data", ("--config={run}/config.json", "--split=val")),
    Base("split", ("--config={run}/config.json", "--rows=2", "--output={out}/split")),
    Base("train", ("--config={line}", "--workdir={out}/run"), see_run),
    Base("train", ("--config={line}", "--workdir={out}/run", "--warm_start={line_run}"), see_run),
    Base("train", ("--config={line}", "--workdir={out}/run", "--dry_run", *HOSTS), see_run),
    Base("train", RESUMED, see_run),
    Base("train", (*RESUMED, "--config.training.seed=5"), see_run),
    Base("sweep", ("{sweep}", "--workdir={out}/run"), replaced=SWEEP_CALLS),
]
# Other values of the flags that contain paths, names or patterns: {flag: value} or {(command, flag): value}.
VALUES: dict[Any, str] = {
    "allow_change": "training.seed",
    "checkpoint": "last",
    "coordinator": "host:13",
    "head": "1",
    "import": OWN_MODULE,
    "lines": "dog",
    "name": "other",
    "only": "wide",
    "output": "{out}/elsewhere.npz",
    "output_dir": "{out}/folder",
    "prefix": "blue",
    "profile": "3:4",
    "score": "BLEU",
    "sentence": "big cat",
    "split": "test",
    "warm_start": "{line_run}",
    "warm_start_map": "offset=offset",
    "workdir": "{other}",
    ("data", "config"): "{swapped}",
    ("split", "config"): "{other_corpus}",
    ("generate", "workdir"): "{other_lm}",
    ("import", "from"): "{vit}",
    ("import", "source_language"): "fr",
    ("import", "source_prefix"): "translate:",
    ("import", "target_language"): "fr",
    ("quickstart", "workdir"): "elsewhere",
    ("replay", "step"): "4",
    ("replay", "workdir"): "{line_run}",
    ("sweep", "config"): "{other_sweep}",
    ("train", "config"): "{other_line}",
    ("translate", "input"): "{text}",
    **{(command, "split"): "val" for command in ("evaluate", "compare")},
    **{(command, "workdir"): "{out}/elsewhere" for command in ("train", "sweep")},
}
# Flags that some runs cannot have. An error that names the flag is the effect.
REJECTED = {("visualize", "max_tokens"), ("explore", "max_tokens"), ("import", "format")}
REJECTED |= {("export", "quantization")}  # another format than tfm has it
CASES = [(command, flag) for command, options in OPTIONS.items() for flag in flag_fields(options)]


@pytest.fixture(scope="module")
def paths(corpus, tiny_run, regression_run, tmp_path_factory):
    """Returns {name: path} of runs, configs and texts that the commands read."""
    folder = tmp_path_factory.mktemp("wiring")
    lm_data = folder / "documents"
    lm_data.mkdir()
    tiny_lm.write_documents(lm_data)
    config = make_config(corpus)
    decoding = dataclasses.replace(config.decoding, beam_size=3, min_length=4, max_extra_tokens=4)
    config = dataclasses.replace(config, model=MODEL, decoding=decoding)
    lm_config = tiny_lm.make_lm_config(lm_data)
    scores = {2: 1.0, 4: 3.0, 7: 2.0}
    paths = {"tiny": tiny_run, "line_run": regression_run}
    for name, seed in (("run", 0), ("other", 50)):
        paths[name] = write_random_run(config, folder / name, (TOKENS, TOKENS), scores, seed)
    for name, seed in (("lm", 0), ("other_lm", 50)):
        paths[name] = write_random_run(lm_config, folder / name, (TOKENS,), scores, seed)
    paths["vit"] = ROOT / "tests" / "export" / "huggingface" / "vit"
    paths["marian"] = folder / "marian"
    arguments = f"--workdir={paths['run']}", f"--output={paths['marian']}", "--format=huggingface"
    assert run_command("export", *arguments).code == 0
    paths["evaluated"] = shutil.copytree(paths["run"], folder / "evaluated")
    for each in (paths["evaluated"], paths["other"]):
        for arguments in ((), ("--split=val",), ("--name=other", "--checkpoint=last")):
            assert run_command("evaluate", f"--workdir={each}", *arguments).code == 0
    references = (corpus / "test.de").read_text()
    (paths["evaluated"] / "other.de.hypotheses").write_text(references)  # other lengths, other scores
    for name, rate in (("line", 1e-3), ("other_line", 2e-3)):
        paths[name] = folder / f"{name}.json"
        save(tiny_regression.make_config(peak_learning_rate=rate), str(paths[name]))
    for name, values in (("sweep", (0.1, 0.2)), ("other_sweep", (0.3, 0.4))):
        paths[name] = folder / f"{name}.py"
        paths[name].write_text(SWEEP.format(config=str(paths["line"]), values=values))
    swapped = dataclasses.replace(config.data, source_language="de", target_language="en")
    paths["swapped"] = folder / "swapped.json"
    save(dataclasses.replace(config, data=swapped), str(paths["swapped"]))
    paths["other_corpus"] = folder / "other_corpus.json"
    other_corpus = dataclasses.replace(config.data, train=config.data.validation)
    save(dataclasses.replace(config, data=other_corpus), str(paths["other_corpus"]))
    paths["text"] = folder / "text"
    paths["text"].write_text("big dog\n")
    return paths


SWEEP = """
import json
from ml_collections import ConfigDict
from tfm.sweep import Variant

def get_config():
    with open({config!r}) as file:
        return ConfigDict(json.load(file)).lock()

def get_variants():
    published = {{"error": 0.0}}
    values = zip(("narrow", "wide"), {values})
    return [Variant(name, {{"model.noise": value}}, published) for name, value in values]
"""


@pytest.fixture(scope="module")
def observe(paths, tmp_path_factory):
    """Returns a function that observes a base with more arguments. Observations are cached.

    It returns the exit code, the error message and the observation.
    """
    observations: dict[Any, Any] = {}

    def call(base, more=(), again=False):
        if (base, more) not in observations or again:
            folder = tmp_path_factory.mktemp("out")
            if any("{copy}" in each for each in base.arguments):
                shutil.copytree(paths["line_run"], folder / "run")
            names = paths | {"out": folder, "copy": folder / "run"}
            arguments = [each.format(**names) for each in (*base.arguments, *more)]
            allowed_modules.discard(OWN_MODULE)
            with record_calls(base.replaced) as calls:
                result = run_command(base.command, *arguments, stdin=base.stdin)
            calls = [str(each).replace(str(folder), "OUT") for each in calls]
            observation = base.observe(result, folder), calls, OWN_MODULE in allowed_modules
            observations[base, more] = result.code, result.error, observation
        return observations[base, more]

    return call


class Served:
    """A server that somebody stops at once with Ctrl-C."""

    url = "http://127.0.0.1"

    def serve_forever(self):
        time.sleep(0.2)  # the thread that opens the browser comes first
        raise KeyboardInterrupt

    def wait(self):
        """Does nothing, because there are no requests."""

    def server_close(self):
        """Does nothing, because nothing is open."""


@contextlib.contextmanager
def record_calls(names: tuple[str, ...]) -> Iterator[list[Any]]:
    """Replaces functions. Yields the list of their calls."""
    calls: list[Any] = []

    def replacement(name: str) -> Callable:
        if name == SERVER:
            return lambda port, make_page, answer: calls.append((name, port, make_page("path"))) or Served()
        return lambda *arguments, **_: calls.append((name, arguments)) or []

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(name, replacement(name)))
        yield calls


def other_values(command: str, flag: str) -> list[str]:
    """Returns arguments with other values of a flag."""
    field = flag_fields(OPTIONS[command])[flag]
    kind, info = value_class(hints_of(OPTIONS[command])[field.name]), info_of(field)
    if (command, flag) in VALUES or flag in VALUES:
        return [f"--{flag}={VALUES.get((command, flag), VALUES.get(flag))}"]
    if info.choices:
        return [f"--{flag}={choice}" for choice in info.choices if choice != field.default]
    if kind is bool:
        return [f"--{flag}"]
    if kind in (int, float):
        large = [2 * field.default] if isinstance(field.default, int | float) and field.default > 9 else []
        return [f"--{flag}={number}" for number in (*large, 2, 3, 1, 9)]
    return []


@pytest.mark.parametrize("base", BASES, ids=lambda base: " ".join((base.command, *base.arguments)))
def test_repeated_command_has_the_same_output(base, observe):
    """Otherwise, a difference would not prove an effect of a flag."""
    assert observe(base, again=True)[2] == observe(base)[2]


def test_table_names_only_flags_that_exist():
    assert VALUES.keys() <= {*CASES, *(flag for _, flag in CASES)}


@pytest.mark.parametrize(("command", "flag"), CASES, ids=map("-".join, CASES))
def test_every_flag_changes_the_output_of_its_command(command, flag, observe):
    bases = [base for base in BASES if base.command == command]
    assert bases, f"Add a call of tfm {command} to BASES in tests/wiring/test_flags.py."
    values = other_values(command, flag)
    assert values, f"Add another value of --{flag} to VALUES in tests/wiring/test_flags.py."
    assert any(has_effect(base, value, observe) for base in bases for value in values), (
        f"No call in BASES of tests/wiring/test_flags.py changes with --{flag}. If another flag turns it on, "
        "add a call with that flag."
    )


def has_effect(base: Base, value: str, observe: Callable) -> bool:
    """Returns whether a command succeeds with another value of a flag and its observation differs."""
    code, error, observation = observe(base, (value,))
    flag = value.partition("=")[0]
    is_valid = code == 0 or ((base.command, flag.removeprefix("--")) in REJECTED and flag in error)
    return is_valid and observation != observe(base)[2]
