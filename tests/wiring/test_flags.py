"""Tests that every flag of every command has an observable effect."""

import dataclasses
import hashlib
import importlib
import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.support import tiny_lm, tiny_regression
from tests.support.commands import CommandResult, run_command
from tests.support.random_runs import write_random_run
from tests.support.records import write_record
from tests.support.tiny import make_config
from tfm.commands import sweep, translate
from tfm.commands.command import flag_fields
from tfm.commands.options import OPTIONS
from tfm.config import save
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.sweep import results
from tfm.testing.tasks import rows_without_times
from tfm.training.run_log import read_metrics

pytestmark = pytest.mark.long

MODEL = TransformerConfig(encoder_layers=2, decoder_layers=3, d_model=24, d_ff=40, heads=4, dropout=0.1)
TOKENS = np.ones((1, 4), int)


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
    numbers = rows_without_times(folder / "run") if (folder / "run").exists() else []
    names = {path.parent.name for path in folder.rglob("*")} & {"checkpoints", "profile"}
    return result.code, numbers, names, bool(result.output), sorted(path.name for path in folder.iterdir())


class Base(NamedTuple):
    """A successful command and the function that observes its effects.

    Attributes:
      command: the name of the command.
      arguments: its arguments, in which {name} is replaced by a path of the fixture `paths`.
      observe: (result, output folder of the command) -> observation.
      stdin: the standard input.
    """

    command: str
    arguments: tuple[str, ...]
    observe: Callable[[CommandResult, pathlib.Path], Any] = see_everything
    stdin: str = ""


class Change(NamedTuple):
    """Two lists of arguments that differ in a single flag.

    Attributes:
      base: the name of a row of `BASES`.
      second: additional arguments of the second observation.
      first: additional arguments of the first observation.
    """

    base: str
    second: tuple[str, ...]
    first: tuple[str, ...] = ()


