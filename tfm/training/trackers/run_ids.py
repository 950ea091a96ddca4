"""The id of a run in a tracker, so that a resumed run continues the same run of the tracker."""

import os

from tfm.io.files import atomic_file, read_limited

MAX_FILE_BYTES = 1 << 12
# Environment variables that select one run of a tracker, and how the tracker resumes it.
RUN_VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID")


def read_id(workdir: str, tracker: str) -> str | None:
    """Returns the id of the run in a tracker, or None if it has no id yet."""
    try:
        return read_limited(os.path.join(workdir, f"{tracker}.id"), MAX_FILE_BYTES).decode() or None
    except (OSError, ValueError):
        return None


def write_id(workdir: str, tracker: str, run_id: str) -> None:
    """Stores the id of the run in a tracker. Each tracker has a file, so that two may write at once.

    Raises:
      UserError: if an I/O operation fails.
    """
    with atomic_file(os.path.join(workdir, f"{tracker}.id"), "w") as file:
        file.write(run_id)
