"""The rooms of the house (docs/design.md), read from the code's own imports."""

import ast
import os
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tfm").rglob("*.py"))
}

# A room may import from its own floor and from lower ones.
FLOORS = {
    0: {"tfm", "tfm.errors", "tfm.runtime.files", "tfm.commands.terminal"},
    1: {
        *("tfm.attention", "tfm.masks", "tfm.positions", "tfm.losses", "tfm.schedules", "tfm.search"),
        *("tfm.dropout", "tfm.layers.matmul", "tfm.data", "tfm.evaluation.translation_metrics", "tfm.config"),
        *("tfm.fields", "tfm.evaluation.alignment", "tfm.decoding.mbr", "tfm.memory_estimate"),
    },
    2: {"tfm.layers", "tfm.layers.kv_cache", "tfm.layers.collected_attention", "tfm.layers.parameter_axes"},
    3: {"tfm.models"},
    4: {
        "tfm.tasks",
        "tfm.training",
        "tfm.decoding.generate",
        "tfm.decoding.batch_splitting",
        "tfm.decoding.scoring",
        "tfm.tasks.translation.pipeline",
        *("tfm.tasks.translation.report", "tfm.visualize.figures"),
    },
    5: {
        "tfm.workdir.runs",
        "tfm.workdir.translator",
        "tfm.workdir.bundle",
        "tfm.export.model_card",
        "tfm.export.stablehlo",
        "tfm.workdir.initialization",
    },
    6: {
        *("tfm.commands.cli", "tfm.commands.help_text", "tfm.commands.config_flag"),
        *("tfm.commands.compare", "tfm.commands.export", "tfm.commands.translate", "tfm.commands.visualize"),
    },
}
HOST_SIDE = (
    *(
        "tfm.data",
        "tfm.evaluation.translation_metrics",
        "tfm.evaluation.alignment",
        "tfm.decoding.mbr",
        "tfm.config",
    ),
    *("tfm.errors", "tfm.fields", "tfm.runtime.files", "tfm.commands.terminal", "tfm.memory_estimate"),
)
GROUND = (
    "tfm.attention",
    "tfm.masks",
    "tfm.positions",
    "tfm.losses",
    "tfm.schedules",
    "tfm.search",
    "tfm.dropout",
    "tfm.layers.matmul",
)
NOWHERE = ("tensorflow", "clu", "configs", "flax.training.checkpoints", "pickle", "torch")
FLAGS = (
    *("tfm.commands.cli", "tfm.commands.help_text", "tfm.commands.config_flag"),
    *("tfm.commands.compare", "tfm.commands.export", "tfm.commands.translate", "tfm.commands.visualize"),
)


def within(module, *rooms):
    return any(module == room or module.startswith(room + ".") for room in rooms)


def imports(path):
    """Full names of all that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def floor(module):
    rooms = [(len(room), level) for level, names in FLOORS.items() for room in names if within(module, room)]
    exact = [entry for entry in rooms if entry[0] > len("tfm") or module == "tfm"]
    assert exact, f"{module} stands on no floor of this file"
    return max(exact)[1]


def own_imports(module):
    """Modules of the project that `module` imports."""
    return {name for name in imports(MODULES[module]) if name in MODULES and name != "tfm"}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "tfm"])
def test_a_room_imports_only_from_its_own_floor_and_lower_ones(module):
    higher = {name for name in own_imports(module) if floor(name) > floor(module)}
    assert not higher


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_what_the_house_does_without(module):
    assert not {name for name in imports(MODULES[module]) if within(name, *NOWHERE)}


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, *HOST_SIDE)])
def test_the_host_side_knows_no_jax(module):
    assert not {name for name in imports(MODULES[module]) if within(name, "jax", "flax", "optax", "orbax")}


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, *GROUND)])
def test_the_ground_floor_knows_no_framework(module):
    outside = {name.partition(".")[0] for name in imports(MODULES[module])} - {"tfm"}
    assert outside <= {"jax", "numpy", "math", "functools", "typing", "collections"}
    assert all(within(name, *GROUND) for name in own_imports(module))


def test_training_knows_no_model_and_no_task():
    for module in MODULES:
        if within(module, "tfm.training"):
            assert not {
                name for name in own_imports(module) if within(name, "tfm.models", "tfm.tasks", "tfm.data")
            }


def test_models_know_no_task_and_no_training():
    for module in MODULES:
        if within(module, "tfm.models"):
            assert not {
                name for name in own_imports(module) if within(name, "tfm.tasks", "tfm.training", "tfm.data")
            }


@pytest.mark.parametrize("module", [name for name in MODULES if name not in FLAGS])
def test_only_commands_parse_flags(module):
    parsers = {name for name in imports(MODULES[module]) if within(name, "absl", "argparse")}
    parsers |= {name for name in imports(MODULES[module]) if within(name, "ml_collections.config_flags")}
    assert not parsers


@pytest.mark.parametrize("path", [*MODULES.values(), ROOT / "train.py", ROOT / "eval.py"], ids=str)
def test_no_file_is_above_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_every_public_function_says_what_it_does():
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), module
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                bare = isinstance(node, ast.FunctionDef) and node.name in ("main", "get_config")
                assert bare or ast.get_docstring(node), f"{module}.{node.name}"


@pytest.mark.long
def test_importing_every_module_touches_no_device():
    code = f"import {', '.join([*MODULES, 'train', 'eval'])}"
    environment = os.environ | {"JAX_PLATFORMS": "no_such_platform"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
