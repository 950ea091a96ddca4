"""Trains on the built-in English-German language, evaluates and draws: tfm quickstart

Takes about five minutes on two CPU cores and downloads nothing. --workdir names the folder of the run. The
default is runs/quickstart. If the command is interrupted, the same command resumes it. It does the same as
these commands:

  tfm train --config=quickstart --workdir=runs/quickstart
  tfm evaluate --workdir=runs/quickstart
  tfm visualize --workdir=runs/quickstart
"""

import logging
from collections.abc import Sequence

from absl import flags

from tfm.commands import cli, evaluate, train, visualize

WORKDIR = "runs/quickstart"
log = logging.getLogger("tfm.quickstart")


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Defines the flags of the command in `values`."""
    flags.DEFINE_string(
        "workdir",
        WORKDIR,
        "Folder of the run, created if missing and resumed otherwise.",
        values,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, evaluates and draws. See `tfm.commands.cli.parse` for `argv` and for the errors."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    workdir = f"--workdir={arguments.workdir}"
    train.main(["--config=quickstart", workdir])
    evaluate.main([workdir])
    visualize.main([workdir])
    log.info("Next: tfm translate %s, or open %s/figures/attention.html", workdir, arguments.workdir)
