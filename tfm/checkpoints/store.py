"""The checkpoints of a run, by step. The package describes how a step is written."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from tfm.checkpoints import manifest, trees
from tfm.checkpoints.retention import Retention, rank
from tfm.errors import UserError, first_line
from tfm.io import local_copies
from tfm.io.files import io_error_message, require_space, writing
from tfm.io.lock import DirectoryGuard

# Branches that evaluation reads. Their values must be finite.
PARAMETERS, AVERAGE, STATE = "params", "average", "model_state"
STEP_NAME = re.compile("0|[1-9][0-9]*")  # 007 and 7 are different folders
UNFINISHED = ocp.utils.TMP_DIR_SUFFIX
DELETED = ".deleted"
ARRAY_METADATA = "array_metadatas"  # a folder of Orbax
LEFTOVER_NAME = re.compile(rf"[0-9]+({re.escape(UNFINISHED)}|{re.escape(DELETED)})")
NO_STEP = -1  # None cannot be broadcast
log = logging.getLogger(__name__)


def list_steps(folder: str) -> list[int]:
    """Returns the steps that have a checkpoint in a folder, ascending. Some may be damaged.

    Raises:
      OSError: if the folder exists and cannot be listed.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if STEP_NAME.fullmatch(name))


def list_assets(folder: str) -> list[str]:
    """Returns the names of the assets in the newest checkpoint whose manifest is intact, [] without one."""
    for step in reversed(list_steps(folder)):
        with contextlib.suppress(manifest.Damaged):
            return list(Record.parse(manifest.read(os.path.join(folder, str(step)))).assets)
    return []


class CheckpointDeleted(UserError):
    """The checkpoint no longer exists, because a run in training deletes older checkpoints."""


