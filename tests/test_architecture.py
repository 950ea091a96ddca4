"""Tests of the imports between packages (docs/design.md) and of other rules for all modules."""

import ast
import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.errors import TRAIN_MODULES
from tfm.family import find_system

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tfm").rglob("*.py"))
}
EQUATIONS = {
    *("tfm.attention", "tfm.attention_kernels", "tfm.blockwise_attention", "tfm.masks"),
    *("tfm.positions", "tfm.losses"),
    *("tfm.schedules", "tfm.dropout", "tfm.search", "tfm.array_types"),
}
# {package: packages that it may import in addition to itself and `tfm.errors`}, lower packages first.
MAY_IMPORT = {
    "tfm.errors": set(),
    "tfm.family": set(),
    "tfm.io": set(),
    "tfm.checkpoints": {"tfm.io"},
    **dict.fromkeys(EQUATIONS, EQUATIONS | {"tfm.devices"}),
    "tfm.config": {"tfm.io"},
    "tfm.devices": {"tfm.config", "tfm.io"},
    "tfm.datasets": set(),
    "tfm.data": {"tfm.config", "tfm.datasets", "tfm.io"},
    "tfm.evaluation": {"tfm.data", "tfm.io"},
    "tfm.layers": EQUATIONS | {"tfm.config", "tfm.devices"},
    "tfm.models": EQUATIONS | {"tfm.config", "tfm.family", "tfm.layers"},
    "tfm.decoding": EQUATIONS
    | {"tfm.config", "tfm.data", "tfm.devices", "tfm.evaluation", "tfm.io", "tfm.layers"},
    "tfm.interpret": EQUATIONS | {"tfm.data", "tfm.decoding", "tfm.devices", "tfm.layers"},
    "tfm.training": EQUATIONS
    | {"tfm.checkpoints", "tfm.config", "tfm.data", "tfm.devices", "tfm.io", "tfm.layers", "tfm.models"},
    "tfm.visualize": EQUATIONS
    | {"tfm.data", "tfm.decoding", "tfm.devices", "tfm.interpret", "tfm.io", "tfm.layers", "tfm.training"},
    "tfm.tasks": EQUATIONS
    | {"tfm.config", "tfm.data", "tfm.decoding", "tfm.devices", "tfm.evaluation", "tfm.family"}
    | {"tfm.interpret", "tfm.io", "tfm.layers", "tfm.models", "tfm.training", "tfm.visualize"},
    "tfm.huggingface": {
        *("tfm.config", "tfm.data", "tfm.family", "tfm.io", "tfm.models", "tfm.tasks", "tfm.training")
    },
    # A test below has further rules for systems.
    "tfm.systems": EQUATIONS
    | {"tfm.checkpoints", "tfm.config", "tfm.data", "tfm.datasets", "tfm.decoding", "tfm.devices"}
    | {
        "tfm.evaluation",
        "tfm.huggingface",
        "tfm.interpret",
        "tfm.io",
        "tfm.layers",
        "tfm.models",
        "tfm.tasks",
    }
    | {"tfm.training", "tfm.visualize"},
    "tfm.workdir": {
        "tfm.checkpoints",
        "tfm.config",
        "tfm.data",
        "tfm.devices",
        "tfm.evaluation",
        "tfm.interpret",
    }
    | {"tfm.io", "tfm.layers", "tfm.tasks", "tfm.training", "tfm.visualize"},
    "tfm.sweep": {"tfm.checkpoints", "tfm.config", "tfm.devices", "tfm.evaluation", "tfm.io", "tfm.tasks"}
    | {"tfm.training", "tfm.workdir"},
    "tfm.export": EQUATIONS
    | {"tfm.checkpoints", "tfm.config", "tfm.data", "tfm.decoding", "tfm.devices", "tfm.evaluation"}
    | {
        "tfm.family",
        "tfm.huggingface",
        "tfm.interpret",
        "tfm.io",
        "tfm.layers",
        "tfm.models",
        "tfm.tasks",
        "tfm.training",
        "tfm.visualize",
        "tfm.workdir",
    },
    "tfm.commands": None,  # may import all packages except systems
    "tfm.testing": None,
}
# {package: libraries that its modules import anywhere}. `PARTS` need only `dependencies` of pyproject.toml.
# The other modules may need the extra `train`. They import packages of further extras inside functions.
LIBRARIES = {
    "tfm.errors": set(),
    "tfm.family": set(),
    "tfm.io": {"jax", "numpy"},
    "tfm.checkpoints": {"etils", "flax", "jax", "numpy", "orbax"},
    "tfm.config": {"ml_collections"},
    "tfm.devices": {"flax", "jax", "numpy"},
    "tfm.datasets": set(),
    "tfm.data": {"PIL", "etils", "google", "grain", "numpy", "pyarrow", "requests", "sentencepiece"}
    | {"tensorflow_datasets", "tree"}
    | {"backports", "compression", "datasets", "sklearn", "tokenizers"},
    "tfm.evaluation": {"numpy", "sacrebleu", "sacremoses"},
    "tfm.layers": {"flax", "jax", "numpy"},
    "tfm.models": {"flax", "jax"},
    "tfm.decoding": {"flax", "jax", "numpy", "sacrebleu"},
    "tfm.interpret": {"flax", "jax", "numpy"},
    "tfm.training": {"flax", "jax", "mlflow", "numpy", "optax", "safetensors", "tensorboardX", "wandb"},
    "tfm.visualize": {"matplotlib", "numpy"},
    "tfm.tasks": {"jax", "numpy"},
    "tfm.huggingface": {"numpy", "safetensors"},
    "tfm.systems": {"PIL", "flax", "jax", "matplotlib", "numpy", "optax", "rouge_score", "scipy", "seqeval"}
    | {"yaml"},
    "tfm.workdir": {"flax", "jax", "ml_collections", "numpy", "safetensors"},
    "tfm.sweep": {"numpy", "scipy"},
    "tfm.export": {"ctranslate2", "numpy", "torch"},
    "tfm.commands": {"PIL", "_typeshed", "absl", "jax", "ml_collections", "numpy", "rich"},
    "tfm.testing": {"flax", "jax", "numpy", "optax", "pytest"},
}
PARTS = (*EQUATIONS, "tfm.layers", "tfm.models", "tfm.decoding", "tfm.interpret")
# {package in pyproject.toml: its module}, where the names differ in more than - and _.
MODULE_OF = {"absl-py": "absl", "orbax-checkpoint": "orbax", "pillow": "PIL", "pyyaml": "yaml"}
# {system: earlier systems that it builds on}, as the README.md of its folder says.
BUILDS_ON = {"rnn_seq2seq": {"lstm_lm"}}
WITHOUT_JAX = ("tfm.data", "tfm.datasets", "tfm.evaluation", "tfm.config", "tfm.errors")
HOST_SIDE_FILES = (
    *("tfm.commands.main", "tfm.commands.terminal", "tfm.family", "tfm.io.files"),
    *(f"tfm.systems.bert.{name}" for name in ("builtin_labels", "conll", "label_statistics")),
    *(f"tfm.systems.bert.{name}" for name in ("labelled_texts", "mask", "masked_pairs", "scores")),
    *(f"tfm.systems.dalle.{name}" for name in ("caption_text", "captioned_pictures", "captions", "checker")),
    *(f"tfm.systems.dalle.{name}" for name in ("inspection", "stored_captions")),
    *(f"tfm.systems.detr.{name}" for name in ("batches", "coco", "inspection", "metrics", "scenes")),
    *(f"tfm.systems.detr.{name}" for name in ("stored_pictures", "yolo", "yolo_folder")),
    *(f"tfm.systems.memory_network.{name}" for name in ("babi", "stories")),
    *(f"tfm.systems.parsing.{name}" for name in ("bracketing", "columns", "statistics", "treebank", "trees")),
    *(f"tfm.systems.t_dmca.{name}" for name in ("reports", "rouge", "summaries")),
    "tfm.systems.universal.algorithms",
    *(f"tfm.systems.word2vec.{name}" for name in ("corpus", "inspection", "question_files", "skip_grams")),
    *(f"tfm.systems.word2vec.{name}" for name in ("vector_files", "word_questions")),
)
NOWHERE = ("tensorflow", "clu", "configs", "flax.training.checkpoints", "pickle", "torch")
READERS_OF_PYTORCH = {"tfm.export.fairseq"}  # by torch.load(weights_only=True)


