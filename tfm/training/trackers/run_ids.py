"""The id of a run in a tracker, so that a resumed run continues the same run of the tracker."""

import logging
import os

from tfm.errors import UserError
from tfm.io import local_copies
from tfm.io.files import atomic_file, read_text
from tfm.io.remote import is_url

MAX_FILE_BYTES = 1 << 14
# Environment variables that select one run of a tracker, and how the tracker resumes it.
RUN_VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID")
log = logging.getLogger(__name__)


def read_id(workdir: str, tracker: str) -> str | None:
    """Returns the id of the run in a tracker from the file WORKDIR/TRACKER.id, or None if it has no id yet.

    A file that cannot be read has no id. The copy of a run has no id yet, because its values would otherwise
    go to the run of the original. A run that was moved keeps its id.
    """
    run_id, folder = _read(workdir, tracker)
    if run_id is None or not _is_copy(workdir, folder, tracker, run_id):
        return run_id
    log.info("This folder is a copy of the run in %s, so it becomes another run of %s", folder, tracker)
    return None


def write_id(workdir: str, tracker: str, run_id: str) -> None:
    """Stores the id of the run in a tracker, and the folder of the run, in the file WORKDIR/TRACKER.id.

    Replaces the file if it exists. Each tracker has a file, so that two may write at once.

    Raises:
      UserError: if an I/O operation fails.
    """
    with atomic_file(_path(workdir, tracker), "w") as file:
        file.write(f"{run_id}\n{_name(workdir)}\n")


def _is_copy(workdir: str, folder: str, tracker: str, run_id: str) -> bool:
    """Returns whether a run was copied from the folder that the file of its id names.

    Objects of a store are copied and not moved. A local folder that no longer has the id was moved.
    """
    if _name(workdir) == folder:
        return False
    if is_url(folder):
        return True
    if _read(folder, tracker)[0] != run_id:
        return False
    return not os.path.samefile(_path(folder, tracker), _path(workdir, tracker))


def _read(workdir: str, tracker: str) -> tuple[str | None, str]:
    """Returns the id in the file of a tracker, or None, and the folder in which it was written."""
    try:
        run_id, folder, *_ = [*read_text(_path(workdir, tracker), MAX_FILE_BYTES).split("\n"), ""]
    except (OSError, UserError):
        return None, ""
    return run_id or None, folder


def _path(workdir: str, tracker: str) -> str:
    return os.path.join(workdir, f"{tracker}.id")


def _name(workdir: str) -> str:
    """Returns the absolute path of the folder of a run, or its URL."""
    return local_copies.show(os.path.abspath(workdir))
