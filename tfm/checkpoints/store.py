"""Checkpoints of a run: written in the background, verified before use, the newest few and the best kept."""

import contextlib
import functools
import itertools
import json
import logging
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from tfm.checkpoints import manifest, readback
from tfm.checkpoints.orbax_paths import orbax_path
from tfm.checkpoints.restoring import check_finite, restore_tree
from tfm.errors import UserError
from tfm.io.files import io_error_message, require_space, writing
from tfm.io.lock import DirectoryGuard

ITEMS = ("params", "optimizer", "average")
WEIGHTS = ("params", "average")
PROGRESS = manifest.ITEM
ASSETS = "assets"  # in a checkpoint's progress
STEP = "step"  # the same
REPLACED = ".replaced"
DELETED = "deleted"  # folder of the steps that are deleted
STEP_NAME = re.compile("0|[1-9][0-9]*")  # as Orbax writes it: 007 is another folder than 7
FINALIZE_THREAD = "save_finalize"  # of Orbax's manager, from a save to its end
NO_STEP = -1  # among steps, where None cannot be sent
log = logging.getLogger(__name__)


def list_steps(directory: str) -> list[int]:
    """The steps with a checkpoint in a folder, ascending; [] where there is no folder."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(int(name) for name in names if STEP_NAME.fullmatch(name))


class CheckpointDeleted(UserError):
    """The chosen checkpoint no longer exists: a run in training deletes older ones."""


class Checkpoints:
    """The checkpoints in one folder.

    A step exists once Orbax has renamed its folder, with its manifest; it is intact if its files equal the
    manifest. Before the rename it is read back: completely if it is the first that this process saves, else
    all shapes and the values of one array of each item, another one each time. A deleted step is renamed
    first, so that a reader finds a step complete or not at all.

    Args:
      directory: made by the first `save`, in a folder that is there.
      best_metric: name of the metric that makes a checkpoint the best; None keeps no best.
      best_order: "max" where the largest value is the best, "min" where the smallest is.
      keep: how many of the newest stay.
      keep_best: how many of the best stay beside them.
      keep_hours: beside these, one every so many hours stays; 0 for none.
      assets: {file name: fingerprint} of what the weights mean nothing without, such as a vocabulary. Each
        checkpoint keeps it, and is only restored with the same.
      guard: the `lock.DirectoryGuard` of the work directory, checked before each `save`; None checks nothing.

    Raises:
      UserError: Orbax cannot write to such a path, or a file is there.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        best_metric: str | None = None,
        best_order: str = "max",
        keep: int = 6,
        keep_best: int = 1,
        keep_hours: float = 0.0,
        assets: Mapping[str, str] | None = None,
        guard: DirectoryGuard | None = None,
    ):
        self.directory = os.path.abspath(directory)
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise UserError(f"Expected a folder of checkpoints at {directory}, got a file: move it away.")
        self._orbax_path = orbax_path(directory)
        self._best_metric, self._sign = best_metric, 1 if best_order == "max" else -1
        self._assets, self._guard = assets or {}, guard
        self._policies = [checkpoint_managers.LatestN(keep)]
        if best_metric is not None:
            self._policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=self._metric, n=keep_best, keep_checkpoints_without_metrics=False
                )
            )
        if keep_hours:
            self._policies.append(checkpoint_managers.EveryNSeconds(keep_hours * 3600))
        self._checked: dict[int, tuple[str | None, bool]] = {}
        self._replaced: str | None = None
        self._saving: int | None = None
        self._readback = readback.ReadBack()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, damaged ones among them, ascending."""
        self.wait()
        return list_steps(self.directory)

    def latest(self) -> int | None:
        """The newest intact step, or None if there is no checkpoint. Warns of damaged ones that it skips.

        Raises:
          UserError: there are checkpoints, but all are damaged.
          OSError: they cannot be read.
        """
        steps = self.steps()
        intact = self._first_intact(reversed(steps))
        if steps and intact is None:
            raise UserError(
                f"None of the checkpoints {steps} in {self.directory} is intact (in the last, "
                f"{self._damage(steps[-1])}): copy their files back, or start in another work directory."
            )
        return intact

    def best(self) -> int | None:
        """The intact step with the best metric (the newest of equals), or None where none was measured."""
        measured = [(metric, step) for step in self.steps() if (metric := self._measured(step)) is not None]
        return self._first_intact(step for _, step in sorted(measured, reverse=True))

    def recover(self) -> int | None:
        """`latest`, and renames damaged steps, so that training can save them again.

        They are renamed; of steps before the newest intact one, large files are compared by size alone. Of
        several hosts the first decides.
        """
        newest = NO_STEP
        if jax.process_index() == 0:
            self._check_writable()
            self._restore_replaced()
            self._remove_deleted()
        if jax.process_index() == 0 and (intact := self.latest()) is not None:
            newest = intact
            for step in self.steps():
                if self._damage(step, whole=step >= newest):
                    self._rename_damaged(step)
        newest = int(multihost_utils.broadcast_one_to_all(np.int32(newest)))
        return None if newest == NO_STEP else newest

    def save(
        self,
        state: Any,
        metrics: Mapping[str, float] | None = None,
        progress: dict[str, Any] | None = None,
        again: bool = False,
    ) -> None:
        """Writes a training state in the background; returns once its arrays are copied from the device.

        Args:
          state: has a `step`, and `items()`, {name: tree} of what is saved.
          metrics: {name: float} measured at its step; without the best metric, or where that is nan, the step
            cannot become the best.
          progress: what else the run needs to resume exactly, for JSON; see `restore_progress`.
          again: an earlier process saved this step; that checkpoint stays until this one is there.

        Raises:
          UserError: the disk is full, the folder that they are in is gone or another, or what was saved the
            last time could not be read back.
        """
        if metrics is not None and math.isnan(metrics.get(self._best_metric or "", math.nan)):
            metrics = None
        self.wait()  # so that the manifest of the last step is written before it is about the next
        if self._guard is not None:
            self._guard.check()
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory)  # never the folders that it is in
        trees = state.items()
        require_space(self.directory, sum(x.nbytes for x in jax.tree.leaves(trees)))
        items = {name: ocp.args.StandardSave(item) for name, item in trees.items()}
        items[PROGRESS] = ocp.args.JsonSave((progress or {}) | {ASSETS: self._assets, STEP: int(state.step)})
        self._readback.expect(trees)
        self._saving = int(state.step)
        if again:
            self._rename_replaced(self._saving)
        self._manager.save(self._saving, args=ocp.args.Composite(**items), metrics=metrics)

    def restore(self, like: Any, step: int | None = None) -> Any:
        """The training state of `step` (the newest intact one when None), shaped and placed like `like`.

        Raises:
          UserError: no such checkpoint, a damaged one, one of another shape or with other assets, or one with
            parameters that are not finite; `CheckpointDeleted` where it is deleted meanwhile.
        """
        return like.from_items(self._restore(like.items(), self._existing(step)))

    def restore_progress(self, step: int) -> dict[str, Any]:
        """What `save` was given as progress; {} for a checkpoint from before there was any."""
        saved = self._read_progress(step)
        return {name: value for name, value in saved.items() if name not in (ASSETS, STEP)}

    def restore_weights(self, like: Any, step: int | None = None) -> Any:
        """The parameters of `step` to evaluate, its average where it has one, shaped like `like`.

        Raises:
          UserError: as `restore`.
        """
        step = self._existing(step)
        name = "average" if os.path.isdir(self._folder(step, "average")) else "params"
        return self._restore({name: like}, step)[name]

    def check(self) -> None:
        """Raises what the save in the background has failed with, if it has ended; see `wait`."""
        busy = any(thread.name == FINALIZE_THREAD for thread in threading.enumerate())
        if not busy and jax.process_count() == 1:  # several hosts have to wait together
            self.wait()

    def wait(self) -> None:
        """Returns when what was saved is on disk.

        Raises:
          UserError: it could not be written or read back, or the folder that they are in is gone or another.
        """
        if "_manager" not in vars(self):
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            if self._guard is not None:
                self._guard.check(unfinished=self._unfinished())
            if jax.process_index() == 0:
                shutil.rmtree(self._unfinished(), ignore_errors=True)
            if not isinstance(error, ValueError) or io_error_message(error) is not None:
                raise
            raise UserError(  # Orbax and TensorStore raise it for files that are not what they wrote
                f"The checkpoint of step {self._saving} in {self.directory} could not be written: "
                f"{str(error).splitlines()[0]} Check the disk, and whether something deletes files there."
            ) from error
        if jax.process_index() == 0:
            self._remove_deleted()
            if self._replaced is not None:
                shutil.rmtree(self._replaced, ignore_errors=True)
        self._replaced = None

    def close(self) -> None:
        """Waits for what was saved."""
        self.wait()
        if "_manager" in vars(self):
            self._manager.close()

    @functools.cached_property
    def _manager(self):
        """Orbax's manager, which writes and deletes; made when it is needed, as it makes the directory."""
        options = ocp.CheckpointManagerOptions(
            best_fn=None if self._best_metric is None else self._metric,
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(self._policies),
            cleanup_tmp_directories=True,
            todelete_subdir=DELETED,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
        )
        handlers = {name: ocp.StandardCheckpointHandler() for name in ITEMS}
        handlers[PROGRESS] = ocp.JsonCheckpointHandler()
        return ocp.CheckpointManager(self._orbax_path, options=options, item_handlers=handlers)

    def _write_manifest(self):
        """Orbax calls this in the background, when a step's files are complete and not yet renamed."""
        try:
            self._readback.check(self._unfinished())
        except readback.Unreadable as reason:
            raise UserError(
                f"The checkpoint of step {self._saving} in {self.directory} is not read back as it was saved "
                f"({reason}), and was not kept: check the disk, or give another --workdir."
            ) from reason
        manifest.write(self._unfinished())

    def _unfinished(self):
        """The folder of the step that is being saved, before it gets its name."""
        return f"{self._folder(self._saving)}{ocp.utils.TMP_DIR_SUFFIX}"

    def _metric(self, metrics):
        return self._sign * metrics[self._best_metric]

    def _measured(self, step):
        """The best metric of a step, None where it has none, has nan, or cannot be trusted."""
        path = self._folder(step, "metrics")
        if not os.path.isdir(path) or self._damage(step, whole=False):
            return None
        with self._explain_deletion(step):
            metrics = _read_json(path, "metrics")
        value = metrics.get(self._best_metric, math.nan)
        return None if math.isnan(value) else self._metric(metrics)

    def _first_intact(self, steps):
        return next((step for step in steps if not self._damage(step)), None)

    def _damage(self, step, whole=True):
        """The damage of a step, "" for none; found, and warned of, once."""
        damage, was_whole = self._checked.get(step, (None, False))
        if damage is None or (not damage and whole and not was_whole):
            damage = self._verify(step, whole)
            self._checked[step] = damage, whole
        return damage

    def _verify(self, step, whole):
        try:
            with self._explain_deletion(step):
                verified = manifest.check(self._folder(step), whole=whole)
                saved = self._read_progress(step).get(STEP, step)
            if saved != step:
                raise manifest.Damaged(f"it is that of step {saved:,}, renamed")
            if not verified and whole:
                log.warning("Checkpoint of step %s has no checksums and cannot be verified", f"{step:,}")
        except manifest.Damaged as damage:
            log.warning("Skipping the checkpoint of step %s, which is damaged: %s", f"{step:,}", damage)
            return str(damage)
        return ""

    @contextlib.contextmanager
    def _explain_deletion(self, step):
        """Raises `CheckpointDeleted` for an error inside, if the step no longer exists."""
        try:
            yield
        except Exception as error:
            if os.path.isdir(self._folder(step)):
                raise
            raise CheckpointDeleted(
                f"The checkpoint of step {step} in {self.directory} was deleted while it was read, as "
                "training does with older ones: start again."
            ) from error

    def _check_writable(self):
        """Before work is put into what could not be saved."""
        if os.path.isdir(self.directory):
            with writing(self.directory), tempfile.TemporaryFile(dir=self.directory):
                pass

    def _remove_deleted(self):
        """Deletes the steps that Orbax has renamed."""
        shutil.rmtree(os.path.join(self.directory, DELETED), ignore_errors=True)

    def _rename_damaged(self, step):
        names = (f"{self._folder(step)}.damaged{number or ''}" for number in itertools.count())
        aside = next(name for name in names if not os.path.lexists(name))
        log.warning("Checkpoint of step %s: moved to %s", f"{step:,}", aside)
        os.rename(self._folder(step), aside)
        del self._checked[step]

    def _rename_replaced(self, step):
        """Renames the checkpoint of a step that is saved again, before there is a manager."""
        replaced = self._replaced = f"{self._folder(step)}{REPLACED}"
        self._checked.pop(step, None)
        if jax.process_index() == 0:
            os.rename(self._folder(step), replaced)
        multihost_utils.sync_global_devices("replaced checkpoint")

    def _restore_replaced(self):
        """Undoes the renaming of a checkpoint whose replacement a kill interrupted."""
        names = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        for name in names:
            step, ending = os.path.splitext(name)
            if ending != REPLACED:
                continue
            if os.path.isdir(os.path.join(self.directory, step)):
                shutil.rmtree(os.path.join(self.directory, name), ignore_errors=True)
            else:
                os.rename(os.path.join(self.directory, name), os.path.join(self.directory, step))

    def _folder(self, step, *item):
        return os.path.join(self.directory, str(step), *item)

    def _existing(self, step):
        steps = self.steps()
        if not steps:
            raise UserError(f"Expected a checkpoint in {self.directory}, but there is none: train first.")
        if step is None:
            return self.latest()
        if step not in steps:
            raise CheckpointDeleted(
                f"There is no checkpoint of step {step} in {self.directory}; there are {steps}."
            )
        if damage := self._damage(step):
            raise UserError(
                f"The checkpoint of step {step} in {self.directory} is damaged ({damage}): "
                "choose another, or restore its files from a copy."
            )
        return step

    def _read_progress(self, step):
        path = self._folder(step, PROGRESS)
        return _read_json(path, "metadata") if os.path.isdir(path) else {}

    def _check_assets(self, step, what):
        """Raises a UserError for weights that were trained with another tokenizer than this run's."""
        for name, saved in self._read_progress(step).get(ASSETS, {}).items():
            if self._assets.get(name, saved) != saved:
                raise UserError(
                    f"{what} was trained with another {name} (SHA-256 {saved[:12]}...) than the one at hand "
                    f"({self._assets[name][:12]}...): put the {name} of this run back."
                )

    def _restore(self, expected, step):
        what = f"The checkpoint of step {step} in {self.directory}"
        with self._explain_deletion(step):
            return self._restore_items(expected, step, what)

    def _restore_items(self, expected, step, what):
        self._check_assets(step, what)
        for name in expected:
            if not os.path.isdir(self._folder(step, name)):
                raise UserError(
                    f"{what} has no {name}: leave training.ema_decay as the run was started with."
                )
        items = {name: restore_tree(self._folder(step, name), tree, what) for name, tree in expected.items()}
        for name in WEIGHTS:
            check_finite(items.get(name, {}), what)
        return items


def average_trees(trees: Iterable[Any]) -> Any:
    """Element-wise mean of parameter trees (section 6.1 averages the last checkpoints); sums in float64.

    Args:
      trees: iterable of equal trees; one is held at a time.
    """
    total, count = None, 0
    for tree in trees:
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
        count += 1
    return jax.tree.map(lambda x: (x / count).astype(np.float32), total)


def _read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)
