"""Tests of the hook in conftest.py that cleans the cache of compiled programs."""

import types

import pytest

from tests import conftest


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a cache of compiled programs that is too large. Returns the path of its damaged program."""
    folder = tmp_path / "compiled"
    folder.mkdir()
    program = folder / "jit_f-cache"
    program.write_bytes(b"damaged")
    monkeypatch.setattr(conftest, "MAX_CACHE_BYTES", 3)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    return program


@pytest.fixture
def session():
    """Returns the session of a process that is not a worker."""
    return types.SimpleNamespace(config=types.SimpleNamespace())


def test_own_cache_that_is_too_large_is_emptied(program, session, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "TESTS_CACHE", tmp_path)
    conftest.pytest_sessionstart(session)
    assert not program.exists()


def test_cache_of_the_user_does_not_change(program, session, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "TESTS_CACHE", tmp_path / "tests")
    conftest.pytest_sessionstart(session)
    assert program.read_bytes() == b"damaged"
