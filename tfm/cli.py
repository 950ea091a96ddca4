"""What the commands share: flags, config overrides, logging, exit codes.

A mistake of the user ends a command with one sentence on stderr and exit code 2; anything else is a bug and
shows its traceback.
"""

import logging
import os
import sys

from absl import app, flags
from ml_collections import config_flags

from tfm import config as configs
from tfm import tasks
from tfm.errors import UserError

CONFIG_FILE = "config.json"
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
    """--workdir, and --config.field=value to override the config that its run was trained with."""
    flags.DEFINE_string("workdir", None, "Folder of a run.", required=True)
    workdir = _value_of(sys.argv, "workdir")
    if workdir is None:
        return  # the parser will say so
    try:
        config_flags.DEFINE_config_dict("config", configs.to_config_dict(read_saved(workdir)), "Overrides.")
    except UserError as error:
        fail(error)


def read_config():
    """--config as the frozen dataclass of its task."""
    return _of_task(flags.FLAGS.config)


def read_saved(workdir):
    """The config of the run in `workdir`, as the frozen dataclass of its task."""
    return _of_task(configs.load(config_path(workdir)))


def config_path(workdir):
    return os.path.join(workdir, CONFIG_FILE)


def _of_task(mapping):
    if "task" not in mapping:
        raise UserError(f"A config must have the field 'task'; this one has {', '.join(mapping)}.")
    return configs.from_mapping(tasks.find(mapping["task"]).Config, mapping)


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
        return fail(_unknown_override(argv) or str(error).replace("\n", " "))


def _unknown_override(argv):
    """The sentence for the first --config.field in `argv` that the config has not; None when all are there."""
    flag = flags.FLAGS["config"] if "config" in flags.FLAGS else None
    for argument in argv:
        name = argument.lstrip("-").partition("=")[0]
        if flag is None or not name.startswith("config."):
            continue
        section, path = flag.value, "config"
        for part in name.split(".")[1:]:
            if not hasattr(section, "keys"):
                return f"{path} is a value, not a section, so {name} does not exist."
            if part not in section:
                return configs.unknown_field(f"{path}.{part}", part, list(section.keys()))
            section, path = section[part], f"{path}.{part}"
    return None
