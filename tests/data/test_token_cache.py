"""Tests of token caches that are damaged, of another version, or built by two processes at once."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.io_conditions import files_of
from tests.support.pairs import TEXTS, Letters, Pairs, random_pairs
from tests.support.paths import ROOT
from tests.support.processes import LIMIT, finish
from tests.support.tiny import ids
from tfm.data import token_cache
from tfm.data.sources.parallel_text import open_parallel_text
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.errors import UserError

FILES = ("checksums.json", "source.ends", "source.tokens", "target.ends", "target.tokens")
DAMAGE = {
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"x" + path.read_bytes()[-8:]),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 2),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(8)),
    "empty": lambda path: path.write_bytes(b""),
    "nested": lambda path: path.write_bytes(b"[" * 10_000),
    "missing": lambda path: path.unlink(),
}


def open_cache(folder, pairs=None):
    return TokenCache.open(pairs or random_pairs(30), Letters(), str(folder))


def rows(cache):
    return [(ids(cache, 0, i), ids(cache, 1, i)) for i in range(len(cache))]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_rebuilt(name, damage, tmp_path, caplog):
    expected = rows(open_cache(tmp_path))
    (folder,) = (tmp_path / "tokens").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    DAMAGE[damage](folder / name)
    with caplog.at_level("WARNING", "tfm"):
        again = open_cache(tmp_path)
    assert "Tokenising again" in caplog.text
    assert rows(again) == expected
    assert list((tmp_path / "tokens").iterdir()) == [folder]


def test_damaged_cache_that_cannot_be_replaced_is_an_error(tmp_path, monkeypatch):
    """The folder of another user may be read-only."""

    def fail(folder):
        raise UserError(f"Cannot write {folder}")

    open_cache(tmp_path)
    (folder,) = (tmp_path / "tokens").iterdir()
    DAMAGE["changed"](folder / "source.tokens")
    monkeypatch.setattr(token_cache.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(token_cache, "atomic_folder", fail)
    with pytest.raises(UserError, match=rf"{folder} is damaged .*data\.cache_dir"):
        open_cache(tmp_path)


@pytest.mark.parametrize("name", FILES[1:])
def test_every_changed_byte_fails_the_checksum(name, tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "CHECKED_BYTES", 7)
    open_cache(tmp_path, random_pairs(9))
    (folder,) = (tmp_path / "tokens").iterdir()
    whole = (folder / name).read_bytes()
    for i, byte in enumerate(whole):
        (folder / name).write_bytes(whole[:i] + bytes([byte ^ 1]) + whole[i + 1 :])
        with pytest.raises(ValueError, match="checksum"):
            TokenCache(str(folder))


def test_cache_of_another_format_version_is_kept(tmp_path, monkeypatch):
    pairs = Pairs([("ab", "c")])
    TokenCache.open(pairs, Letters(), str(tmp_path))
    (old,) = (tmp_path / "tokens").iterdir()
    monkeypatch.setattr(token_cache, "FORMAT", token_cache.FORMAT + 1)
    DAMAGE["cut"](old / "source.tokens")  # this version cannot check files of another version
    before = files_of(old)
    assert ids(TokenCache.open(pairs, Letters(), str(tmp_path)), 0, 0) == [97, 98, 2]
    assert files_of(old) == before
    assert len(list((tmp_path / "tokens").iterdir())) == 2


BUILDER = """
import pathlib, sys, time
import numpy as np
from tests.support.pairs import Letters, random_pairs
from tfm.data.token_cache import TokenCache
folder, me = pathlib.Path(sys.argv[1]), sys.argv[2]
class Slow(type(random_pairs(1))):
    def __iter__(self):  # both processes build at the same time
        (folder / me).touch()
        while len(list(folder.glob("builder-*"))) < 2:
            time.sleep(0.01)
        return super().__iter__()
cache = TokenCache.open(Slow(random_pairs(30)), Letters(), str(folder / "cache"))
print(int(cache.tokens(0, np.arange(30))[0].sum()))
"""


@pytest.mark.long
def test_two_processes_build_one_cache(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", BUILDER, str(tmp_path)]
    builders = [subprocess.Popen([*command, f"builder-{i}"], cwd=ROOT, **pipes) for i in range(2)]
    outputs = [finish(builder) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    (folder,) = (tmp_path / "cache" / "tokens").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


HALF = """
import os, signal, sys
from tests.support.pairs import Letters, random_pairs
from tfm.data import token_cache as cache
class Killed(type(random_pairs(1))):
    def __iter__(self):
        yield from self[:7]
        os.kill(os.getpid(), signal.SIGKILL)
cache.CHUNK_PAIRS = 7
cache.TokenCache.open(Killed(random_pairs(30)), Letters(), sys.argv[1])
"""


@pytest.mark.long
def test_build_deletes_the_files_of_a_killed_build(tmp_path):
    subprocess.run([sys.executable, "-c", HALF, str(tmp_path)], cwd=ROOT, check=False, timeout=LIMIT)
    (left,) = (tmp_path / "tokens").iterdir()
    assert left.suffix == ".tmp"
    assert len(TokenCache.open(random_pairs(30), Letters(), str(tmp_path))) == 30
    (whole,) = (tmp_path / "tokens").iterdir()
    assert left.name.startswith(whole.name)


def test_build_keeps_the_files_of_a_running_build(tmp_path):
    half_made = tmp_path / "tokens" / "0.0123456789ab.tmp"

    class Building(Pairs):
        fingerprint = "building"

        def __iter__(self):
            half_made.mkdir()  # a third build that was just killed
            before = sorted((tmp_path / "tokens").iterdir())
            assert len(before) == 2
            assert len(TokenCache.open(random_pairs(30), Letters(), str(tmp_path))) == 30
            assert set(before) < set((tmp_path / "tokens").iterdir())
            return super().__iter__()

    assert len(TokenCache.open(Building(random_pairs(9)), Letters(), str(tmp_path))) == 9
    last = Pairs([("a", "b")])
    last.fingerprint = "last"
    TokenCache.open(last, Letters(), str(tmp_path))
    assert not half_made.exists()
    assert len(list((tmp_path / "tokens").iterdir())) == 3


def test_open_tokens_stay_readable_after_deletion(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"data.{language}").write_text("".join(f"{language} {i}\n" for i in range(100)))
    pairs = open_parallel_text(str(tmp_path), "data", ("en", "de"))
    opened = TokenCache.open(pairs, Letters(), str(tmp_path))
    shutil.rmtree(tmp_path)
    assert ids(opened, 0, 99) == [*map(ord, "en 99"), 2]


def test_failed_tokenizer_training_leaves_no_files(tmp_path):
    def texts():
        yield from TEXTS
        raise UserError("line 9 is not UTF-8")

    with pytest.raises(UserError, match="line 9"):
        learn_word_pieces(texts(), 310, str(tmp_path / "v.model"))
    assert list(tmp_path.iterdir()) == []
