"""Flags, config overrides, logging and exit codes that the commands share.

Each command is a module with a `main(argv)`, which may be called from Python any number of times: it raises
what goes wrong. The console command runs it by `run`: there, a mistake of the user, or an I/O error, is one
error message on stderr and exit code 2; anything else is a bug and shows its traceback.
"""

import contextlib
import dataclasses
import functools
import gc
import glob
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
from absl import flags

from tfm import config
from tfm.commands import config_flag, help_text, terminal
from tfm.data.config import PIPE, SPLITS
from tfm.data.sources.standard_input import store_pipe
from tfm.errors import UserError
from tfm.io.files import io_error_message, user_cache
from tfm.workdir import runs

USER_ERROR = 2
BROKEN_PIPE = 141  # exit code of a process that SIGPIPE ends
COMPILED_FOLDER = "compiled"
EXPECTED_WARNING = "did not provide metrics"  # of Orbax, at each checkpoint without an evaluation
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how its packed data begin
log = logging.getLogger(__name__)


def run(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
    """Runs the `main` of a command as the console does: streams, logging, messages and exit codes."""
    terminal.prepare_streams()
    start_logging()
    sys.unraisablehook = functools.partial(_show_unraisable, sys.unraisablehook)
    with exit_on_error():
        terminal.raise_on_interrupt()
        main(argv)
        sys.stdout.flush()  # at exit, a failure would no longer find its error message


def parse(
    module: str,
    argv: Sequence[str] | None,
    define_flags: Callable[[flags.FlagValues, Sequence[str]], None],
    positional: Sequence[str] = (),
) -> tuple[flags.FlagValues, list[str]]:
    """The flags of a command, and its positional arguments.

    Args:
      module: name of the command's module.
      argv: the arguments; those of the process when None.
      define_flags: defines the flags of the command in a `FlagValues`, for these arguments.
      positional: names of the positional arguments; another number of them is a mistake of the user. A last
        one such as "[DIR ...]" stands for any number.

    Raises:
      UserError: an unknown flag, or a value that does not fit.
      SystemExit: help was asked for and printed.
    """
    values = flags.FlagValues()
    argv = config_flag.replace_variant(sys.argv[1:] if argv is None else argv)
    define_flags(values, argv)
    if help_text.is_asked(argv):
        print(help_text.text(module, argv, values, positional), flush=True)
        sys.exit(0)
    return values, _check_positional(
        positional, config_flag.parse(config_flag.remove_config_file(argv), values)
    )


def start_logging() -> None:
    """Sends what tfm tells, and the warnings of all libraries, to stderr."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=[_StandardError()],
        force=True,
    )
    logging.getLogger("tfm").setLevel(logging.INFO)
    # Orbax tells of every file it writes, and of errors with a traceback before it raises them.
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_warning)
    # Of a checkpoint's files, Orbax raises the first that fails; asyncio would print all others.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


class _StandardError(logging.StreamHandler):
    """Writes to the standard error of the moment, which a progress bar replaces to stay below the log."""

    @property
    def stream(self):
        return sys.stderr

    @stream.setter
    def stream(self, _):
        pass


def _is_warning(record):
    return record.levelno == logging.WARNING and EXPECTED_WARNING not in record.getMessage()


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends the process with an error message for what a user can fix; silently where its output is closed."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        terminal.flush_output()
        terminal.end(str(interrupt))
    except BrokenPipeError:
        terminal.flush_output()
        sys.exit(BROKEN_PIPE)
    except UserError as error:
        fail(error)
    except MemoryError:
        fail("The memory is full: raise the limit (ulimit -v), or close other programs.")
    except (OSError, ValueError, RuntimeError) as error:
        if io_error_message(error) is None:
            raise
        fail(io_error_message(error))


def _show_unraisable(plain, unraisable):
    """A hook of `sys`: of files that fail together, TensorStore tells an event loop that Orbax has closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        plain(unraisable)


def fail(error: object) -> NoReturn:
    """Ends the process with the error message."""
    gc.collect()  # what Orbax left half done would complain behind the error message
    terminal.flush_output()
    print(f"error: {error}", file=sys.stderr)
    sys.exit(USER_ERROR)


def define_new_run(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """--config=FILE with its --config.field=value, and --workdir."""
    config_flag.define_import(values, argv)
    path = config_flag.value_of("config", argv)
    if path is None:
        flags.DEFINE_string("config", None, help_text.CONFIG_HELP, values, required=True)
    else:
        config_flag.define(config_flag.read_file(path), values, argv)
    text = "Folder of the run; made when absent, continued when not."
    flags.DEFINE_string("workdir", None, text, values, required=True)


def define_finished_run(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """--workdir, --checkpoint, --average, --ensemble, and --config.field=value over the run's own config."""
    flags.DEFINE_string("workdir", None, "Folder of a run.", values, required=True)
    several = "of the last checkpoints, up to --checkpoint where that is a step."
    flags.DEFINE_string("checkpoint", None, "best (by validation, the default), last, or a step.", values)
    flags.DEFINE_integer("average", 1, f"Average so many {several}", 1, flag_values=values)
    flags.DEFINE_integer("ensemble", 1, f"Decode at once with so many {several}", 1, flag_values=values)
    config_flag.define_import(values, argv)
    config_flag.check_absent(argv)
    workdir = config_flag.value_of("workdir", argv)
    if workdir is not None:  # else the parser will say so
        config_flag.define(config.to_config_dict(runs.read_config(workdir)), values, argv)


def read_config(arguments: flags.FlagValues) -> Any:
    """--config as the frozen dataclass of its task."""
    return runs.parse_config(arguments.config)


def read_pipe(chosen: Any) -> Any:
    """The config with a split "-" as the file that keeps standard input; see `store_pipe`.

    Raises:
      UserError: there are other processes, which have no such input, or it cannot be used.
    """
    data = getattr(chosen, "data", None)
    if PIPE not in [getattr(data, split, None) for split in SPLITS]:
        return chosen
    if jax.process_count() > 1:
        raise UserError("A run on several hosts reads no standard input: store it in a file.")
    return dataclasses.replace(chosen, data=store_pipe(data, sys.stdin.buffer))


def check_device() -> None:
    """Finds the devices to compute on, before any work.

    Raises:
      UserError: JAX finds none.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform that is asked for is there
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise UserError(
            f"JAX finds no device to compute on{reason}: check JAX_PLATFORMS, which is "
            f"{_jax_option('jax_platforms')!r}, and that JAX is installed for it."
        ) from None


def _jax_option(name):
    """JAX makes the attributes of its options when it is imported, so that a type checker sees none."""
    return getattr(jax.config, name)


def enable_compilation_cache(folder: str) -> None:
    """Keeps compiled programs below `folder`, so that the same program starts sooner next time.

    They are executed: training keeps them in its own work directory, but what only reads a run, which may
    come from someone else, in the user's cache. Where JAX_COMPILATION_CACHE_DIR names a folder, that one is
    used; where none can be written, none.
    """
    folder = os.path.join(folder, COMPILED_FOLDER)
    if _jax_option("jax_compilation_cache_dir"):
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", folder)


def remove_damaged_programs(folder: str) -> None:
    """Removes the compiled programs in the cache of `folder` that a kill or a full disk cut short.

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


def prepare_device() -> None:
    """`check_device`, and `enable_compilation_cache` in the user's cache."""
    check_device()
    with contextlib.suppress(UserError):  # without a home folder
        enable_compilation_cache(user_cache())


def load_run(arguments: flags.FlagValues) -> runs.Run:
    """The run that the flags of `define_finished_run` name."""
    prepare_device()
    return runs.load(
        arguments.workdir,
        checkpoint=arguments.checkpoint,
        average_last=arguments.average,
        ensemble_last=arguments.ensemble,
        chosen=read_config(arguments),
    )


def _check_positional(names, arguments):
    any_number = bool(names) and names[-1].endswith(" ...]")
    least = len(names) - any_number
    if len(arguments) < least or (len(arguments) > least and not any_number):
        expected, got = (" ".join(some) or "nothing" for some in (names, arguments))
        raise UserError(f"Expected {expected} beside the flags, got {got}.")
    return arguments