SOURCE = "red dog\nthe small cat runs\n"
RUN = "--workdir={run}"
BASES = {
    "evaluate": Base("evaluate", (RUN, "--output_dir={out}", "--samples=1"), see_evaluation),
    "translate": Base("translate", (RUN,), stdin=SOURCE),
    "translate to json": Base("translate", (RUN, "--format=jsonl"), stdin=SOURCE),
    "generate": Base("generate", ("--workdir={lm}", "--prefix=red")),
    "visualize": Base("visualize", (RUN, "--output={out}", "--layer=0", "--head=0", "red dog")),
    "visualize two": Base(
        "visualize", (RUN, "--output={out}", "--layer=0", "--head=0", "red dog", "red cat")
    ),
    "export": Base("export", (RUN, "--output={out}/export")),
    "replay": Base("replay", ("--workdir={tiny}", "--step=3")),
    "plot curves": Base("plot", ("{tiny}", "--output={out}/a.png")),
    "plot positions": Base("plot", ("positions", "--output={out}/a.png")),
    "plot schedules": Base("plot", ("schedules", "--output={out}/a.png")),
    "plot calibration": Base("plot", ("calibration", "{run}", "--output={out}/a.png")),
    "plot lengths": Base("plot", ("lengths", "{evaluated}", "--output={out}/a.png")),
    "compare": Base("compare", ("{evaluated}", "{other}")),
    "config": Base("config", ("show", "{run}")),
    "data": Base("data", ("--config={run}/config.json", "--split=val")),
    "train": Base("train", ("--config={line}", "--workdir={out}/run"), see_run),
    "sweep": Base("sweep", ("{sweep}", "--workdir={out}/run", "--dry_run")),
}
OTHER_RUN = ("--workdir={other}",)
STEPS = ("--checkpoint=last",)
CHANGES = {
    "evaluate": {
        "workdir": Change("evaluate", OTHER_RUN),
        "checkpoint": Change("evaluate", STEPS),
        "average": Change("evaluate", ("--average=2",), STEPS),
        "ensemble": Change("evaluate", ("--ensemble=2",), STEPS),
        "split": Change("evaluate", ("--split=val",)),
        "name": Change("evaluate", ("--name=other",)),
        "output_dir": Change("evaluate", ("--output_dir={out}/folder",)),
        "samples": Change("evaluate", ("--samples=3",)),
    },
    "translate": {
        "workdir": Change("translate", OTHER_RUN),
        "checkpoint": Change("translate", STEPS),
        "average": Change("translate", ("--average=2",), STEPS),
        "ensemble": Change("translate", ("--ensemble=2",), STEPS),
        "input": Change("translate", ("--input={text}",)),
        "output": Change("translate", ("--output={out}/file",)),
        "format": Change("translate", ("--format=jsonl",)),
        "n_best": Change("translate to json", ("--n_best=2",)),
        "alignments": Change("translate to json", ("--alignments",)),
        "beam_size": Change("translate", ("--beam_size=1",)),
        "samples": Change("translate", ("--samples=2",)),
        "temperature": Change("translate", ("--temperature=9",), ("--samples=2",)),
    },
    "generate": {
        "workdir": Change("generate", ("--workdir={other_lm}",)),
        "checkpoint": Change("generate", STEPS),
        "average": Change("generate", ("--average=2",), STEPS),
        "ensemble": Change("generate", ("--ensemble=2",), STEPS),
        "prefix": Change("generate", ("--prefix=blue",)),
        "beam_size": Change("generate", ("--beam_size=3",), ("--samples=0",)),
        "samples": Change("generate", ("--samples=3",)),
        "temperature": Change("generate", ("--temperature=9",)),
        "format": Change("generate", ("--format=jsonl",)),
    },
    "visualize": {
        "workdir": Change("visualize", OTHER_RUN),
        "checkpoint": Change("visualize", STEPS),
        "average": Change("visualize", ("--average=2",), STEPS),
        "ensemble": Change("visualize", ("--ensemble=2",), STEPS),
        "sentence": Change("visualize", ("--sentence=big cat",)),
        "output": Change("visualize", ("--output={out}/folder",)),
        "max_tokens": Change("visualize", ("--max_tokens=2",)),
        "format": Change("visualize", ("--format=pdf",)),
        "layer": Change("visualize", ("--layer=1",)),
        "head": Change("visualize", ("--head=1",)),
        "words": Change("visualize", ("--words",)),
        "measure": Change("visualize", ("--measure=norms",)),
        "difference": Change("visualize two", ("--difference",)),
        "lines": Change("visualize", ("--lines=dog",)),
    },
    "export": {
        "workdir": Change("export", OTHER_RUN),
        "checkpoint": Change("export", STEPS),
        "average": Change("export", ("--average=2",), STEPS),
        "ensemble": Change("export", ("--ensemble=2",), STEPS),
        "output": Change("export", ("--output={out}/elsewhere",)),
        "stablehlo": Change("export", ("--stablehlo",)),
        "stablehlo_shape": Change("export", ("--stablehlo_shape=2x8",)),
    },
    "replay": {
        "workdir": Change("replay", ("--workdir={line_run}",)),
        "step": Change("replay", ("--step=4",)),
        "output": Change("replay", ("--output={out}/a.npz",)),
    },
    "plot": {
        "output": Change("plot curves", ("--output={out}/a.pdf",)),
        "metric": Change("plot curves", ("--metric=train/loss",)),
        "checkpoint": Change("plot calibration", STEPS),
        "split": Change("plot calibration", ("--split=test",)),
        "name": Change("plot lengths", ("--name=other",)),
        "sentences": Change("plot calibration", ("--sentences=3",)),
        "d_model": Change("plot positions", ("--d_model=64",)),
        "length": Change("plot positions", ("--length=50",)),
        "warmup_steps": Change("plot schedules", ("--warmup_steps=1000",)),
        "steps": Change("plot schedules", ("--steps=9000",)),
    },
    "compare": {
        "split": Change("compare", ("--split=val",)),
        "name": Change("compare", ("--name=other",)),
        "sentences": Change("compare", ("--sentences=2",)),
    },
    "config": {"changed": Change("config", ("--changed",))},
    "data": {
        "config": Change("data", ("--config={swapped}",)),
        "workdir": Change("data", (RUN,)),
        "split": Change("data", ("--split=test",)),
        "format": Change("data", ("--format=json",)),
    },
    "train": {
        "config": Change("train", ("--config={other_line}",)),
        "workdir": Change("train", ("--workdir={out}/elsewhere",)),
        "dry_run": Change("train", ("--dry_run",)),
        "profile": Change("train", ("--profile=3:4",)),
        "warm_start": Change("train", ("--warm_start={line_run}",)),
    },
    "sweep": {
        "config": Change("sweep", ("--config={other_sweep}",)),
        "seeds": Change("sweep", ("--seeds=2",)),
        "only": Change("sweep", ("--only=wide",)),
    },
}
HOSTS = {"distributed", "coordinator", "processes", "process_id"}
# Flags with separate tests below.
SPECIAL = {
    "train": {"warm_start_map", "from_step", "allow_change", *HOSTS},
    **dict.fromkeys(("evaluate", "translate", "generate"), HOSTS),
    "sweep": {"dry_run", "workdir", "split", "checkpoint", "jobs", "score"},
    "quickstart": {"workdir"},
}
# Arguments with which a command reads the config of a run with a custom model.
IMPORTING = {
    "data": ("--config={foreign}/config.json", "--split=val"),
    "train": ("--config={foreign}/config.json", "--workdir={out}", "--dry_run"),
    "evaluate": ("--workdir={foreign}", "--output_dir={out}"),
    "compare": ("{foreign}", "{evaluated}"),
    "translate": ("--workdir={foreign}",),
    "generate": ("--workdir={foreign_lm}", "--prefix=red"),
    "export": ("--workdir={foreign}", "--output={out}/export"),
    "visualize": ("--workdir={foreign}", "--output={out}", "--layer=0", "--head=0", "red dog"),
    "plot": ("calibration", "{foreign}", "--output={out}/a.png"),
    "replay": ("--workdir={foreign}", "--step=3"),
    "status": ("{foreign}",),
    "list": ("{foreign}",),
    "config": ("show", "{foreign}"),
}
# Arguments for which the error message is the observation.
FAILING = (
    ("visualize", ("--ensemble=2",)),
    ("visualize", ("--max_tokens=2",)),
    ("export", ("--ensemble=2",)),
)
CASES = [(command, flag) for command, changes in CHANGES.items() for flag in changes]


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
    """Returns a function that observes a base with additional arguments. Observations are cached."""
    seen: dict[Any, Any] = {}

    def call(base, more=(), again=False):
        if (base, more) not in seen or again:
            folder = tmp_path_factory.mktemp("out")
            arguments = [each.format(**paths, out=folder) for each in (*BASES[base].arguments, *more)]
            result = run_command(BASES[base].command, *arguments, stdin=BASES[base].stdin)
            seen[base, more] = BASES[base].observe(result, folder)
            assert (base, more) in FAILING or result.code == 0, result.error
        return seen[base, more]

    return call


