"""What the commands share: flags, config overrides, logging, exit codes.

A mistake of the user ends a command with one sentence on stderr and exit code 2; anything else is a bug and
shows its traceback.
"""

import logging
import os
import runpy
import sys

from absl import app, flags
from ml_collections import config_flags

from tfm import config, runs
from tfm.errors import UserError

USER_ERROR = 2


def run(main):
    """Parses the flags and runs `main()`, with a UserError as exit code 2."""

    def guarded(_):
        logging.basicConfig(
            level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True
        )
        logging.getLogger("tfm").setLevel(logging.INFO)
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells every file it writes
        try:
            main()
        except UserError as error:
            fail(error)

    app.run(guarded, flags_parser=_parse)


def fail(error):
    """Ends the process with the sentence of `error`."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(USER_ERROR)


def define_new_run():
    """--config=FILE.py with its --config.field=value, and --workdir."""
    config_flags.DEFINE_config_file("config", None, "Config file, a Python file with get_config().")
    flags.DEFINE_string("workdir", None, "Folder of the run; made when absent, continued when not.")
    flags.mark_flags_as_required(["config", "workdir"])


def define_finished_run():
    """--workdir, --checkpoint, --average, and --config.field=value over the run's own config."""
    flags.DEFINE_string("workdir", None, "Folder of a run.", required=True)
    flags.DEFINE_string("checkpoint", "best", "best (by validation), last, or a step.")
    flags.DEFINE_integer("average", 1, "Average so many of the last checkpoints instead.", lower_bound=1)
    workdir = _value_of(sys.argv, "workdir")
    if workdir is None:
        return  # the parser will say so
    try:
        config_flags.DEFINE_config_dict(
            "config", config.to_config_dict(runs.read_config(workdir)), "Overrides."
        )
    except UserError as error:
        fail(error)


def read_config():
    """--config as the frozen dataclass of its task."""
    return runs.parse_config(flags.FLAGS.config)


def load_run():
    """The run that the flags of `define_finished_run` name."""
    arguments = flags.FLAGS
    return runs.load(
        arguments.workdir,
        checkpoint=arguments.checkpoint,
        average_last=arguments.average,
        chosen=read_config(),
    )


def _value_of(argv, name):
    """The value of --name in `argv`, before the flags are parsed; None when it is not there."""
    for index, argument in enumerate(argv):
        flag, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if equals else (argv[index + 1] if index + 1 < len(argv) else None)
    return None


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        path = _value_of(argv, "config")
        if path is not None and not os.path.isfile(path):
            return fail(f"Expected a config file at {path}, but there is none: check --config.")
        return fail(_unknown_override(argv) or str(error).replace("\n", " "))


def _unknown_override(argv):
    """The sentence for the first --config.field in `argv` that is not in the config; None when all are."""
    names = [argument.lstrip("-").partition("=")[0] for argument in argv]
    overrides = [name.split(".") for name in names if name.startswith("config.")]
    if not overrides:
        return None
    for path in overrides:
        section = _config_without_overrides(argv)
        for depth, name in enumerate(path[1:], 2):
            if not hasattr(section, "keys") or name not in section:
                known = section.keys() if hasattr(section, "keys") else ()
                return config.unknown_field(".".join(path[:depth]), name, known)
            section = section[name]
    return None


def _config_without_overrides(argv):
    """The config that the overrides were meant for."""
    path = _value_of(argv, "config")
    if path is None:
        return config.to_config_dict(runs.read_config(_value_of(argv, "workdir")))
    return runpy.run_path(path)["get_config"]()
