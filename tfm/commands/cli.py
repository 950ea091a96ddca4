"""Flags, config overrides, logging and exit codes that the commands share.

Each command is a module with a `main(argv)`. Python code may call it any number of times, and it raises its
errors. The console command calls it through `run`. There, a mistake of the user or an I/O error prints one
error message on stderr and exits with code 2. Any other exception is a bug and shows its traceback.
"""

import contextlib
import dataclasses
import functools
import gc
import glob
import logging
import os
import re
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
from tfm.errors import EXIT_CODE, UserError
from tfm.io.files import io_error_message, user_cache
from tfm.training.setup import COMPILED_FOLDER
from tfm.workdir import runs

BROKEN_PIPE = 141  # exit code of a process that SIGPIPE kills
HOST_LOST_EXIT = 1
# In the errors of XLA, of its libraries for exchanges and of Orbax after a process of another host has ended.
LOST_HOST = re.compile(r"gloo|nccl|unavailable|deadline|heartbeat|barrier|connection", re.IGNORECASE)
# Seconds without a sign of life after which JAX ends the processes of all other hosts.
HEARTBEAT_SECONDS = 40
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # the first bytes of data that zstandard compressed
log = logging.getLogger(__name__)


def run(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
    """Runs the `main` of a command for the console: prepares streams and log, and exits on errors."""
    terminal.prepare_streams()
    start_logging()
    sys.unraisablehook = functools.partial(_show_unraisable, sys.unraisablehook)
    with exit_on_error():
        terminal.raise_on_interrupt()
        main(argv)
        sys.stdout.flush()  # here, because a failure of the flush at exit would print no error message


def parse(
    module: str,
    argv: Sequence[str] | None,
    define_flags: Callable[[flags.FlagValues, Sequence[str]], None],
    positional: Sequence[str] = (),
) -> tuple[flags.FlagValues, list[str]]:
    """Parses the arguments of a command. Returns its flags and its positional arguments.

    Args:
      module: name of the command's module.
      argv: the arguments. None means the arguments of the process.
      define_flags: function that defines the flags of the command in a `FlagValues`, given the arguments.
      positional: names of the positional arguments. If the last name ends in " ...]", such as "[DIR ...]",
        it accepts any number of arguments, also none.

    Raises:
      UserError: if a flag is unknown, a value is invalid, or the number of positional arguments is wrong.
      SystemExit: if the arguments ask for help, after printing it.
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
    """Sends the log of tfm and the warnings of all libraries to stderr."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=[_StandardError()],
        force=True,
    )
    logging.getLogger("tfm").setLevel(logging.INFO)
    # Orbax logs every file that it writes, and logs errors with a traceback before it raises them.
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_warning)
    # If several files of a checkpoint fail, Orbax raises the first error, and asyncio would log the others.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


class _StandardError(logging.StreamHandler):
    """A log handler that looks up `sys.stderr` at each message.

    A progress bar replaces `sys.stderr` so that its line stays below the log.
    """

    @property
    def stream(self):
        return sys.stderr

    @stream.setter
    def stream(self, _):
        pass


def _is_warning(record: logging.LogRecord) -> bool:
    """Returns whether Orbax's log record is a warning that users should see."""
    return record.levelno == logging.WARNING


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Inside, errors that a user can fix end the process with an error message.

    If the reader of the output closed it, the process ends without a message.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        terminal.flush_output()
        terminal.end(str(interrupt))
    except BrokenPipeError:
        terminal.flush_output()
        sys.exit(BROKEN_PIPE)
    except UserError as error:
        _end_if_a_host_is_lost(error)
        fail(error)
    except MemoryError:
        fail("The process ran out of memory. Raise its limit (ulimit -v), or close other programs.")
    except (OSError, ValueError, RuntimeError) as error:
        _end_if_a_host_is_lost(error)
        if io_error_message(error) is None:
            raise
        fail(io_error_message(error))


