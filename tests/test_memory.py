"""Tests of the memory that malloc keeps: its arenas and its free blocks.

The limit of arenas cannot be changed later in a process, so these tests start processes.
"""

import ctypes
import os
import subprocess
import sys

import pytest

from tests.conftest import resident_bytes
from tests.support.processes import LIMIT
from tfm.devices.memory import return_free_memory

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc"),
]
CORES = max(os.cpu_count(), 2)
# Many threads allocate a small block at the same time. malloc_info(3) then lists the arenas as heaps.
COUNT = """
import ctypes, sys, threading
from tfm.devices.memory import limit_malloc_arenas
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
if sys.argv[2] == "limited":
    limit_malloc_arenas()
many = int(sys.argv[3])
together = threading.Barrier(many)
def hold():
    together.wait()
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=hold) for _ in range(many)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def arenas(folder, how, **environment):
    """Returns the number of arenas that the threads of a process use."""
    report = folder / "arenas.xml"
    kept = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    subprocess.run(
        [sys.executable, "-c", COUNT, str(report), how, str(8 * CORES)],
        env=kept | {"GLIBC_TUNABLES": ""} | environment,
        check=True,
        timeout=LIMIT,
    )
    return report.read_text(encoding="utf-8").count("<heap ")


def test_threads_share_one_arena_for_each_core(tmp_path):
    assert arenas(tmp_path, "limited") <= CORES + 1  # plus the arena of the first thread
    assert arenas(tmp_path, "free") > 2 * CORES


def test_limits_in_the_environment_take_precedence(tmp_path):
    limit = 4 * CORES
    assert arenas(tmp_path, "limited", GLIBC_TUNABLES=f"glibc.malloc.arena_max={limit}") > 2 * CORES
    assert arenas(tmp_path, "limited", MALLOC_ARENA_MAX=str(limit)) > 2 * CORES


def test_free_memory_is_returned_to_the_system():
    """The last block prevents malloc from returning the blocks below it by itself."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    size, count = 4_000, 20_000
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)
    before = resident_bytes()
    return_free_memory()
    assert before - resident_bytes() > size * count / 2
    libc.free(blocks[-1])