def flags_of(command: str) -> set[str]:
    """Returns the flags of a command, except the fields of configs."""
    return set(flag_fields(OPTIONS[command]))


@pytest.mark.parametrize("command", OPTIONS)
def test_every_flag_has_an_observation(command):
    expected = {*CHANGES.get(command, ()), *SPECIAL.get(command, ())}
    assert flags_of(command) == expected | ({"import"} if command in (*IMPORTING, "sweep") else set())


@pytest.mark.parametrize("base", BASES)
def test_repeated_command_has_the_same_output(base, observe):
    assert observe(base, again=True) == observe(base)


@pytest.mark.parametrize(("command", "flag"), CASES, ids=map("-".join, CASES))
def test_every_flag_changes_the_output_of_its_command(command, flag, observe):
    change = CHANGES[command][flag]
    assert observe(change.base, change.second) != observe(change.base, change.first)


MODULE = """
from types import SimpleNamespace
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig

translator = SimpleNamespace(Config=TransformerConfig, Model=Transformer)
lm = SimpleNamespace(Config=DecoderLMConfig, Model=DecoderLM)
"""


@pytest.fixture
def foreign(paths, tmp_path, monkeypatch):
    """Returns `paths` with additional runs whose models come from a new custom module."""
    module = f"users_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    found = dict(paths, module=module, out=tmp_path / "out")
    for name, source, part in (("foreign", "evaluated", "translator"), ("foreign_lm", "lm", "lm")):
        found[name] = shutil.copytree(paths[source], tmp_path / name)
        path = found[name] / "config.json"
        content = json.loads(path.read_text())
        content["model"]["name"] = f"{module}:{part}"
        path.write_text(json.dumps(content))
    found["out"].mkdir()
    return found


