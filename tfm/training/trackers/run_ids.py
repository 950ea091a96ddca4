"""The ids of a run in its trackers, kept in its work directory, so that a resumed run goes on in the same."""

import json
import os

from tfm.io.files import atomic_file, read_limited

TRACKERS_FILE = "trackers.json"  # {name of the tracker: id of the run there}
LARGEST = 1 << 16  # bytes


def read_id(workdir: str, tracker: str) -> str | None:
    """The id of the run in a tracker; None of a run that has none yet, or whose file is damaged."""
    found = _read(workdir).get(tracker)
    return found if isinstance(found, str) else None


def write_id(workdir: str, tracker: str, run_id: str) -> None:
    """Keeps the id of the run in a tracker.

    Raises:
      UserError: an I/O error.
    """
    ids = _read(workdir) | {tracker: run_id}
    with atomic_file(os.path.join(workdir, TRACKERS_FILE), "w") as file:
        json.dump(ids, file)


def _read(workdir):
    try:
        found = json.loads(read_limited(os.path.join(workdir, TRACKERS_FILE), LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