class Record(NamedTuple):
    """The fields that the manifest of a checkpoint has next to its files.

    Attributes:
      step: the step of the checkpoint. It detects a renamed folder.
      time: time at which it was saved, in seconds since the epoch.
      assets: {file name: fingerprint} of what the parameters depend on.
      progress: what else a run needs to resume exactly.
      arrays: {path: [shape, dtype]} of the saved tree.
    """

    step: int
    time: float
    assets: dict[str, str]
    progress: dict[str, Any]
    arrays: dict[str, list]

    @property
    def shapes(self) -> dict[str, Any]:
        """The saved tree, with a ShapeDtypeStruct for each array."""
        return trees.shapes_of(self.arrays)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Returns the record in the fields of a manifest.

        Raises:
          Damaged: if a field is missing, because another version of tfm wrote the manifest, or has another
            type.
        """
        missing = [name for name in cls._fields if name not in content]
        if missing:
            raise manifest.Damaged(f"{manifest.FILE} has no {missing[0]}, so another version of tfm wrote it")
        record = cls(**{name: content[name] for name in cls._fields})
        if not record._has_types():
            raise manifest.Damaged(f"{manifest.FILE} has values of other types than tfm writes")
        return record

    def _has_types(self) -> bool:
        """Returns whether the fields have their types."""
        try:
            _ = self.shapes
        except (AttributeError, TypeError, ValueError):
            return False
        return (
            type(self.step) is int
            and isinstance(self.assets, dict)
            and all(isinstance(fingerprint, str) for fingerprint in self.assets.values())
            and isinstance(self.progress, dict)
        )


class _Save(NamedTuple):
    """A save in the background. The digests of its tree are computed while Orbax copies the arrays."""

    record: Record
    digesting: Future[trees.Digests]


class _PartsHandler(ocp.PyTreeCheckpointHandler):
    """Writes trees like its base class, also if the hosts have no common disk but working copies of a store.

    Then each host uploads its part, and the first host downloads the parts before it merges them.
    """

    async def async_save(self, directory: Any, *args: Any, **options: Any) -> Any:
        copy, name = local_copies.find_copy(os.fspath(directory))
        if copy is None or jax.process_index() == 0:
            return await super().async_save(directory, *args, **options)
        # The other hosts wait until this folder of the first host appears.
        os.makedirs(os.path.join(directory, ARRAY_METADATA), exist_ok=True)
        writes = await super().async_save(directory, *args, **options)
        return [_Sending(writes, functools.partial(copy.send_part, name))]

    def finalize(self, directory: Any) -> None:
        copy, name = local_copies.find_copy(os.fspath(directory))
        if copy is not None and jax.process_count() > 1:
            copy.receive_parts(name)
        super().finalize(directory)


@ocp.args.register_with_handler(_PartsHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _PartsSave(ocp.args.PyTreeSave):
    """The arguments of a save by `_PartsHandler`. Orbax accepts only handlers with arguments of their own."""


@dataclasses.dataclass(frozen=True)  # Orbax would take a tuple apart
class _Sending:
    """A future of Orbax: the writes of a host, after which it sends what it wrote."""

    writes: Iterable[Any]
    send: Callable[[], None]

    def result(self, timeout: float | None = None) -> None:
        """Returns when the part is in the store."""
        for write in self.writes:
            write.result(timeout)
        self.send()


class CheckpointStore:
    """The checkpoints in one folder.

    Args:
      folder: folder of the checkpoints. The first `save` creates it in an existing folder.
      scores: returns {step: score} of the steps that were evaluated. A larger score is better.
      retention: which checkpoints are kept.
      assets: {file name: fingerprint} of what the parameters depend on, for example a vocabulary. Each
        checkpoint records them, and is restored only with equal ones.
      guard: guard of the run folder, checked before and after each save. None checks nothing.

    Attributes:
      folder: absolute path of the folder.
      retention: see above.

    Raises:
      UserError: if Orbax cannot write to the path, or the path is a file.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        scores: Callable[[], Mapping[int, float]] = dict,
        retention: Retention = Retention(),  # noqa: B008 (immutable)
        assets: Mapping[str, str] | None = None,
        guard: DirectoryGuard | None = None,
    ):
        self.folder = os.path.abspath(folder)
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise UserError(f"Expected a folder of checkpoints at {folder}, got a file. Move it away.")
        trees.orbax_path(folder)
        self._scores = scores
        self.retention = retention
        self._assets = dict(assets or {})
        self._guard = guard
        self._damage: dict[int, str] = {}  # "" for a step that was found intact
        self._pool = ThreadPoolExecutor(1, "digests")
        self._writer: ocp.AsyncCheckpointer | None = None
        self._saving: _Save | None = None

    # Reading.

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending. Some may be damaged.

        Calls `wait` first, so it may delete checkpoints that are no longer kept.
        """
        self.wait()
        return list_steps(self.folder)

    def latest(self) -> int | None:
        """Returns the newest intact step, or None if there is no checkpoint. Warns of damaged steps.

        Raises:
          UserError: if there are checkpoints, but all are damaged.
          OSError: if the checkpoints cannot be read.
        """
        steps = self.steps()
        intact = next((step for step in reversed(steps) if not self.find_damage(step)), None)
        if steps and intact is None:
            raise UserError(
                f"None of the checkpoints {steps} in {self.folder} is intact (in the last, "
                f"{self.find_damage(steps[-1])}). Copy their files back, or start in another run folder."
            )
        return intact

    def best(self) -> int | None:
        """Returns the intact step with the best score (the newest of equals).

        Returns None if no intact step has a score.
        """
        ranked = rank(self._scores(), self.steps())
        return next((step for step in ranked if not self.find_damage(step)), None)

    def find_damage(self, step: int) -> str:
        """Returns how a checkpoint differs from its manifest, or "" if it is intact. Warns once of damage.

        Reads the files only in the first call for a step, and repeats its result afterwards.

        Raises:
          CheckpointDeleted: if the checkpoint is deleted at the same time.
          OSError: if its files cannot be read.
        """
        if step not in self._damage:
            try:
                with self._explain_deletion(step):
                    local_copies.fetch(self._path(step))
                    record = Record.parse(manifest.check(self._path(step)))
                if record.step != step:
                    raise manifest.Damaged(f"it is the checkpoint of step {record.step:,}, renamed")
                self._damage[step] = ""
            except manifest.Damaged as damage:
                log.warning("Skipping the damaged checkpoint of step %s: %s", f"{step:,}", damage)
                self._damage[step] = str(damage)
        return self._damage[step]

    def restore(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """Restores some of the branches of a saved tree.

        Args:
          step: step of the checkpoint.
          like: {branch: tree} whose leaves have the shape, dtype and sharding of the result.

        Raises:
          UserError: if the checkpoint does not exist (`CheckpointDeleted` if there are others), is damaged,
            lacks a branch, has other shapes, has another fingerprint of an asset that this store has, too, or
            contains variables that are not finite.
          OSError: if its files cannot be read.
        """
        what = self._require_intact(step)
        with self._explain_deletion(step):
            record = self._read_record(step)
            self._check_assets(record, what)
            tree = trees.read_tree(self._path(step), like, record.shapes, what)
        for branch in (PARAMETERS, AVERAGE, STATE):
            trees.check_finite(tree.get(branch, {}), what)
        return tree

    def restore_variables(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """Restores the variables to evaluate: their moving average if there is one.

        Args:
          step: step of the checkpoint.
          like: {"params": tree of the parameters, other collection: its tree}, see `restore`.

        Raises:
          UserError: see `restore`.
        """
        if AVERAGE in self.shapes(step):
            return self.restore(step, {AVERAGE: dict(like)})[AVERAGE]
        state = {name: tree for name, tree in like.items() if name != PARAMETERS}
        tree = self.restore(step, {PARAMETERS: like[PARAMETERS]} | ({STATE: state} if state else {}))
        return {PARAMETERS: tree[PARAMETERS], **tree.get(STATE, {})}

    def shapes(self, step: int) -> dict[str, Any]:
        """Returns the saved tree with a ShapeDtypeStruct for each array. Reads no arrays.

        Raises:
          UserError: if the checkpoint does not exist (`CheckpointDeleted`) or is damaged.
        """
        self._require_intact(step)
        with self._explain_deletion(step):
            return self._read_record(step).shapes

    def progress(self, step: int) -> dict[str, Any]:
        """Returns the progress that was saved with a step."""
        return self._read_record(step).progress

    # Writing.

    def recover(self) -> int | None:
        """Prepares the folder for training.

        Removes the remains of a killed process, and renames damaged steps that are newer than the newest
        intact step, so that training can save these steps again. Older steps are not read. With several
        hosts, the first host does this for all.

        Returns:
          The newest intact step, or None if there is no checkpoint.

        Raises:
          UserError: if the folder cannot be written, or all checkpoints are damaged.
        """
        newest = NO_STEP
        if jax.process_index() == 0:
            if os.path.isdir(self.folder):
                with writing(self.folder), tempfile.TemporaryFile(dir=self.folder):
                    pass  # the folder can be written
                self._remove_leftovers()
            if (intact := self.latest()) is not None:
                newest = intact
                for step in self.steps():
                    if step > newest:
                        self._move_aside(step)
        newest = int(multihost_utils.broadcast_one_to_all(np.int32(newest)))
        return None if newest == NO_STEP else newest

    def set_aside_after(self, step: int, files: Iterable[str] = ()) -> None:
        """Moves all checkpoints after a step into the folder after_STEP, so that the step is the newest.

        Does nothing if this folder exists, because a repeated command must not lose the steps since then.

        Args:
          step: the step.
          files: paths of other files to move. Files that do not exist are skipped.

        Raises:
          UserError: if the checkpoint of the step does not exist (`CheckpointDeleted`) or is damaged.
        """
        aside = os.path.join(self.folder, f"after_{step}")
        if os.path.exists(aside):
            log.info("The run was set back to step %s before; delete %s to do it again", f"{step:,}", aside)
            return
        self._require_intact(step)
        moving = aside + ".part"  # a kill leaves it, and the same command continues
        os.makedirs(moving, exist_ok=True)
        for later in self.steps():
            if later > step:
                local_copies.fetch(self._path(later))  # moving it uploads it again
                # After a kill, the run may have trained on and saved the same step again.
                os.rename(self._path(later), _find_free_path(os.path.join(moving, str(later))))
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                os.rename(file, os.path.join(moving, os.path.basename(file)))
        os.rename(moving, aside)
        log.info("Moved the checkpoints after step %s to %s", f"{step:,}", aside)

    def save(self, step: int, tree: Mapping[str, Any], *, progress: Mapping[str, Any] | None = None) -> None:
        """Saves a tree in the background. Returns when its arrays are copied from the devices.

        Calls `wait` first, so it waits for the previous save and deletes checkpoints that are no longer kept.

        Args:
          step: step of the checkpoint.
          tree: {branch: tree of arrays}. Each host writes its parts.
          progress: what else the run needs to resume exactly, for JSON.

        Raises:
          UserError: if the disk is full, the run folder was moved, or the previous save failed.
        """
        self.wait()
        if self._guard is not None:
            self._guard.check()
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder)  # never the folders above it, because they may have been moved
        require_space(self.folder, sum(x.nbytes for x in jax.tree.leaves(tree)))
        arrays = trees.describe_arrays(tree)
        record = Record(step, time.time(), self._assets, dict(progress or {}), arrays)
        local = tree if jax.process_index() == 0 else {}  # the first host reads the checkpoint back
        digesting = self._pool.submit(trees.digest_tree, local, trees.list_parts(local))
        self._saving = _Save(record, digesting)
        if self._writer is None:
            options = ocp.AsyncOptions(post_finalization_callback=self._finish)
            self._writer = ocp.AsyncCheckpointer(_PartsHandler(), async_options=options)
        self._damage.pop(step, None)
        self._writer.save(trees.orbax_path(self._path(step)), args=_PartsSave(dict(tree)))
        digesting.result()  # afterwards, the arrays may change

    def check(self) -> None:
        """Raises the error of a save that failed in the background. Does not wait for a running save."""
        if self._writer is not None:
            with self._explain_failure():
                self._writer.check_for_errors()

    def wait(self) -> None:
        """Returns when the last save is durable. Then deletes checkpoints that are no longer kept.

        Raises:
          UserError: if the checkpoint could not be written or is not read back as it was saved, or if the run
            folder was moved.
        """
        if self._writer is None or self._saving is None:
            return
        with self._explain_failure():
            self._writer.wait_until_finished()
        self._saving = None
        if self._guard is not None:
            self._guard.check()
        self.delete_old()

    def delete_old(self) -> None:
        """Renames the steps that are not kept, and deletes them. Called while nothing is being saved.

        Only the first host does this. It also deletes what a killed process left. Steps whose manifest is
        damaged or has another step are not deleted and do not count.
        """
        if jax.process_index() > 0:
            return
        times = {}
        for step in list_steps(self.folder):
            with contextlib.suppress(manifest.Damaged):
                record = self._read_record(step)
                if record.step == step:
                    times[step] = record.time
        for step in times.keys() - self.retention.select(times, self._scores()):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path(step), self._path(step) + DELETED)
        self._remove_leftovers()

    def close(self) -> None:
        """Waits for the last save, and ends the threads."""
        self.wait()
        self._pool.shutdown()
        if self._writer is not None:
            self._writer.close()

    def _finish(self) -> None:
        """Verifies and describes a step. Orbax calls this in the background, before it renames the folder."""
        assert self._saving is not None
        record, digesting = self._saving
        unfinished = self._path(record.step) + UNFINISHED
        if difference := trees.find_difference(unfinished, digesting.result()):
            raise UserError(
                f"The checkpoint of step {record.step} in {self.folder} is not read back as it was saved "
                f"({difference}), and was not kept. Check the disk, or give another --workdir."
            )
        manifest.write(unfinished, record._asdict())

    def _remove_leftovers(self) -> None:
        """Removes what a killed process left. Called while nothing is being saved."""
        for name in os.listdir(self.folder):
            if not LEFTOVER_NAME.fullmatch(name):
                continue
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _move_aside(self, step: int) -> None:
        aside = _find_free_path(f"{self._path(step)}.damaged")
        log.warning("The checkpoint of step %s is damaged; moved it to %s", f"{step:,}", aside)
        os.rename(self._path(step), aside)
        del self._damage[step]

    def _read_record(self, step: int) -> Record:
        return Record.parse(manifest.read(self._path(step)))

    def _require_intact(self, step: int) -> str:
        """Returns how to name a step in messages, after checking that it exists and is intact."""
        steps = self.steps()
        if not steps:
            raise UserError(f"Expected a checkpoint in {self.folder}, but there is none: train first.")
        if step not in steps:
            raise CheckpointDeleted(
                f"Expected a checkpoint of step {step} in {self.folder}, but there are only {steps}."
            )
        what = f"The checkpoint of step {step} in {self.folder}"
        if damage := self.find_damage(step):
            raise UserError(
                f"{what} is damaged ({damage}). Choose another, or restore its files from a copy."
            )
        return what

    def _check_assets(self, record: Record, what: str) -> None:
        for name, saved in record.assets.items():
            if self._assets.get(name, saved) != saved:
                raise UserError(
                    f"{what} was trained with another {name} (SHA-256 {saved[:12]}...) than this run has "
                    f"({self._assets[name][:12]}...). Put the {name} of this run back."
                )

    def _path(self, step: int) -> str:
        return os.path.join(self.folder, str(step))

    @contextlib.contextmanager
    def _explain_deletion(self, step: int) -> Iterator[None]:
        """Raises `CheckpointDeleted` for an error inside, if the step no longer exists."""
        try:
            yield
        except Exception as error:
            try:
                os.stat(self._path(step))
            except FileNotFoundError:
                raise CheckpointDeleted(
                    f"The checkpoint of step {step} in {self.folder} was deleted while it was read, as "
                    "training does with older ones. Start again."
                ) from error
            raise

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        """Removes what a failed save created, and turns a ValueError of a library into a UserError."""
        try:
            yield
        except Exception as error:
            assert self._saving is not None
            assert self._writer is not None
            with contextlib.suppress(Exception):  # the threads of Orbax fail for the same reason
                self._writer.close()
            step = self._saving.record.step
            self._saving = self._writer = None
            if self._guard is not None:
                self._guard.check()
            if jax.process_index() == 0:
                shutil.rmtree(self._path(step) + UNFINISHED, ignore_errors=True)
            # Libraries raise ValueError for files that differ from what they wrote.
            if isinstance(error, UserError) or not isinstance(error, ValueError) or io_error_message(error):
                raise
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} could not be written: "
                f"{first_line(error)} Check the disk, and whether something deletes files there."
            ) from error


def _find_free_path(path: str) -> str:
    """Returns the path, or the first of path.1, path.2, ... where nothing is."""
    names = itertools.chain([path], (f"{path}.{number}" for number in itertools.count(1)))
    return next(name for name in names if not os.path.lexists(name))
