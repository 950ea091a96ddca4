"""Stores the ids of a run in its trackers, so that a resumed run continues the same run of a tracker."""

import json
import os
from typing import Any

from tfm.io.files import atomic_file, read_limited

TRACKERS_FILE = "trackers.json"  # {name of the tracker: id of the run there}
MAX_FILE_BYTES = 1 << 16


def read_id(workdir: str, tracker: str) -> str | None:
    """Returns the id of the run in a tracker, or None if it has no id yet or the file is damaged."""
    run_id = _read(workdir).get(tracker)
    return run_id if isinstance(run_id, str) else None


def write_id(workdir: str, tracker: str, run_id: str) -> None:
    """Stores the id of the run in a tracker.

    Raises:
      UserError: if an I/O operation fails.
    """
    ids = _read(workdir) | {tracker: run_id}
    with atomic_file(os.path.join(workdir, TRACKERS_FILE), "w") as file:
        json.dump(ids, file)


def _read(workdir: str) -> dict[str, Any]:
    """Returns the content of the file, or {} if the file is missing or damaged."""
    try:
        ids = json.loads(read_limited(os.path.join(workdir, TRACKERS_FILE), MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return ids if isinstance(ids, dict) else {}
