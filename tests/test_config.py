"""Tests of the conversion of configs, their error messages and the files in configs/."""

import dataclasses
import json
import runpy
from types import SimpleNamespace

import pytest

from tests.support.paths import CONFIGS, ROOT
from tfm import config, tasks
from tfm.commands.config_files import read_config_file, read_variants
from tfm.commands.overrides import override
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.workdir import runs


def test_config_is_unchanged_by_config_dict_and_json(tmp_path):
    original = Config(model=TransformerConfig(heads=4, key_features=16), label_smoothing=0.2)
    assert config.from_mapping(Config, config.to_config_dict(original)) == original
    config.save(original, tmp_path / "c.json")
    assert config.from_mapping(Config, config.load(tmp_path / "c.json")) == original


def test_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    """Editors on Windows add it to a config.json that is then given as --config."""
    path = tmp_path / "config.json"
    config.save(Config(), path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert read_config_file(str(path)) == (Config(), [])


def test_config_dict_is_locked_and_typed():
    section = config.to_config_dict(Config())
    with pytest.raises(AttributeError):
        section.model.layers = 3
    with pytest.raises(TypeError):
        section.model.heads = "8"
    section.model.key_features = 32
    assert config.from_mapping(Config, section).model.key_features == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": {}}, "config.modle does not exist; did you mean 'model'?"),
        ({"training": {"step": 3}}, "config.training.step does not exist; did you mean 'steps'?"),
        ({"training": {"zzz": 3}}, "expected one of seed"),
        ({"training": {"steps": "3"}}, "config.training.steps must be of type int, got '3'"),
        ({"training": {"steps": True}}, "must be of type int, got True"),
        ({"training": {"clip_norm": True}}, "config.training.clip_norm must be"),
        (
            {"model": {"name": "transformer", "heads": 7, "key_features": 8}},
            "Expected model.heads to divide model.d_model (512)",
        ),
        (
            {"model": {"name": "transformer", "heads": 7, "value_features": 8}},
            "Expected model.heads to divide model.d_model (512)",
        ),
        ({"training": 3}, "config.training must be a section with fields, got 3"),
        ({"model": {"name": "tranformer"}}, "config.model.name must be one of"),
    ],
)
def test_error_of_an_invalid_field_names_the_field(change, message):
    with pytest.raises(UserError) as error:
        config.from_mapping(Config, change)
    assert message in str(error.value)


def test_unknown_or_missing_task_is_an_error():
    with pytest.raises(UserError, match=r"config\.task must be one of"):
        runs.parse_config({"task": "translaton"})
    with pytest.raises(UserError, match=r"'task'.*model"):
        runs.parse_config({"model": {}})
    with pytest.raises(UserError, match=r"'task'.*no fields"):
        runs.parse_config({})


@pytest.mark.parametrize("lacking", ["model.name", "data", "training", "output_suffix", "without_paths"])
def test_config_of_a_users_task_without_a_member_of_the_contract_is_an_error(lacking, monkeypatch):
    model = dataclasses.make_dataclass("Model", [] if lacking == "model.name" else [("name", str, "mine")])
    sections = [("model", model), ("data", model), ("training", TrainingConfig)]
    members = {"output_suffix": "mine", "without_paths": lambda self: self}
    lacks = dataclasses.make_dataclass(
        "Lacks",
        [("task", str, "mine")]
        + [(name, cls, dataclasses.field(default_factory=cls)) for name, cls in sections if name != lacking],
        namespace={name: member for name, member in members.items() if name != lacking},
        frozen=True,
    )
    monkeypatch.setattr(runs.tasks, "find", lambda name: SimpleNamespace(Config=lacks))
    with pytest.raises(UserError, match=f"Lacks has no {lacking}"):
        runs.parse_config({"task": "mine"})


def test_warm_up_with_more_steps_than_the_decay_is_an_error():
    with pytest.raises(UserError, match="warmup_steps to be at most"):
        TrainingConfig(schedule="linear_decay", warmup_steps=11, steps=10)


def test_missing_or_damaged_config_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="there is none"):
        config.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="does not parse"):
        config.load(tmp_path / "bad.json")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_and_documents_its_command(path):
    module = runpy.run_path(str(path))
    built = runs.parse_config(module["get_config"]())
    assert isinstance(built, tasks.find(built.task).Config)
    assert f"train.py --config=configs/{path.name}" in module["__doc__"]
    shows_result = ("docs/results.md", "benchmarks/notes/", "tfm/systems/", "not measured")
    assert any(text in module["__doc__"] for text in shows_result)


SWEEPS = [path for path in CONFIGS if "def get_variants" in path.read_text()]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_variant_builds(path):
    base, _ = read_config_file(str(path))
    for variant in read_variants(str(path)):
        override(base, variant.flags)


def test_defaults_are_the_base_model_of_the_paper():
    values = json.loads(json.dumps(dataclasses.asdict(Config())))
    paper = {
        "encoder_layers": 6,
        "decoder_layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "dropout": 0.1,
    }
    assert paper.items() <= values["model"].items()
    paper = {"steps": 100_000, "warmup_steps": 4000, "peak_learning_rate": None}
    assert paper.items() <= values["training"].items()
    paper = {"name": "adam", "b1": 0.9, "b2": 0.98, "epsilon": 1e-9}
    assert paper.items() <= values["training"]["optimizer"].items()
    assert {"beam_size": 4, "length_penalty": 0.6, "max_extra_tokens": 50}.items() <= values[
        "decoding"
    ].items()
    assert values["label_smoothing"] == 0.1
    assert (values["data"]["vocabulary_size"], values["data"]["batch_tokens"]) == (37_000, 25_000)


def test_constants_leave_out_fields_of_the_base_class():
    @dataclasses.dataclass(frozen=True)
    class Base:
        name: str = config.field("a", "Name.")
        size: int = config.field(3, "Size.")

        @property
        def area(self):
            return self.size**2

    @dataclasses.dataclass(frozen=True)
    @config.without_fields(size=5)
    class Fixed(Base):
        pass

    assert [field.name for field in dataclasses.fields(Fixed)] == ["name"]
    assert [leaf.path for leaf in config.walk_fields(Fixed())] == ["name"]
    assert config.from_mapping(Fixed, {"name": "b"}).area == 25
    assert Base().area == 9
    for mapping in ({"size": 5}, {"name": "b", "size": 3}):
        with pytest.raises(UserError, match="size"):
            config.from_mapping(Fixed, mapping)


def test_message_of_an_optional_field_names_none():
    with pytest.raises(UserError, match=r"training\.clip_norm must be of type float or None, got 'none'"):
        override(Config(), ["--config.training.clip_norm=none"])


def test_a_config_file_with_a_variant_runs_once(tmp_path, capsys):
    path = tmp_path / "once.py"
    text = (ROOT / "configs" / "table3.py").read_text(encoding="utf-8")
    path.write_text(f'{text}\nprint("executed")\n', encoding="utf-8")
    variant = read_variants(str(path))[0].name
    capsys.readouterr()
    read_config_file(f"{path}:{variant}")
    assert capsys.readouterr().out == "executed\n"