def _show_unraisable(plain: Callable[[Any], object], unraisable: Any) -> None:
    """Passes an exception to the hook `plain`, except for one harmless error.

    When several files fail together, TensorStore calls an event loop that Orbax has closed already.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        plain(unraisable)


def fail(error: object) -> NoReturn:
    """Prints an error message and ends the process with exit code 2."""
    gc.collect()  # otherwise, unfinished operations of Orbax would print warnings after the error message
    terminal.flush_output()
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_CODE)


def _end_if_a_host_is_lost(error: Exception) -> None:
    """Ends the process with a message after a failed exchange with other hosts, without waiting for them."""
    if not (jax.distributed.is_initialized() and LOST_HOST.search(str(error))):
        return
    terminal.flush_output()
    reason = str(error).splitlines()[0]
    print(
        f"error: Another process of this command has ended, or the connection failed ({reason}). Start the "
        "same command on all hosts again. Training resumes from its last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(HOST_LOST_EXIT)


def define_new_run(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines --config, --config.field=value for each field of that config, --import and --workdir."""
    config_flag.define_import(values, argv)
    path = config_flag.value_of("config", argv)
    if path is None:
        flags.DEFINE_string("config", None, help_text.CONFIG_HELP, values, required=True)
    else:
        config_flag.define(config_flag.read_file(path), values, argv)
    text = "Folder of the run. A new folder is created; a run that exists resumes."
    flags.DEFINE_string("workdir", None, text, values, required=True)


