"""The contract of checkpoint stores, as a pytest class over tiny trees."""

import contextlib
import functools
import itertools
import os
import pathlib
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from tests.support.comparison import assert_trees_equal
from tfm.errors import UserError

STEPS = (2, 4, 7)
KILLS_PER_SAVE = 8  # a save after every kill would take too long
WRITING_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate")


def flip_bit(path: pathlib.Path, rng: random.Random) -> None:
    """Flips a bit at a random place of a file that is not empty."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut_file(path: pathlib.Path, rng: random.Random) -> None:
    """Cuts a file at a random place."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def delete_file(path: pathlib.Path, rng: random.Random) -> None:
    """Deletes a file."""
    del rng
    path.unlink()


def replace_by_zeros(path: pathlib.Path, rng: random.Random) -> None:
    """Replaces the content of a file by zeros, as after a power failure."""
    del rng
    path.write_bytes(bytes(path.stat().st_size))


class _Recorder:
    """Copies a folder before each operation of this process on a file in it, if the folder has changed."""

    def __init__(self, folder: pathlib.Path, copies: pathlib.Path):
        self.folder, self._copies = os.fspath(folder), copies
        self.paths: list[pathlib.Path] = []
        self._numbers = itertools.count()
        self._states: set[tuple] = set()
        self._lock = threading.Lock()

    def record(self) -> None:
        """Copies the folder if its state is new."""
        if not self._lock.acquire(blocking=False):  # another thread copies, or this call is within a copy
            return
        try:
            with contextlib.suppress(OSError, shutil.Error):  # a thread of a library deleted a file meanwhile
                self._copy()
        finally:
            self._lock.release()

    def finish(self) -> None:
        """Copies the last state, which an operation may have left while another thread copied."""
        with self._lock:
            self._copy()

    def _copy(self) -> None:
        files = sorted(pathlib.Path(self.folder).rglob("*"))
        state = tuple((str(path), path.stat().st_size) for path in files)
        if state not in self._states:
            path = self._copies / str(next(self._numbers))  # a copy that failed leaves its folder
            shutil.copytree(self.folder, path)
            self._states.add(state)
            self.paths.append(path)


_recorders: list[_Recorder] = []


def _audit(event: str, arguments: tuple) -> None:
    for recorder in _recorders:
        paths = [os.fsdecode(x) for x in arguments[:2] if isinstance(x, (str, bytes, os.PathLike))]
        if event in WRITING_EVENTS and any(path.startswith(recorder.folder) for path in paths):
            recorder.record()


@functools.cache  # a hook cannot be removed; without recorders, it does nothing
def _install_hook() -> None:
    sys.addaudithook(_audit)


@contextlib.contextmanager
def record_kills(folder: pathlib.Path, copies: pathlib.Path) -> Iterator[list[pathlib.Path]]:
    """Yields a list of copies of a folder, as kills between the file operations inside would leave it.

    The list is complete at the end of the context. Only operations of Python code start a copy.

    Args:
      folder: the folder. It may not exist yet.
      copies: folder for the copies.
    """
    _install_hook()
    recorder = _Recorder(folder, copies)
    _recorders.append(recorder)
    try:
        yield recorder.paths
        recorder.finish()
    finally:
        _recorders.remove(recorder)