@pytest.mark.parametrize("command", IMPORTING)
def test_custom_module_is_imported_only_with_the_import_flag(command, foreign):
    arguments = [each.format(**foreign) for each in IMPORTING[command]]
    refused = run_command(command, *arguments)
    assert foreign["module"] not in sys.modules
    result = run_command(command, *arguments, f"--import={foreign['module']}")
    assert (result.code, foreign["module"] in sys.modules) == (0, True), result.error
    if command in ("status", "list"):  # these commands show the config without importing the module
        assert (refused.code, refused.output) == (0, result.output)
    else:
        assert (refused.code, refused.output) != (result.code, result.output)


def first_loss(workdir):
    return next(row["train/loss"] for row in read_metrics(str(workdir)) if "train/loss" in row)


def test_warm_start_map_selects_the_parameters_of_the_run(paths, tmp_path):
    run = paths["line_run"]
    arguments = (f"--config={run}/config.json", "--config.training.log_every=1")
    losses = []
    for name, entry in (("fresh", ""), ("whole", "*=*"), ("part", "offset=offset")):
        options = [f"--warm_start={run}", f"--warm_start_map={entry}"] if entry else []
        assert run_command("train", *arguments, f"--workdir={tmp_path / name}", *options).code == 0
        losses.append(first_loss(tmp_path / name))
    assert losses[1] < 0.99 * losses[0]
    assert len(set(losses)) == 3


def test_from_step_resumes_from_the_checkpoint_of_the_step(paths, tmp_path):
    run = shutil.copytree(paths["line_run"], tmp_path / "run")
    arguments = (f"--config={run}/config.json", f"--workdir={run}")
    before = (run / "config.json").read_bytes()
    seed = ("--config.training.seed=5", "--allow_change=training.seed")
    refused = run_command("train", *arguments, "--from_step=5", *seed)
    assert (refused.code, "step 5" in refused.error) == (2, True)
    assert (run / "config.json").read_bytes() == before  # a failed start changes nothing
    for name, step in (("old", 2), ("new", 3)):
        write_record(run / f"{name}.x.scores.json", checkpoints=[step])
    assert run_command("train", *arguments, "--from_step=2").code == 0
    assert (run / "checkpoints" / "after_2").is_dir()
    # A record of a later step is about parameters that the run no longer has.
    assert [path.name for path in run.glob("*.scores.json")] == ["old.x.scores.json"]
    assert (run / "checkpoints" / "after_2" / "new.x.scores.json").exists()
    steps = [
        {path.name for path in pathlib.Path(each, "checkpoints").iterdir()}
        for each in (run, paths["line_run"])
    ]
    assert steps[1] <= steps[0]


def test_allow_change_permits_the_change_of_a_field(paths, tmp_path):
    run = shutil.copytree(paths["line_run"], tmp_path / "run")
    arguments = (f"--config={run}/config.json", f"--workdir={run}", "--config.training.seed=5")
    refused = run_command("train", *arguments)
    assert (refused.code, "training.seed" in refused.error) == (2, True)
    assert run_command("train", *arguments, "--allow_change=training.seed").code == 0