def define_finished_run(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines the flags that choose the model of a run: --workdir, --checkpoint, --average and --ensemble.

    Also defines --import and, if --workdir is given, --config.field=value for each field of its config.
    """
    flags.DEFINE_string("workdir", None, "Folder of a run or an export.", values, required=True)
    ending = "--checkpoint=STEP takes the checkpoints up to this step."
    text = "Checkpoint to load: best (by validation, the default), last, or a step."
    flags.DEFINE_string("checkpoint", None, text, values)
    text = f"Number of checkpoints to average, counted back from the last. {ending}"
    flags.DEFINE_integer("average", 1, text, 1, flag_values=values)
    text = f"Number of checkpoints to decode with as an ensemble, counted back from the last. {ending}"
    flags.DEFINE_integer("ensemble", 1, text, 1, flag_values=values)
    config_flag.define_import(values, argv)
    config_flag.check_absent(argv)
    workdir = config_flag.value_of("workdir", argv)
    if workdir is not None:  # otherwise, the parser reports the missing flag
        config_flag.define(config.to_config_dict(runs.read_config(workdir)), values, argv)


def define_hosts(values: flags.FlagValues) -> None:
    """Defines the flags that connect the processes of several hosts, see `join_hosts`."""
    text = "Join the other processes of the run that SLURM, Kubernetes, Open MPI or the TPU VM reports."
    flags.DEFINE_bool("distributed", False, text, values)
    text = "Address HOST:PORT of the first process, to join the processes by hand."
    flags.DEFINE_string("coordinator", "", text, values)
    text = "For --coordinator: number of processes."
    flags.DEFINE_integer("processes", 1, text, 1, flag_values=values)
    text = "For --coordinator: index of this process, counted from 0."
    flags.DEFINE_integer("process_id", 0, text, 0, flag_values=values)


def join_hosts(arguments: flags.FlagValues) -> int:
    """Connects this process with the processes of other hosts, if --distributed or --coordinator is given.

    Returns:
      The index of this process. Only the process with index 0 writes files.

    Raises:
      UserError: if the flags are inconsistent, or JAX finds no other processes for --distributed.
    """
    if arguments.coordinator and not re.fullmatch(r".+:\d{1,5}", arguments.coordinator):
        raise UserError(f"--coordinator must be HOST:PORT, got {arguments.coordinator!r}.")
    if arguments.process_id >= arguments.processes:
        raise UserError(
            f"--process_id must be below --processes, got {arguments.process_id} of {arguments.processes}."
        )
    options = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if arguments.distributed:  # JAX reads everything from the environment of SLURM, Kubernetes or Open MPI
        try:
            jax.distributed.initialize(**options)
        except ValueError as error:
            raise UserError(
                f"--distributed: JAX does not find the other processes ({error}). Start the command with "
                "SLURM, Kubernetes or Open MPI, or give --coordinator, --processes and --process_id."
            ) from None
    elif arguments.coordinator:
        jax.distributed.initialize(
            arguments.coordinator, arguments.processes, arguments.process_id, **options
        )
    else:
        return 0
    check_device()
    return jax.process_index()


def read_config(arguments: flags.FlagValues) -> Any:
    """Returns the config of the flags as the frozen dataclass of its task."""
    return runs.parse_config(arguments.config)


def read_pipe(chosen: Any) -> Any:
    """Returns the config, with each split "-" replaced by a file with the content of standard input.

    See `store_pipe`.

    Raises:
      UserError: if the run has several processes, because only one has this input, or if `store_pipe` cannot
        use it.
    """
    data = getattr(chosen, "data", None)
    if PIPE not in [getattr(data, split, None) for split in SPLITS]:
        return chosen
    if jax.process_count() > 1:
        raise UserError("A run on several hosts cannot read standard input. Store the text in a file.")
    return dataclasses.replace(chosen, data=store_pipe(data, sys.stdin.buffer))


def check_device() -> None:
    """Checks that JAX finds a device. Commands call this before they do any work.

    Raises:
      UserError: if JAX finds no device.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that the requested platform exists
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise UserError(
            f"JAX finds no device to compute on{reason}. JAX_PLATFORMS is "
            f"{_jax_option('jax_platforms')!r}: check it, and check that JAX is installed for this platform."
        ) from None


def _jax_option(name: str) -> Any:
    """Returns an option of JAX. JAX adds these attributes at import, so a type checker does not see them."""
    return getattr(jax.config, name)


def enable_compilation_cache(folder: str) -> None:
    """Stores compiled programs below `folder`, so that the same program starts sooner next time.

    The cached programs are executed, so the folder must be trusted. Training uses its work directory.
    Commands that only read a run use the user's cache, because the run may come from someone else. If
    JAX_COMPILATION_CACHE_DIR names a folder, JAX uses that folder instead. If the folder cannot be written,
    there is no cache.
    """
    folder = os.path.join(folder, COMPILED_FOLDER)
    if _jax_option("jax_compilation_cache_dir"):
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", folder)


def remove_damaged_programs(folder: str) -> None:
    """Removes damaged programs from the compilation cache of `folder`, which a kill or a full disk truncated.

    JAX never overwrites an entry, so without this each start would warn and compile again. JAX compresses
    with zlib, or with zstandard if it is installed. Entries that zstandard compressed are not checked. No
    other process may use the folder at the same time.
    """
    for path in glob.glob(os.path.join(glob.escape(folder), COMPILED_FOLDER, "*-cache")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if not _is_whole(file.read()):
                log.info("Removing a damaged program from the compilation cache: %s", path)
                os.unlink(path)


def _is_whole(packed: bytes) -> bool:
    """Returns whether zlib can decompress the data. Data of zstandard count as whole."""
    try:
        return packed.startswith(ZSTANDARD) or bool(zlib.decompress(packed))
    except zlib.error:
        return False


def prepare_device() -> None:
    """Calls `check_device`, and `enable_compilation_cache` with the user's cache."""
    check_device()
    with contextlib.suppress(UserError):  # if the user has no home folder
        enable_compilation_cache(user_cache())


def load_run(arguments: flags.FlagValues) -> runs.Run:
    """Loads the run that the flags of `define_finished_run` choose."""
    prepare_device()
    return runs.load(
        arguments.workdir,
        checkpoint=arguments.checkpoint,
        average_last=arguments.average,
        ensemble_last=arguments.ensemble,
        chosen=read_config(arguments),
    )


def _check_positional(names: Sequence[str], arguments: list[str]) -> list[str]:
    """Returns the positional arguments, or raises a UserError if their number is wrong."""
    any_number = bool(names) and names[-1].endswith(" ...]")
    least = len(names) - any_number
    if len(arguments) < least or (len(arguments) > least and not any_number):
        expected, got = (" ".join(some) or "nothing" for some in (names, arguments))
        raise UserError(f"Expected {expected} in addition to the flags, got {got}.")
    return arguments