def within(module, *packages):
    return any(module == package or module.startswith(package + ".") for package in packages)


def imports(path):
    """Returns the full names of everything that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def imports_at_once(path):
    """Returns the full names of what the import of a file imports, without its functions and type checks."""
    found, nodes = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        is_type_check = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_type_check and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


def imported_with(modules):
    """Returns the modules of tfm that the import of some modules imports, and the libraries of others."""
    loaded, libraries, waiting = set(), set(), {*modules}
    while waiting:
        module = waiting.pop()
        loaded.add(module)
        names = imports_at_once(MODULES[module])
        libraries |= libraries_in(names)
        parents = {".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 1)}
        waiting |= ({name for name in names if name in MODULES} | parents) - loaded
    return loaded, libraries


def libraries_in(names):
    """Returns the top-level modules in a set of full names that belong to neither tfm nor Python."""
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"tfm"}


def modules_of(requirements):
    """Returns the modules of some packages with their versions, such as {"absl"} for ["absl-py>=2.1,<3"]."""
    names = [Requirement(requirement).name for requirement in requirements]
    return {MODULE_OF.get(name, name.replace("-", "_")) for name in names}


def package_of(module):
    return ".".join(module.split(".")[:2])


def system_of(module):
    return module.split(".")[2]


def own_imports(module):
    """Returns the modules of the project that `module` imports."""
    return {name for name in imports(MODULES[module]) if name in MODULES and name != "tfm"}


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ("tfm", "tfm.__main__")])
def test_packages_import_only_allowed_packages(module):
    package = package_of(module)
    allowed = MAY_IMPORT[package]
    found = {package_of(name) for name in own_imports(module)} - {package, "tfm.errors"}
    assert "tfm.testing" not in found, "tests import it, and it needs pytest"
    assert "tfm.systems" not in found, "the core finds systems by name"
    assert allowed is None or found <= allowed


@pytest.mark.parametrize(
    "module", [name for name in MODULES if name.count(".") > 2 and within(name, "tfm.systems")]
)
def test_systems_import_only_systems_that_they_build_on(module):
    system = system_of(module)
    found = {system_of(name) for name in own_imports(module) if within(name, "tfm.systems")}
    assert found <= {system} | BUILDS_ON.get(system, set())


@pytest.mark.parametrize("system", BUILDS_ON)
def test_page_of_a_system_names_the_systems_that_it_builds_on(system):
    page = (ROOT / "tfm" / "systems" / system / "README.md").read_text(encoding="utf-8")
    for other in BUILDS_ON[system]:
        assert find_system(other).year <= find_system(system).year
        assert f"../{other}/" in page


def test_every_package_has_a_rule():
    assert {package_of(name) for name in MODULES if name not in ("tfm", "tfm.__main__")} == set(MAY_IMPORT)


def test_rules_of_imports_have_no_cycle():
    order = list(MAY_IMPORT)
    for package, allowed in MAY_IMPORT.items():
        lower = set(order[: order.index(package)]) | EQUATIONS | {"tfm.devices"}
        assert (allowed or set()) - {package} <= lower, package


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_no_banned_module(module):
    banned = set(NOWHERE) - ({"torch"} if module in READERS_OF_PYTORCH else set())
    assert not {name for name in imports(MODULES[module]) if within(name, *banned)}


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, *WITHOUT_JAX, *HOST_SIDE_FILES)])
def test_code_of_the_host_side_does_not_import_jax(module):
    assert not {name for name in imports(MODULES[module]) if within(name, "jax", "flax", "optax", "orbax")}


@pytest.mark.parametrize("package", LIBRARIES)
def test_packages_import_exactly_the_listed_libraries(package):
    modules = [name for name in MODULES if within(name, package)]
    assert set().union(*(libraries_in(imports(MODULES[name])) for name in modules)) == LIBRARIES[package]


def test_every_package_has_a_list_of_libraries():
    assert set(MAY_IMPORT) == {*LIBRARIES, *EQUATIONS}  # another test has the list of the equations


def test_parts_import_only_the_dependencies_that_are_always_installed():
    """The models of all systems are parts, too, and `tfm.commands.main` has to name the missing extra."""
    page = (ROOT / "docs" / "reference" / "layers.md").read_text(encoding="utf-8")
    models = re.findall(r"`(tfm\.systems\.\w+\.\w+)`", page)
    assert len(models) >= 15
    parts = {name for name in MODULES if within(name, *PARTS)} | {*models, "tfm.commands.main"}
    loaded, libraries = imported_with(parts)
    assert loaded >= parts | {"tfm", "tfm.data", "tfm.data.batches.rows", "tfm.devices.mesh"}
    assert libraries <= modules_of(PROJECT["dependencies"])


def test_extra_train_suffices_to_import_every_module():
    train = modules_of(PROJECT["optional-dependencies"]["train"])
    assert sorted(train) == sorted(TRAIN_MODULES)
    _, libraries = imported_with(name for name in MODULES if not within(name, "tfm.testing"))
    assert libraries <= modules_of(PROJECT["dependencies"]) | train


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, "tfm.testing")])
def test_contracts_use_no_marker_of_this_repository(module):
    """Other projects would have to register it."""
    assert "mark.long" not in MODULES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, *EQUATIONS)])
def test_equations_do_not_import_a_framework(module):
    outside = {name.partition(".")[0] for name in imports(MODULES[module])} - {"tfm"}
    assert outside <= {
        "jax",
        "jaxtyping",
        "numpy",
        "dataclasses",
        "math",
        "functools",
        "inspect",
        "types",
        "typing",
        "collections",
        "contextlib",
        "contextvars",
    }


@pytest.mark.parametrize("module", [name for name in MODULES if not within(name, "tfm.commands")])
def test_only_commands_import_flag_parsers(module):
    parsers = {name for name in imports(MODULES[module]) if within(name, "absl", "argparse")}
    parsers |= {name for name in imports(MODULES[module]) if within(name, "ml_collections.config_flags")}
    assert not parsers


def test_every_public_function_has_a_docstring():
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), module
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                bare = isinstance(node, ast.FunctionDef) and node.name in ("main", "get_config")
                assert bare or ast.get_docstring(node), f"{module}.{node.name}"


@pytest.mark.long
def test_importing_all_modules_initializes_no_device():
    names = [name for name in MODULES if name != "tfm.__main__"]
    code = f"import importlib\nfor name in {[*names, 'train', 'eval']}: importlib.import_module(name)"
    environment = os.environ | {"JAX_PLATFORMS": "no_such_platform"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr.decode()


def text_calls(tree: ast.AST) -> list[str]:
    """Returns the calls that open, read or write a file as text without its encoding."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, keywords = ast.unparse(call.func), {each.arg: each.value for each in call.keywords}
        mode = keywords.get("mode", call.args[1] if len(call.args) > 1 else ast.Constant("r"))
        opens = name in ("open", "os.fdopen", "gzip.open", "lzma.open")
        is_text = opens and isinstance(mode, ast.Constant) and "b" not in str(mode.value)
        if (is_text or name.endswith((".read_text", ".write_text"))) and "encoding" not in keywords:
            found.append(ast.unparse(call))
    return found


@pytest.mark.long
def test_text_files_are_opened_with_an_encoding():
    """Without an encoding, the content of a file depends on the locale of the machine."""
    found = {name: text_calls(ast.parse(path.read_bytes())) for name, path in MODULES.items()}
    assert not {name: calls for name, calls in found.items() if calls}