def test_scores_of_the_last_checkpoint_alone_use_all_options(paths, tmp_path):
    options = (f"--workdir={paths['run']}", "--split=val", "--config.decoding.min_length=2", "--checkpoint=4")
    reports = []
    for average in (2, 1):
        folder = tmp_path / str(average)
        assert run_command("evaluate", *options, f"--average={average}", f"--output_dir={folder}").code == 0
        reports.append(json.loads((folder / "val.de.scores.json").read_text()))
    averaged, alone = reports
    assert averaged["scores_of_the_last_checkpoint_alone"] == alone["scores"] != averaged["scores"]


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
def test_interrupted_translation_resumes_only_with_the_same_options(other, paths, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("red dog\n" * (translate.CHUNK_LINES + 1))
    files = (f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    arguments = ("translate", f"--workdir={paths['run']}", "--format=jsonl", *files)
    monkeypatch.setattr(translate, "as_json", fail_after_a_chunk)
    assert run_command(*arguments).code == 2
    part = (tmp_path / "out.part").read_text()
    assert part.count("\n") == translate.CHUNK_LINES
    refused = run_command(*arguments, other)
    assert (refused.code, str(tmp_path / "out.part") in refused.error) == (2, True)
    assert "Resuming" not in refused.error
    assert (tmp_path / "out.part").read_text() == part


def fail_after_a_chunk(translator, lines, start_index, **options):
    """Replaces the translation of a chunk of lines and raises an error after the first chunk."""
    if len(lines) < translate.CHUNK_LINES:
        raise UserError("The translation stops here.")
    return lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], []),
        (["--distributed"], [()]),
        (["--coordinator=host:12", "--processes=3", "--process_id=2"], [("host:12", 3, 2)]),
    ],
)
def test_flags_of_several_hosts_reach_jax(arguments, expected, paths, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *each, **_: calls.append(each))
    run_command("train", f"--config={paths['line']}", f"--workdir={tmp_path}/run", "--dry_run", *arguments)
    assert calls == expected


EVALUATION = ["--split=validation", "--checkpoint=last", "--samples=0"]


class Executed(NamedTuple):
    """The arguments that a sweep passes to its processes, and the scores of its table."""

    runs: list[str]
    evaluation: list[str]
    workdir: str
    jobs: int
    scores: list[str]


@pytest.fixture
def sweep_once(paths, tmp_path, monkeypatch):
    """Returns a function that runs a sweep without processes. It returns `Executed` or None."""

    def call(*arguments):
        found: list[Any] = []

        def execute_runs(planned, evaluation, workdir, jobs, on_finished):
            arguments = [argument for run in planned for argument in run.arguments]
            found.append((arguments, evaluation, workdir, jobs))
            return []

        monkeypatch.setattr(sweep, "execute_runs", execute_runs)
        monkeypatch.setattr(results, "make_table", lambda variants, rows, scores: found.append(scores) or "")
        assert run_command("sweep", paths["sweep"], f"--workdir={tmp_path}", *arguments).code == 0
        return Executed(*found[0], found[1]) if found else None

    return call


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ("--split=test", "evaluation", ["--split=test", *EVALUATION[1:]]),
        ("--checkpoint=best", "evaluation", [EVALUATION[0], "--checkpoint=best", EVALUATION[2]]),
        ("--jobs=3", "jobs", 3),
        ("--score=BLEU", "scores", ["BLEU"]),
    ],
)
def test_flags_of_a_sweep_reach_its_processes_or_its_table(argument, field, value, sweep_once):
    plain, changed = sweep_once(), sweep_once(argument)
    assert (plain.evaluation[:3], plain.jobs, plain.scores) == (EVALUATION, 1, ["error"])
    assert getattr(changed, field)[:3] == value if field == "evaluation" else getattr(changed, field) == value


def test_dry_run_of_a_sweep_starts_no_process(sweep_once):
    assert sweep_once("--dry_run") is None


def test_work_directory_of_a_sweep_contains_its_runs(sweep_once, tmp_path):
    assert sweep_once().workdir == str(tmp_path)


def test_import_reaches_all_processes_of_a_sweep(sweep_once):
    found = sweep_once("--import=tests.support.images")
    assert "--import=tests.support.images" in found.evaluation
    assert found.runs.count("--import=tests.support.images") == 2 * 3


def test_work_directory_of_the_quick_start_reaches_its_three_commands(monkeypatch):
    calls: list[tuple[str, ...]] = []
    for name in ("train", "evaluate", "visualize"):
        module = importlib.import_module(f"tfm.commands.{name}")
        monkeypatch.setattr(module, "main", lambda argv, name=name: calls.append((name, *argv)))
    assert run_command("quickstart", "--workdir=elsewhere").code == 0
    workdir = "--workdir=elsewhere"
    assert calls == [("train", "--config=quickstart", workdir), ("evaluate", workdir), ("visualize", workdir)]
