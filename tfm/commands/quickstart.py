"""Trains on the built-in English-German language, evaluates and draws: tfm quickstart

Takes about four minutes on two CPU cores and downloads nothing. --workdir names the folder of the run. The
default is runs/quickstart. If the command is interrupted, the same command resumes it. It does the same as
these commands:

  tfm train --config=quickstart --workdir=runs/quickstart
  tfm evaluate --workdir=runs/quickstart
  tfm visualize --workdir=runs/quickstart
"""

import logging
import os
import shlex

from tfm.commands import evaluate, train, visualize
from tfm.commands.command import command
from tfm.commands.options import Quickstart

log = logging.getLogger("tfm.quickstart")


@command
def main(options: Quickstart) -> None:
    """Trains, evaluates and draws."""
    workdir = f"--workdir={options.workdir}"
    train.main(["--config=quickstart", workdir])
    evaluate.main([workdir])
    visualize.main([workdir])
    page = os.path.join(options.workdir, visualize.FIGURES_FOLDER, visualize.PAGE)
    log.info("Next: tfm translate --workdir=%s, or open %s", shlex.quote(options.workdir), page)
