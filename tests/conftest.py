"""Fixtures of all tests: tiny trained runs, and compiled programs that the whole session shares."""

import collections
import fcntl
import functools
import gc
import math
import os
import pathlib
import shutil
import signal
from collections.abc import Callable

import hypothesis
import jax
import pytest

from tests.support import (
    shape_checks,  # noqa: F401 (before any module whose shapes it checks)
    tiny_regression,
)
from tests.support.paths import ROOT
from tests.support.skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401 (hooks)
from tests.support.tiny import make_config, train_run, write_corpus
from tfm.devices.memory import return_free_memory
from tfm.testing.tasks import TaskContract
from tfm.workdir.compiled_programs import COMPILED_FOLDER, remove_damaged_programs

# Programs of tests take longer to compile than to run, so XLA hardly optimises their machine code. It still
# rewrites and fuses operations as usual. The fusion emitters take the most time to compile. One piece of code
# is enough, because the workers of pytest already use all cores. XLA reads these flags when it compiles the
# first program, after all imports.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # XLA of later versions ends the process because of unknown flags
    FAST_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{FAST_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}"

# Runs record `git status`, which otherwise writes the index of this checkout. A test that limits the size of
# files would kill it and leave the lock of the index.
os.environ["GIT_OPTIONAL_LOCKS"] = "0"

# A test may not depend on how busy the machine is, nor on examples of an earlier session.
hypothesis.settings.register_profile(
    "tfm",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    database=None,
)
hypothesis.settings.load_profile("tfm")

LONG_TESTS_OF_CONTRACTS = {  # functions instead of names, so that a test that was renamed is an error
    TaskContract.test_training_on_a_few_rows_learns_their_targets,
    TaskContract.test_an_ensemble_differs_from_its_members,
    TaskContract.test_every_default_example_can_be_observed,
    TaskContract.test_an_observed_text_has_the_tokens_that_training_reads,
}
TESTS_CACHE = ROOT / ".pytest_cache"
MAX_RESIDENT_BYTES = 800 << 20  # of a worker; above it, compiled programs are dropped after a file
MAX_CACHE_BYTES = 1 << 30  # of compiled programs on disk; above it, the cache is emptied

# A script starts its background processes with SIGINT ignored, and their children inherit this. Tests of
# Ctrl-C need the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session):
    """Empties the tests' own cache of compiled programs if it is too large, and removes damaged programs.

    A folder elsewhere belongs to the user, and does not change.
    """
    folder = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", "")).resolve()
    is_worker = hasattr(session.config, "workerinput")
    is_tests_cache = TESTS_CACHE.resolve() in folder.parents and folder.name == COMPILED_FOLDER
    if is_worker or not is_tests_cache:
        return
    if sum(path.stat().st_size for path in folder.glob("*")) > MAX_CACHE_BYTES:
        shutil.rmtree(folder)
    remove_damaged_programs(str(folder.parent))


def pytest_xdist_auto_num_workers():
    """Returns the number of usable cores plus 1, because a worker usually waits for a process or the disk."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) + 1
    return (os.cpu_count() or 1) + 1


def pytest_itemcollected(item):
    """Marks tests of contracts as long, except those of the first case with the first other arguments.

    The marker is unknown outside this repository, so the contracts in tfm.testing do not use it.
    """
    is_contract = hasattr(getattr(item, "cls", None), "cases")
    is_repeated = hasattr(item, "callspec") and any(item.callspec.indices.values())
    if is_contract and (is_repeated or item.function in LONG_TESTS_OF_CONTRACTS):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)  # after pytest has selected tests by their markers
def pytest_collection_modifyitems(config, items):
    """Starts the slowest files first, so that the workers end at the same time. A long test counts as ten."""
    if not hasattr(config, "workerinput"):
        return  # a single process keeps the order of its arguments
    weights = collections.Counter()
    for item in items:
        weights[item.path] += 10 if item.get_closest_marker("long") else 1
    items.sort(key=lambda item: -weights[item.path])


def pytest_collection_finish():
    """Excludes imported objects from garbage collection, which otherwise takes a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id) -> pathlib.Path:
    """Returns a folder that all workers of the session share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


def make_once(folder: pathlib.Path, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """Returns the folder after `make` has filled it. The first worker calls `make`, and the others wait."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = pathlib.Path(f"{folder}.done")
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(shared_folder):
    """Shares compiled programs between all workers and the processes that tests start.

    If the environment names a folder, as the Makefile does, then later sessions use the programs, too.
    """
    shared = os.environ.get("JAX_COMPILATION_CACHE_DIR", shared_folder / "compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(shared))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        jax.config.update("jax_compilation_cache_dir", str(shared))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _full_precision():
    """Multiplies float32 numbers in float32 on accelerators, whose default is less precise, such as TF32."""
    if jax.default_backend() != "cpu":
        jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(scope="module", autouse=True)
def _clear_programs():
    """Drops compiled programs after a file if the process has become large, and frees their memory."""
    yield
    if resident_bytes() > MAX_RESIDENT_BYTES:
        jax.clear_caches()
        gc.collect()
        return_free_memory()  # otherwise the process stays large, and the next files lose their programs


def resident_bytes() -> float:
    """Returns the memory of this process in bytes, or infinity where the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return math.inf


@pytest.fixture(autouse=True)
def _interrupt_handler():
    """Restores the handler of SIGINT, which commands replace."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def corpus(shared_folder) -> pathlib.Path:
    """Returns the folder of the tiny corpus."""

    def make(folder):
        folder.mkdir()
        write_corpus(folder)

    return make_once(shared_folder / "corpus", make)


@pytest.fixture(scope="session")
def tiny_run(corpus, shared_folder) -> pathlib.Path:
    """Returns a run of six training steps on the tiny corpus. Tests must not change it."""
    return make_once(shared_folder / "run", functools.partial(train_run, make_config(corpus)))


@pytest.fixture(scope="session")
def regression_run(shared_folder) -> pathlib.Path:
    """Returns a run of six training steps of the tiny regression. Tests must not change it."""
    make = functools.partial(train_run, tiny_regression.make_config())
    return make_once(shared_folder / "regression", make)
