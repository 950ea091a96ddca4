"""Puts mistakes into a copy of the code one at a time, and reports those that no test notices.

    python -m tests.mutations.run --handwritten [--only=TEXT]
    python -m tests.mutations.run --rows=FILE [--only=TEXT]
    python -m tests.mutations.run --generated=200 --seed=1 [--only=tfm/search]

The handwritten mutations are the rows of handwritten.jsonl, which name their tests. --rows reads another file
of rows, which may lack tests. Generated mutations are drawn by `tests.mutations.generate`.

The tests of a mutation that names none are the mirrored test file, then the files that handwritten rows of
the same file name, then the test files that import the module, then the tests of the package, and at last the
contracts and the tests of the wiring.

A mutation is killed only if pytest exits with code 1. A mutation that makes the tests hang is reported as a
survivor that timed out. Any other exit code is an error, and the program exits with code 2. Libraries are
imported once, and the tests of each mutation run in a fork. The program exits with code 1 if less than 95 %
of the mutations are killed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from typing import NamedTuple

from tests.mutations.generate import sample_edits
from tests.support.paths import ROOT

NEEDED_SHARE = 0.95  # of the mutations that must be killed
SECONDS = 600  # for the tests of one mutation
LEFT_OUT = (".git", ".venv", "runs", "site", "__pycache__", ".*_cache", "*.egg-info")
NOT_MUTATED = ("tfm/datasets/toy_translation/", "tfm/testing/")  # word lists; tests themselves
DEVICE_TESTS = "tests/devices"
DEVICE_FLAGS = "--xla_force_host_platform_device_count=8"
# Tests that run last, and the packages whose mutations they may notice.
WIRING_OF_FLAGS = ("commands", "workdir", "sweep", "export", "visualize", "tasks", "training")
WIRING_OF_FIELDS = ("tasks", "data", "models", "layers", "decoding", "training", "evaluation")
LAST_TESTS = {
    "tests/commands/test_commands.py": ("__main__.py",),
    "tests/wiring/test_defaults.py": (*WIRING_OF_FLAGS, *WIRING_OF_FIELDS),
    "tests/wiring/test_fields.py": WIRING_OF_FIELDS,
    "tests/wiring/test_flags.py": WIRING_OF_FLAGS,
    "tests/models/test_contracts.py": ("layers", "models", "search", "matmul", "attention.py", "masks.py"),
    "tests/devices/test_layouts.py": ("training", "dropout.py", "matmul", "layers"),
    "tests/tasks/test_contracts.py": ("tasks", "data", "training", "losses.py", "dropout.py"),
}
HANDWRITTEN = pathlib.Path(__file__).with_name("handwritten.jsonl")
SURVIVED, KILLED, TIMED_OUT = 0, 1, -signal.SIGALRM  # exit codes
VERDICTS = {SURVIVED: "SURVIVED", KILLED: "killed", TIMED_OUT: "SURVIVED, timed out"}


class Mutation(NamedTuple):
    """A mistake: the whole new content of a file, what it changes, and the tests that should notice."""

    path: str
    content: bytes
    description: str
    tests: list[list[str]]  # arguments of one call of pytest after another


def read_mutations(rows: pathlib.Path = HANDWRITTEN, only: str = "") -> list[Mutation]:
    """Returns the mutations of a file of rows whose path or text contains `only`.

    Raises:
      ValueError: if the old text of a row does not occur exactly once in its file.
    """
    mutations = []
    for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
        text = (ROOT / row["path"]).read_text(encoding="utf-8")
        if text.count(row["old"]) != 1:
            count = text.count(row["old"])
            raise ValueError(f"{row['path']} contains {row['old']!r} {count} times, not once.")
        description = f"{row['path']}: {row['old'].strip()!r} -> {row['new'].strip()!r}"
        content = text.replace(row["old"], row["new"]).encode()
        if only in description:
            named = [_test_path(test) for test in row.get("tests", ())]
            tests = [named] if named else find_tests(row["path"])
            mutations.append(Mutation(row["path"], content, description, tests))
    return mutations


def generated_mutations(count: int, seed: int, only: str = "") -> list[Mutation]:
    """Draws mutations of the files whose path starts with `only`."""
    paths = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tfm").rglob("*.py"))]
    chosen = [path for path in paths if path.startswith(only) and not path.startswith(NOT_MUTATED)]
    sources = {path: (ROOT / path).read_bytes() for path in chosen}
    mutations = []
    for path, edit in sample_edits(sources, count, seed):
        source = sources[path]
        old = " ".join(source[edit.start : edit.end].decode().split())
        description = f"{path}:{edit.line}: {edit.kind}: {old!r} -> {' '.join(edit.new.split())!r}"
        mutations.append(Mutation(path, edit.apply(source), description, find_tests(path)))
    return mutations


def find_tests(path: str) -> list[list[str]]:
    """Returns the test files of a file of tfm/ in groups. The group that most likely fails comes first."""
    inner = pathlib.PurePosixPath(path).relative_to("tfm")
    module = ".".join(("tfm", *inner.with_suffix("").parts)).removesuffix(".__init__")
    rows = map(json.loads, HANDWRITTEN.read_text(encoding="utf-8").splitlines())
    named = [test for row in rows if row["path"] == path for test in row["tests"]]
    packages = [f"tests/{parent}" for parent in inner.parents if parent.name]
    groups = [
        [f"tests/{inner.parent}/test_{inner.stem.strip('_')}.py"],
        [_test_path(test).partition("::")[0] for test in named],
        _importing_tests(module),
        *[_test_files(package) for package in packages],
        *[[test] for test, tested in LAST_TESTS.items() if inner.parts[0] in tested],
    ]
    seen: set[str] = set()
    result = []
    for group in groups:
        new = [test for test in dict.fromkeys(group) if test not in seen and (ROOT / test).exists()]
        on_devices = [test for test in new if test.startswith(DEVICE_TESTS)]  # need a process of their own
        result += [[test for test in new if test not in on_devices], on_devices]
        seen.update(group)
    return [group for group in result if group]


def _importing_tests(module: str) -> list[str]:
    """Returns the test files that import a module, the shortest first."""
    package, _, name = module.rpartition(".")
    pattern = re.compile(rf"from {re.escape(module)} import|from {re.escape(package)} import .*\b{name}\b")
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda file: file.stat().st_size)
    found = (file for file in files if pattern.search(file.read_text(encoding="utf-8")))
    return [file.relative_to(ROOT).as_posix() for file in found]


def _test_files(path: str) -> list[str]:
    """Returns the test files of a folder."""
    return sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / path).rglob("test_*.py"))


def run_tests(tests: list[str], copy: str, output: str) -> int:
    """Runs the tests in a fork, and returns the exit code of pytest or the negative number of a signal."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        with open(output, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = copy
        sys.path.insert(0, copy)
        if all(test.startswith(DEVICE_TESTS) for test in tests):
            os.environ["XLA_FLAGS"] = DEVICE_FLAGS
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "tfm", "configs")]:
            del sys.modules[name]
        import pytest

        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", f"--basetemp={copy}/.pytest"]
        os._exit(int(pytest.main([*options, *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_mutation(job: tuple[str, Mutation]) -> tuple[Mutation, int]:
    """Runs the tests of a mutation in a copy of the project, and returns the mutation and the exit code.

    Args:
      job: the folder of all copies, and the mutation. Each process has its own copy.
    """
    folder, mutation = job
    copy = pathlib.Path(folder, f"project-{os.getpid()}")
    if not copy.exists():
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    original = (copy / mutation.path).read_bytes()
    (copy / mutation.path).write_bytes(mutation.content)
    try:
        code = SURVIVED
        for tests in mutation.tests:
            code = run_tests(tests, str(copy), f"{copy}.log")
            if code != SURVIVED:
                break
    finally:
        (copy / mutation.path).write_bytes(original)
    if code not in VERDICTS:
        print(pathlib.Path(f"{copy}.log").read_text(encoding="utf-8")[-2000:], file=sys.stderr)
    return mutation, code


def main() -> int:
    """Runs the mutations that the command line names, and returns the exit code."""
    arguments = parse()
    if arguments.generated:
        mutations = generated_mutations(arguments.generated, arguments.seed, arguments.only)
    else:
        mutations = read_mutations(arguments.rows or HANDWRITTEN, arguments.only)
    import flax  # noqa: F401, once for all forks
    import optax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import pytest  # noqa: F401

    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    results: list[tuple[Mutation, int]] = []
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(folder, "programs")
        pool = stack.enter_context(multiprocessing.Pool(arguments.jobs))
        tries = ((folder, mutation) for mutation in mutations)
        for mutation, code in pool.imap_unordered(try_mutation, tries):
            results.append((mutation, code))
            left = (time.monotonic() - began) / len(results) * (len(mutations) - len(results)) / 60
            progress = f"{len(results)}/{len(mutations)} {left:.0f} min left"
            verdict = VERDICTS.get(code, f"ERROR {code}")
            print(f"{progress}  {verdict}  {mutation.description}", flush=True)
    return report(results)


def report(results: list[tuple[Mutation, int]]) -> int:
    """Prints the share of killed mutations of each package, and returns the exit code."""
    tried, killed = Counter[str](), Counter[str]()
    for mutation, code in results:
        package = "/".join(mutation.path.split("/")[:2])
        tried[package] += 1
        killed[package] += code == KILLED
    for package, count in sorted(tried.items()):
        print(f"{package:<24} {killed[package]:>4} of {count:>4}")
    print(f"{killed.total()} of {tried.total()} killed")
    errors = [mutation for mutation, code in results if code not in VERDICTS]
    return 2 if errors else int(killed.total() < NEEDED_SHARE * tried.total())


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--handwritten", action="store_true", help="the rows of handwritten.jsonl")
    kind.add_argument("--rows", type=pathlib.Path, metavar="FILE", help="the rows of another file")
    kind.add_argument("--generated", type=int, metavar="N", help="number of mutations to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn mutations")
    parser.add_argument(
        "--only", default="", help="text of handwritten rows, or start of the path of generated ones"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutations at the same time")
    return parser.parse_args()


def _test_path(test: str) -> str:
    """Returns the argument of pytest for "test_masks" or "test_masks::test_causal_mask"."""
    file, colons, name = test.partition("::")
    return f"tests/{file}.py{colons}{name}"


if __name__ == "__main__":
    sys.exit(main())
