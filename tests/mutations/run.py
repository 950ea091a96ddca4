"""Puts mistakes into a copy of the code one at a time, and reports those that no test notices.

    python -m tests.mutations.run --handwritten [--only=TEXT]
    python -m tests.mutations.run --rows=FILE [--only=TEXT]
    python -m tests.mutations.run --generated=200 --seed=1 [--only=tfm/search]

The handwritten mutations are the rows of handwritten.jsonl, which name their tests. --rows reads another file
of rows, which may lack tests. Generated mutations are drawn by `tests.mutations.generate`. Mutations without
tests need the records of `python -m tests.mutations.record`, by which `tests.mutations.choose` chooses tests.

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

from tests.mutations.choose import choose_tests
from tests.mutations.generate import sample_edits
from tests.mutations.record import DEVICE_FLAGS, DEVICE_TESTS
from tests.support.paths import ROOT

NEEDED_SHARE = 0.95  # of the mutations that must be killed
SECONDS = 600  # after which the tests of one mutation hang
FIRST = 20  # tests that run in a call of their own, before those that less likely fail
LEFT_OUT = (".git", ".venv", ".lines", "runs", "site", "__pycache__", ".*_cache", "*.egg-info")
PACKAGES = ("tests", "tfm", "tools", "configs")
NOT_MUTATED = ("tfm/testing/",)  # tests themselves
HANDWRITTEN = pathlib.Path(__file__).with_name("handwritten.jsonl")
SURVIVED, KILLED, NOT_FOUND, TIMED_OUT = 0, 1, 4, -signal.SIGALRM  # exit codes
VERDICTS = {SURVIVED: "SURVIVED", KILLED: "killed", TIMED_OUT: "SURVIVED, timed out"}


class Mutation(NamedTuple):
    """A mistake: the new content of a file, the lines that it changes, and the tests that may notice."""

    path: str
    content: bytes
    description: str
    lines: range
    tests: tuple[str, ...] = ()  # none: those that execute the lines


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
        first = text.partition(row["old"])[0].count("\n") + 1
        lines = range(first, first + row["old"].count("\n") + 1)
        if only in description:
            tests = tuple(map(_test_path, row.get("tests", ())))
            mutations.append(Mutation(row["path"], content, description, lines, tests))
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
        lines = range(edit.line, edit.line + source[edit.start : edit.end].count(b"\n") + 1)
        mutations.append(Mutation(path, edit.apply(source), description, lines))
    return mutations


def group_tests(tests: tuple[str, ...]) -> list[list[str]]:
    """Returns the tests of one call of pytest after another. Tests of devices need a process of their own."""
    others = [test for test in tests if not test.startswith(DEVICE_TESTS)]
    on_devices = [test for test in tests if test.startswith(DEVICE_TESTS)]
    return [group for group in (others[:FIRST], others[FIRST:], on_devices) if group]


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
            os.environ.update(DEVICE_FLAGS)
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
        import pytest

        options = ["-q", "-x", "--tb=line", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
        options.append(f"--basetemp={copy}/.pytest")
        os._exit(int(pytest.main([*options, *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_mutation(job: tuple[str, Mutation]) -> tuple[Mutation, int, str]:
    """Runs the tests of a mutation in a copy of the project.

    Args:
      job: the folder of all copies, and the mutation. Each process has its own copy.

    Returns:
      The mutation, the exit code, and the test that failed or the number of tests that passed.
    """
    folder, mutation = job
    copy = pathlib.Path(folder, f"project-{os.getpid()}")
    if not copy.exists():
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    original = (copy / mutation.path).read_bytes()
    (copy / mutation.path).write_bytes(mutation.content)
    code, output, tests = SURVIVED, "", mutation.tests or choose_tests(mutation.path, mutation.lines)
    try:
        for group in group_tests(tests):
            code = run_tests(group, str(copy), f"{copy}.log")
            if code == NOT_FOUND:  # a test file that cannot be imported has no test to find, but it fails
                files = dict.fromkeys(test.partition("::")[0] for test in group)
                code = run_tests([*files], str(copy), f"{copy}.log")
            output = pathlib.Path(f"{copy}.log").read_text(encoding="utf-8", errors="replace")
            if code != SURVIVED:
                break
    finally:
        (copy / mutation.path).write_bytes(original)
    if code not in VERDICTS:
        print(output[-2000:], file=sys.stderr)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return mutation, code, failed[1] if failed else f"{len(tests)} tests"


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
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(folder, "programs"))
        pool = stack.enter_context(multiprocessing.Pool(arguments.jobs))
        tries = ((folder, mutation) for mutation in mutations)
        for mutation, code, test in pool.imap_unordered(try_mutation, tries):
            results.append((mutation, code))
            left = (time.monotonic() - began) / len(results) * (len(mutations) - len(results)) / 60
            verdict = f"{VERDICTS.get(code, f'ERROR {code}')}  {mutation.description}  ({test})"
            print(f"{len(results)}/{len(mutations)} {left:.0f} min left  {verdict}", flush=True)
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
