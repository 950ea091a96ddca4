"""Trains a model from a config: python train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field of the config can be set on the command line: --config.training.steps=1000. Started again on the
same work directory, a run goes on from its newest checkpoint.
"""

import logging
import os

from absl import flags

from tfm import cli, config, runs, tasks
from tfm.errors import UserError
from tfm.training.loop import train

log = logging.getLogger("tfm.train")


def main():
    chosen, workdir = cli.read_config(), flags.FLAGS.workdir
    os.makedirs(workdir, exist_ok=True)
    keep_config(chosen, workdir)
    cli.keep_compiled(workdir)
    task = tasks.find(chosen.task).create(chosen, workdir)
    train(task, chosen.training, workdir)


def keep_config(chosen, workdir):
    """Writes the config into the work directory.

    Raises:
      UserError: the run that is there has other data or another model.
    """
    path = runs.config_path(workdir)
    if os.path.exists(path):
        saved = runs.read_config(workdir)
        for section in ("task", "model", "data"):
            changed = config.difference(
                getattr(saved, section), getattr(chosen, section), ignore=("cache_dir",)
            )
            if changed:
                raise UserError(
                    f"The run in {workdir} was started with another config.{section}: {changed}; "
                    "give a new --workdir, or the config it was started with."
                )
    config.save(chosen, path)


if __name__ == "__main__":
    cli.define_new_run()
    cli.run(main)
