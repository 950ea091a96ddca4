"""Shared by all tests: a tiny trained run, and compiled programs kept for the length of a session."""

import collections
import fcntl
import functools
import gc
import math
import os
import pathlib
import shutil
import signal

import jax
import pytest

from tests.support import (
    shape_checks,  # noqa: F401, before any module that it checks
    tiny_regression,
)
from tests.support.tiny import make_config, train_run, write_corpus
from tfm.commands import compilation
from tfm.memory import return_free_memory

# Programs of tests, and of the processes that they start, take longer to compile than to run: XLA rewrites
# and fuses as ever, but hardly optimises machine code, and writes it without MLIR, which takes longest,
# and as one piece, not in up to 32 to compile side by side, as the workers have all cores already.
# Read when the first program is compiled, which no import does.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # later ones do not know the first, and end the process that has it
    FAST_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{FAST_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}"

MOST_MEMORY = 800 << 20  # bytes of a worker, about: compiled programs go where a file ends above it

# Programs in the background of a script start with SIGINT ignored, and so do the processes that they start:
# no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


MAX_CACHE_BYTES = 1 << 30  # of compiled programs that sessions share; above it, the cache is emptied


def pytest_sessionstart(session):
    """Programs that an earlier session left are whole, and do not grow without end."""
    folder = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", ""))
    if folder.name != compilation.COMPILED_FOLDER or hasattr(session.config, "workerinput"):
        return
    if sum(path.stat().st_size for path in folder.glob("*")) > MAX_CACHE_BYTES:
        shutil.rmtree(folder)
    compilation.remove_damaged_programs(str(folder.parent))


def pytest_xdist_auto_num_workers():
    """One more than the cores: there is always one that waits, for a process or for the disk."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config, items):
    """Files that take long go first, so that no worker ends alone with one: a long test counts as ten."""
    if not hasattr(config, "workerinput"):
        return  # one process keeps the order of its arguments
    weights = collections.Counter()
    for item in items:
        weights[item.path] += 10 if item.get_closest_marker("long") else 1
    items.sort(key=lambda item: -weights[item.path])


def pytest_collection_finish():
    """What is imported stays: the collector passes over it, and over the many objects of a trace less often.

    A twentieth of the time went into it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id):
    """A folder that all workers of the session have."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


def make_once(folder, make):
    """The folder, which `make` fills for the first worker that needs it; the others wait."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = pathlib.Path(f"{folder}.done")
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(shared_folder):
    """Programs compiled once, for all workers and for the processes that tests start.

    If the environment names a folder, sessions share it. The Makefile names a folder.
    """
    shared = os.environ.get("JAX_COMPILATION_CACHE_DIR", shared_folder / "compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(shared))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        jax.config.update("jax_compilation_cache_dir", str(shared))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        yield


@pytest.fixture(scope="module", autouse=True)
def _clear_programs():
    """Compiled programs of many files take GB; those that files share are compiled again after this.

    Without its last line the process keeps what they took, and the programs of every later file go as well.
    """
    yield
    if resident_bytes() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        return_free_memory()


def resident_bytes():
    """Memory of this process; infinite where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return math.inf


@pytest.fixture(autouse=True)
def _handler():
    """The handler of SIGINT stays that of pytest: commands called in a test replace it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def corpus(shared_folder):
    """Folder with the tiny corpus."""

    def make(folder):
        folder.mkdir()
        write_corpus(folder)

    return make_once(shared_folder / "corpus", make)


@pytest.fixture(scope="session")
def tiny_run(corpus, shared_folder):
    """Work directory of six training steps on it; not to be changed."""
    return make_once(shared_folder / "run", functools.partial(train_run, make_config(corpus)))


@pytest.fixture(scope="session")
def regression_run(shared_folder):
    """Work directory of six training steps of the tiny regression; not to be changed."""
    make = functools.partial(train_run, tiny_regression.make_config())
    return make_once(shared_folder / "regression", make)