class StoreContract:
    """The contract of every store of training states.

    A store has `save(step, tree)`, `restore(step, like)`, `steps()`, `latest()`, `best()`, `recover()`,
    `wait()`, `delete_old()` and `close()`. Subclasses define `open_store` and `make_tree`.
    """

    DAMAGES: ClassVar[dict[str, Callable[[pathlib.Path, random.Random], None]]] = {
        "a flipped bit": flip_bit,
        "a cut file": cut_file,
        "a deleted file": delete_file,
        "zeros": replace_by_zeros,
    }

    def open_store(
        self, folder: pathlib.Path, scores: Callable[[], Mapping[int, float]] = dict, **options: Any
    ) -> Any:
        """Opens the store in a folder.

        Args:
          folder: the folder. It may not exist yet, but its parent exists.
          scores: returns {step: score}. A larger score is better.
          options: `keep` and `keep_best`, numbers of steps.
        """
        raise NotImplementedError

    def make_tree(self, step: int) -> dict[str, Any]:
        """Returns a tree of arrays, with at least two branches, whose numbers follow from the step."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes tests by the kinds of damage."""
        if "damage" in metafunc.fixturenames:
            metafunc.parametrize("damage", self.DAMAGES.values(), ids=self.DAMAGES.keys())

    def fill(self, folder: pathlib.Path, steps: Iterable[int], **options: Any) -> pathlib.Path:
        """Saves the steps, and returns the folder."""
        with contextlib.closing(self.open_store(folder, **options)) as store:
            for step in steps:
                store.save(step, self.make_tree(step))
        return folder

    def assert_is(self, tree: dict[str, Any], step: int) -> None:
        """Asserts that a tree is exactly the tree of a step."""
        assert_trees_equal(tree, self.make_tree(step))

    def test_every_saved_step_is_restored_exactly(self, tmp_path):
        self.fill(tmp_path / "store", STEPS)
        with contextlib.closing(self.open_store(tmp_path / "store")) as store:
            assert store.steps() == list(STEPS)
            assert store.latest() == STEPS[-1]
            for step in STEPS:
                self.assert_is(store.restore(step, self.make_tree(0)), step)

    def test_a_branch_is_restored_alone(self, tmp_path):
        self.fill(tmp_path / "store", [2])
        with contextlib.closing(self.open_store(tmp_path / "store")) as store:
            for branch, like in self.make_tree(0).items():
                tree = store.restore(2, {branch: like})
                self.assert_is(self.make_tree(2) | tree, 2)

    def test_the_best_step_is_the_newest_of_the_largest_scores_that_is_saved(self, tmp_path):
        self.fill(tmp_path / "store", STEPS)
        oldest, middle, newest = STEPS
        scores = {oldest: -1.0, middle: 3.0, newest: 3.0, newest + 1: 9.0}
        with contextlib.closing(self.open_store(tmp_path / "store", lambda: scores)) as store:
            assert store.best() == newest
            scores[oldest] = 4.0
            assert store.best() == oldest

    def test_the_newest_and_the_best_steps_are_kept(self, tmp_path):
        """The scores may arrive after the save."""
        scores = {2: 1.0, 4: 9.0}
        with contextlib.closing(
            self.open_store(tmp_path / "store", lambda: scores, keep=2, keep_best=1)
        ) as store:
            for step in (2, 4, 7, 8, 9):
                store.save(step, self.make_tree(step))
            assert store.steps() == [4, 8, 9]
            scores[8] = 10.0
            store.delete_old()
            assert store.steps() == [8, 9]

    def test_after_damage_to_any_file_an_intact_step_is_restored(self, damage, tmp_path):
        """The damage affects one of the two saved steps, so that the other step remains."""
        whole = self.fill(tmp_path / "whole", STEPS[:2])
        rng = random.Random(0)
        paths = [path for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
        for number, path in enumerate(paths):
            folder = tmp_path / str(number)
            shutil.copytree(whole, folder)
            damage(folder / path.relative_to(whole), rng)
            with contextlib.closing(self.open_store(folder)) as store:
                step = store.latest()
                assert step in STEPS[:2]
                self.assert_is(store.restore(step, self.make_tree(0)), step)
            shutil.rmtree(folder)

    def test_without_an_intact_step_nothing_is_restored(self, tmp_path):
        folder = self.fill(tmp_path / "store", [2])
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_size:
                flip_bit(path, random.Random(0))
        with contextlib.closing(self.open_store(folder)) as store:
            for call in (store.latest, store.recover, lambda: store.restore(2, self.make_tree(0))):
                with pytest.raises(UserError):
                    call()

    def test_an_empty_store_has_no_step(self, tmp_path):
        with contextlib.closing(self.open_store(tmp_path / "store")) as store:
            assert (store.steps(), store.latest(), store.best(), store.recover()) == ([], None, None, None)

    def test_a_kill_between_two_file_operations_loses_at_most_the_last_save(self, tmp_path):
        folder = self.fill(tmp_path / "store", [2], keep=1)
        with (
            contextlib.closing(self.open_store(folder, keep=1)) as store,
            record_kills(folder, tmp_path / "killed") as killed,
        ):
            store.save(4, self.make_tree(4))
            store.wait()
        steps = []
        for number, copy in enumerate(killed):
            with contextlib.closing(self.open_store(copy, keep=1)) as store:
                steps.append(store.recover())
                self.assert_is(store.restore(steps[-1], self.make_tree(0)), steps[-1])
                if number % KILLS_PER_SAVE == 0:
                    store.save(7, self.make_tree(7))
                    assert store.steps() == [7]
        assert steps == sorted(steps)
        assert set(steps) == {2, 4}
