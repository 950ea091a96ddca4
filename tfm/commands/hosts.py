"""The processes of a command on several hosts."""

import re

import jax

from tfm.commands import terminal
from tfm.commands.compilation import check_device
from tfm.commands.options import HostOptions
from tfm.errors import UserError

# Seconds without a sign of life after which JAX ends the processes of all other hosts.
HEARTBEAT_SECONDS = 40


def join_hosts(options: HostOptions) -> int:
    """Connects this process with the processes of other hosts, if --distributed or --coordinator is given.

    With several processes, what libraries print to standard output goes to standard error.

    Returns:
      The index of this process, 0 without these flags. Only the process with index 0 writes files.

    Raises:
      UserError: if the flags are inconsistent, JAX finds no other processes for --distributed, or a process
        that connects has no device.
    """
    if options.coordinator and not re.fullmatch(r".+:\d{1,5}", options.coordinator):
        raise UserError(f"--coordinator must be HOST:PORT, got {options.coordinator!r}.")
    if options.process_id >= options.processes:
        raise UserError(
            f"--process_id must be below --processes, got {options.process_id} of {options.processes}."
        )
    if options.coordinator and options.distributed:
        raise UserError("Expected --coordinator or --distributed, got both. Leave one out.")
    if options.processes > 1 and not (options.coordinator or options.distributed):
        raise UserError(f"--processes={options.processes} needs --coordinator=HOST:PORT. Give both.")
    if options.distributed:  # JAX reads everything from the environment of SLURM, Kubernetes or Open MPI
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        except ValueError as error:
            raise UserError(
                f"--distributed: JAX does not find the other processes ({error}). Start the command with "
                "SLURM, Kubernetes or Open MPI, or give --coordinator, --processes and --process_id."
            ) from None
    elif options.coordinator:
        jax.distributed.initialize(
            options.coordinator,
            options.processes,
            options.process_id,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    else:
        return 0
    check_device()
    if jax.process_count() > 1:
        terminal.separate_output()
    return jax.process_index()
