"""What the commands share: flags, config overrides, logging, exit codes.

A mistake of the user, or a file that the machine refuses, ends a command with one sentence on stderr and exit
code 2; anything else is a bug and shows its traceback.
"""

import contextlib
import gc
import glob
import itertools
import logging
import os
import runpy
import sys
import zlib

import jax
from absl import app, flags
from ml_collections import config_dict, config_flags

from tfm import command_help, config, runs
from tfm.errors import UserError
from tfm.files import refusal, user_cache

USER_ERROR = 2
BROKEN_PIPE = 141  # as of a process that SIGPIPE ended
COMPILED_FOLDER = "compiled"
EXPECTED_WARNING = "did not provide metrics"  # of Orbax, at each checkpoint without an evaluation
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how its packed data begin
log = logging.getLogger(__name__)


def run(main, positional=()):
    """Parses the flags and runs `main`, with a UserError as exit code 2.

    Args:
      main: called with the arguments that are no flags.
      positional: their names; another number of arguments is a mistake of the user.
    """
    if command_help.is_asked(sys.argv):
        with answering():
            print(command_help.text(sys.argv, positional), flush=True)
            sys.exit(0)

    def guarded(argv):
        start_logging()
        with answering():
            main(*_exactly(positional, argv[1:]))
            sys.stdout.flush()  # at exit, a failure would no longer find its sentence

    app.run(guarded, flags_parser=_parse)


def start_logging():
    """Sends what tfm tells, and the warnings of all libraries, to stderr."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True
    )
    logging.getLogger("tfm").setLevel(logging.INFO)
    # Orbax tells of every file it writes, and of errors with a traceback before it raises them.
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_warning)
    # Of a checkpoint's files, Orbax raises the first that fails; asyncio would print all others.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _is_warning(record):
    return record.levelno == logging.WARNING and EXPECTED_WARNING not in record.getMessage()


@contextlib.contextmanager
def answering():
    """Ends the process with a sentence for what a user can mend, silently where nobody reads its output."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(BROKEN_PIPE)
    except UserError as error:
        fail(error)
    except (OSError, ValueError, RuntimeError) as error:
        if refusal(error) is None:
            raise
        fail(refusal(error))


def fail(error):
    """Ends the process with the sentence of `error`."""
    gc.collect()  # what Orbax left half done would complain behind the sentence
    _drop_output()
    print(f"error: {error}", file=sys.stderr)
    sys.exit(USER_ERROR)


def define_new_run():
    """--config=FILE.py with its --config.field=value, and --workdir."""
    path = _value_of("config")
    if path is not None:
        with answering():
            _check_overrides(_read_config_file(path))
    with answering(), _flag_mistakes():
        config_flags.DEFINE_config_file("config", None, "Config file, a Python file with get_config().")
    flags.DEFINE_string("workdir", None, "Folder of the run; made when absent, continued when not.")
    flags.mark_flags_as_required(["config", "workdir"])


def define_finished_run():
    """--workdir, --checkpoint, --average, --ensemble, and --config.field=value over the run's own config."""
    flags.DEFINE_string("workdir", None, "Folder of a run.", required=True)
    several = "of the last checkpoints, up to --checkpoint where that is a step."
    flags.DEFINE_string("checkpoint", None, "best (by validation, the default), last, or a step.")
    flags.DEFINE_integer("average", 1, f"Average so many {several}", lower_bound=1)
    flags.DEFINE_integer("ensemble", 1, f"Decode at once with so many {several}", lower_bound=1)
    workdir = _value_of("workdir")
    if workdir is None:
        return  # the parser will say so
    with answering():
        define_config(config.to_config_dict(runs.read_config(workdir)))


def define_config(saved, values=flags.FLAGS):
    """--config.field=value over a ConfigDict.

    Raises:
      UserError: a field that is not there, or a value of another type.
    """
    _check_overrides(saved)
    with _flag_mistakes():
        config_flags.DEFINE_config_dict("config", saved, "Overrides of the run's config.", values)


def read_config():
    """--config as the frozen dataclass of its task."""
    return runs.parse_config(flags.FLAGS.config)


def keep_compiled(folder):
    """Keeps compiled programs below `folder`, so that the same program starts sooner next time.

    They are executed: training keeps them in its own work directory, but what only reads a run, which may
    come from someone else, in the user's cache. Where JAX_COMPILATION_CACHE_DIR names a folder, that one is
    used; where none can be written, none.
    """
    folder = os.path.join(folder, COMPILED_FOLDER)
    if jax.config.jax_compilation_cache_dir:
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", folder)


def drop_damaged_programs(folder):
    """Removes compiled programs that a kill or a full disk cut short, from where `keep_compiled` keeps them.

    JAX never writes over an entry: each start would warn of it and compile again. It packs with zlib, or with
    zstandard where that is installed; what that packed is left alone. No other process may use the folder.
    """
    for path in glob.glob(os.path.join(glob.escape(folder), COMPILED_FOLDER, "*-cache")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if not _is_whole(file.read()):
                log.info("Dropping a compiled program that was cut short: %s", path)
                os.unlink(path)


def _is_whole(packed):
    try:
        return packed.startswith(ZSTANDARD) or bool(zlib.decompress(packed))
    except zlib.error:
        return False


def load_run():
    """The run that the flags of `define_finished_run` name."""
    arguments = flags.FLAGS
    keep_compiled(user_cache())
    return runs.load(
        arguments.workdir,
        checkpoint=arguments.checkpoint,
        average_last=arguments.average,
        ensemble_last=arguments.ensemble,
        chosen=read_config(),
    )


def _exactly(names, arguments):
    if len(arguments) != len(names):
        expected, got = (" ".join(some) or "nothing" for some in (names, arguments))
        raise UserError(f"Expected {expected} beside the flags, got {got}.")
    return arguments


def _drop_output():
    """Flushes what was printed; what cannot be is dropped, as the flush at exit would meet the same again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _value_of(name):
    """The value of --name on the command line, before the flags are parsed; None when it is not there."""
    for argument, following in itertools.zip_longest(sys.argv, sys.argv[1:]):
        flag, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if equals else following
    return None


def _read_config_file(path):
    if not os.path.isfile(path):
        raise UserError(f"Expected a config file at {path}, but there is none: check --config.")
    made = runpy.run_path(path).get("get_config", lambda: None)()
    if not isinstance(made, config_dict.ConfigDict):
        raise UserError(f"Expected get_config() in {path} to return a ConfigDict, got {made!r}.")
    return made


def _check_overrides(section):
    """Raises a UserError for a --config.field that `section` has not; ml_collections has a traceback."""
    for argument in sys.argv:
        name = argument.lstrip("-").partition("=")[0].removeprefix("no")  # --noconfig.model.scan
        if name.startswith("config."):
            _check_path(section, name.split("."))


def _check_path(section, path):
    for depth, name in enumerate(path[1:], 2):
        known = list(section.keys()) if hasattr(section, "keys") else []
        if name not in known:
            raise UserError(config.unknown_field(".".join(path[:depth]), name, known))
        section = section[name]


def parse(argv, values=flags.FLAGS):
    """Parses the flags into `values` and returns what is none.

    Raises:
      UserError: an unknown flag, or a value that does not fit.
    """
    with _flag_mistakes():
        return values(argv)


@contextlib.contextmanager
def _flag_mistakes():
    try:
        yield
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(str(error).replace("\n", " ")) from None


def _parse(argv):
    with answering():
        return parse(argv)
