"""The contract of checkpoint stores, as a pytest class over tiny states."""

import contextlib
import math
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from tfm.errors import UserError

STEPS = (2, 4, 7)


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


class StoreContract:
    """The contract of every store of training states.

    A store has `save(state, metrics)`, `restore(like, step=None)`, `steps()`, `latest()`, `best()` and
    `close()`. Subclasses define `open_store` and `make_state`.
    """

    METRIC: ClassVar[str] = "score"
    DAMAGES: ClassVar[dict[str, Callable[[pathlib.Path, random.Random], None]]] = {
        "a flipped bit": flip_bit,
        "a cut file": cut_file,
        "a deleted file": delete_file,
        "zeros": replace_by_zeros,
    }

    def open_store(self, folder: pathlib.Path, **options: Any) -> Any:
        """Opens the store in a folder.

        Args:
          folder: the folder. It may not exist yet.
          options: `order` ("max" or "min") of the metric `METRIC`, `keep` and `keep_best`: numbers of steps.
        """
        raise NotImplementedError

    def make_state(self, step: int) -> Any:
        """Returns a state with the attribute `step` whose numbers follow from the step."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes tests by the kinds of damage."""
        if "damage" in metafunc.fixturenames:
            metafunc.parametrize("damage", self.DAMAGES.values(), ids=self.DAMAGES.keys())

    def fill(self, folder: pathlib.Path, scores: dict[int, float], **options: Any) -> pathlib.Path:
        """Saves a step for each score, and returns the folder."""
        with contextlib.closing(self.open_store(folder, **options)) as store:
            for step, score in scores.items():
                store.save(self.make_state(step), {self.METRIC: score})
        return folder

    def assert_is(self, state: Any, step: int) -> None:
        """Asserts that a state is exactly the state of a step."""
        jax.tree.map(np.testing.assert_array_equal, state, self.make_state(step))

    def test_every_saved_step_is_restored_exactly(self, tmp_path):
        self.fill(tmp_path / "store", dict.fromkeys(STEPS, 1.0))
        with contextlib.closing(self.open_store(tmp_path / "store")) as store:
            assert store.steps() == list(STEPS)
            assert store.latest() == STEPS[-1]
            for step in STEPS:
                self.assert_is(store.restore(self.make_state(0), step), step)
            self.assert_is(store.restore(self.make_state(0)), STEPS[-1])

    @pytest.mark.parametrize(("order", "expected"), [("max", 4), ("min", 2)])
    def test_the_best_step_follows_the_order_of_the_metric(self, order, expected, tmp_path):
        self.fill(tmp_path / "store", {2: -1.0, 4: 3.0, 7: math.nan}, order=order)
        with contextlib.closing(self.open_store(tmp_path / "store", order=order)) as store:
            assert store.best() == expected

    def test_the_newest_and_the_best_steps_are_kept(self, tmp_path):
        scores = {2: 1.0, 4: 9.0, 7: 2.0, 8: 3.0, 9: 0.0}
        self.fill(tmp_path / "store", scores, keep=2, keep_best=1)
        with contextlib.closing(self.open_store(tmp_path / "store", keep=2, keep_best=1)) as store:
            assert store.steps() == [4, 8, 9]

    def test_damage_to_any_file_gives_an_intact_step_or_an_error(self, damage, tmp_path):
        whole = self.fill(tmp_path / "whole", dict.fromkeys(STEPS[:2], 1.0))
        rng = random.Random(0)
        paths = [path for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
        for number, path in enumerate(paths):
            folder = tmp_path / str(number)
            shutil.copytree(whole, folder)
            damage(folder / path.relative_to(whole), rng)
            with contextlib.suppress(UserError), contextlib.closing(self.open_store(folder)) as store:
                state = store.restore(self.make_state(0))
                assert int(state.step) in STEPS
                self.assert_is(state, int(state.step))
            shutil.rmtree(folder)

    def test_without_an_intact_step_nothing_is_restored(self, tmp_path):
        folder = self.fill(tmp_path / "store", {2: 1.0})
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_size:
                flip_bit(path, random.Random(0))
        with contextlib.closing(self.open_store(folder)) as store, pytest.raises(UserError):
            store.restore(self.make_state(0))

    def test_an_empty_store_has_no_step(self, tmp_path):
        with contextlib.closing(self.open_store(tmp_path / "store")) as store:
            assert (store.steps(), store.latest(), store.best()) == ([], None, None)
