"""How a run begins: with its config, and with drawn parameters, another run's, or its own anew."""

import contextlib
import logging
import os
import shutil

import jax

from tfm import config, runs
from tfm.data.vocabulary import Vocabulary
from tfm.errors import UserError
from tfm.files import whole_file
from tfm.tasks.translation import VOCABULARY_FILE
from tfm.training.assembly import CHECKPOINT_FOLDER, open_checkpoints
from tfm.training.checkpoints import Checkpoints
from tfm.training.reporting import METRICS_FILE

BEFORE_RESET = "before_reset"
ADAPTABLE = (  # what may differ, as it does not change what a weight means
    *("vocabulary_size", "dropout", "attention_dropout", "feed_forward_dropout"),
    *("attention", "remat", "scan", "dtype"),
)
FREE = {  # what a run that has begun may change: no parameter and no batch becomes another by it
    "task": (),
    "model": ("attention", "remat", "scan"),
    "data": ("cache_dir",),
}
BATCHES = ("max_length", "batching", "batch_tokens", "row_length")
log = logging.getLogger(__name__)


def keep_config(chosen, workdir):
    """Writes the config into the work directory. Until the first checkpoint it may still be mended.

    Raises:
      UserError: the run there has begun with other data or another model, or has a vocabulary of other data.
    """
    path = runs.config_path(workdir)
    if os.path.exists(path):
        _check_same(runs.read_config(workdir), chosen, workdir)
    config.save(chosen, path)


def _check_same(saved, chosen, workdir):
    if _has_checkpoint(workdir) or _has_checkpoint(os.path.join(workdir, BEFORE_RESET)):
        for section, free in FREE.items():
            changed = config.difference(getattr(saved, section), getattr(chosen, section), ignore=free)
            if changed:
                raise UserError(
                    f"The run in {workdir} was started with another config.{section}: {changed}; "
                    "give a new --workdir, or the config it was started with."
                )
    vocabulary = os.path.join(workdir, VOCABULARY_FILE)
    changed = config.difference(saved.data, chosen.data, ignore=(*FREE["data"], *BATCHES))
    if changed and os.path.exists(vocabulary):
        raise UserError(
            f"{vocabulary} was made for another config.data: {changed}; delete it, or give a new --workdir."
        )


def adopt(source, chosen, workdir):
    """Makes ready a run that begins with the weights of `source`: the vocabulary comes with them.

    Args:
      source: a run or an export.
      chosen: config of the new run.
      workdir: its folder; one that has a checkpoint has begun already, and is left as it is.

    Raises:
      UserError: `source` is no run, is this run, or has another model or vocabulary.
    """
    if os.path.realpath(source) == os.path.realpath(workdir):
        raise UserError("--warm_start names the run itself: give another run, or --reset_schedule.")
    if _has_checkpoint(workdir):
        log.info("%s has begun before: --warm_start does nothing", workdir)
        return
    saved = runs.read_config(source)
    changed = config.difference(saved.model, chosen.model, ignore=ADAPTABLE)
    if type(saved) is not type(chosen) or changed:
        raise UserError(
            f"The run in {source} has another model: {changed or saved.task}; use its config.model."
        )
    vocabulary, own = (os.path.join(folder, VOCABULARY_FILE) for folder in (source, workdir))
    fingerprint = Vocabulary.load(vocabulary).fingerprint
    if not os.path.exists(own):
        os.makedirs(workdir, exist_ok=True)
        with open(vocabulary, "rb") as theirs, whole_file(own) as file:
            shutil.copyfileobj(theirs, file)
    elif Vocabulary.load(own).fingerprint != fingerprint:
        raise UserError(f"{own} is another vocabulary than that of {source}: give a new --workdir.")


def reset(task, workdir):
    """Sets the checkpoints and metrics of a run aside, so that it begins anew with its newest weights.

    They go to the folder `before_reset`. Where that is there already, the reset was made and the run goes on.

    Raises:
      UserError: there is no intact checkpoint.
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        log.info("The schedule was reset before, see %s: --reset_schedule does nothing", aside)
        return
    if not _has_checkpoint(workdir):
        raise UserError(f"--reset_schedule needs a run that has begun, but {workdir} has no checkpoint.")
    with contextlib.closing(open_checkpoints(task, task.config.training, workdir)) as checkpoints:
        log.info("Beginning anew with the weights of step %s", f"{checkpoints.latest():,}")
    os.makedirs(aside, exist_ok=True)
    for name in (METRICS_FILE, "tensorboard", CHECKPOINT_FOLDER):  # the last one makes it a reset
        if os.path.exists(os.path.join(workdir, name)):
            os.replace(os.path.join(workdir, name), os.path.join(aside, name))


def first_weights(task, workdir, source):
    """What `training.loop.train` takes: how to get the parameters that a run begins with, or None.

    Args:
      task: of the run.
      workdir: its folder. After a `reset`, its own weights come before any other.
      source: run or export to begin with, "" for none.
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        return lambda: _newest_weights(task, aside)
    if source:
        return lambda: runs.one_model(runs.load(source))
    return None


def _newest_weights(task, folder):
    like = jax.eval_shape(task.init, jax.random.key(0))
    with contextlib.closing(open_checkpoints(task, task.config.training, folder)) as checkpoints:
        return checkpoints.restore_weights(like)


def _has_checkpoint(workdir):
    return bool(Checkpoints(os.path.join(workdir, CHECKPOINT_FOLDER)).steps())
