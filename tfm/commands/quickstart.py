"""Trains on the built-in English-German language, evaluates and draws: tfm quickstart

About six minutes on two CPU cores; no download. --workdir names the folder of the run, runs/quickstart if not
given. Started again, it resumes where it was stopped. The same as, one after the other:

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
    """The flags of the command, in `values`."""
    flags.DEFINE_string(
        "workdir", WORKDIR, "Folder of the run; made when absent, continued when not.", values
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, evaluates and draws; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    workdir = f"--workdir={arguments.workdir}"
    train.main(["--config=quickstart", workdir])
    evaluate.main([workdir])
    visualize.main([workdir])
    log.info("Next: tfm translate %s, or open %s/figures/attention.html", workdir, arguments.workdir)
