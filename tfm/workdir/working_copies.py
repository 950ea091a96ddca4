"""The local folders with which commands work on runs, exports and files in a store.

A command pulls the small files of a run and the manifests of its checkpoints into a working copy, see
`tfm.workdir.mirror`, and uploads what it has written. Only one process trains in a folder, see
`tfm.workdir.owner`. What a run could not upload stays in its working copy, and the next start on the same
machine uploads it.
"""

import atexit
import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfm.checkpoints import manifest
from tfm.errors import UserError
from tfm.io.files import atomic_file, lock_file, open_locked, user_cache, writing
from tfm.io.local_copies import registered
from tfm.io.lock import LOCK_FILE
from tfm.io.remote import PATIENCE, TRAINING_PATIENCE, RemoteFolder, check_name, check_url
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir.mirror import UPLOAD_PREFIX, Mirror, is_any, is_mirrored, is_needed
from tfm.workdir.owner import OWNER_FOLDER, OWNER_NAME, SILENT_SECONDS, Owner, parse_record

RECORD_FILE = "copy.json"
SWEEP_RUNS = "*/*"  # VARIANT/seed_N
POLL_SECONDS = 1.0  # between two looks for new checkpoints
RECORD_NAME = re.compile(r".*\.jsonl?")
VIEWED_BYTES = 1 << 16  # of other files that `tfm status` and `tfm list` read


class Uploader:
    """The thread that uploads each new checkpoint of a run in training, with the small files.

    Args:
      mirror: the working copy.
      owner: of the folder.
      save: called after each upload.
      runs: pattern of the run folders below the working copy, "" if it is the folder of one run.
    """

    def __init__(self, mirror: Mirror, owner: Owner, save: Callable[[], None], runs: str = ""):
        self._mirror, self._owner, self._save, self._runs = mirror, owner, save, runs
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of an upload that failed in the background. Takes less than a microsecond."""
        if self._error is not None:
            raise self._error
        self._owner.check_known()

    def close(self) -> None:
        """Ends the thread, and uploads what is left.

        Raises:
          UserError: if an upload fails or has failed.
        """
        self._ended.set()
        self._thread.join()
        self.check()
        self._push()

    def _run(self) -> None:
        seen = self._list_checkpoints()
        while not self._ended.wait(POLL_SECONDS):
            if (now := self._list_checkpoints()) - seen:
                try:
                    self._push()
                except Exception as error:
                    self._error = error
                    return
            seen = now

    def _push(self) -> None:
        try:
            self._mirror.push()
        except UserError as error:
            base = os.path.dirname(self._mirror.folder)
            raise UserError(
                f"{error} Everything that the run has written is in {base}: the same command on this machine "
                "uploads it and continues."
            ) from None
        self._save()

    def _list_checkpoints(self) -> set[str]:
        """Returns the paths of the manifests of the checkpoints here."""
        folder = os.path.join(glob.escape(self._mirror.folder), self._runs, CHECKPOINT_FOLDER)
        return set(glob.glob(os.path.join(folder, "[0-9]*", manifest.FILE)))


@contextlib.contextmanager
def open_to_train(url: str, *, everything: bool = False) -> Iterator[tuple[str, Callable[[], None]]]:
    """Opens the working copy of a run to train. Uploads the run while it trains, and at the end.

    Args:
      url: URL of the run.
      everything: whether other processes read the copy, which cannot fetch checkpoints.

    Yields:
      The folder, and a function that raises a UserError if an upload has failed or another process has taken
      over the run.

    Raises:
      UserError: if another process trains in the folder, or the store fails for too long.
    """
    remote = RemoteFolder(url, TRAINING_PATIENCE)
    base = os.path.join(os.path.realpath(user_cache()), "runs", _local_name(remote.url))
    folder = os.path.join(base, os.path.basename(remote.url))
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    with open_locked(os.path.join(base, "lock"), "--workdir", shown_as=url), contextlib.ExitStack() as stack:
        for name in os.listdir(base):
            if name.startswith(UPLOAD_PREFIX):  # a kill left it
                shutil.rmtree(os.path.join(base, name))
        record = _read_record(base)
        owner = Owner(remote, record["copy"])
        mirror = Mirror(remote, folder, owner.check)

        def save() -> None:
            with atomic_file(os.path.join(base, RECORD_FILE), "w") as file:
                json.dump(record | {"files": mirror.synced}, file)

        def prepare(is_same_copy: bool) -> None:
            mirror.synced = {name: (size, time_ns) for name, (size, time_ns) in record["files"].items()}
            if not is_same_copy:
                mirror.set_aside(os.path.join(base, "superseded"))
            save()

        owner.claim(prepare)
        stack.callback(owner.release)
        mirror.remove_incomplete(mirror.pull(is_any if everything else is_needed))
        save()
        stack.enter_context(registered(folder, mirror))
        uploader = Uploader(mirror, owner, save, SWEEP_RUNS if everything else "")
        stack.callback(uploader.close)
        yield folder, uploader.check


@contextlib.contextmanager
def open_to_read(url: str, *, patience: float = PATIENCE, is_view: bool = False) -> Iterator[str]:
    """Opens a temporary copy of a run, an export or a folder for results. Uploads what is new at the end.

    Removes nothing in the store. If the upload fails, the results stay in a folder that the error names.

    Args:
      url: URL of the folder.
      patience: see `RemoteFolder`.
      is_view: whether a report of the folder is enough. Then, the files that the report does not read are
        empty, and the lock of each run shows whether it is in training. Otherwise, checkpoints are fetched
        when they are opened.

    Yields:
      The folder. It does not exist if there are no objects.

    Raises:
      UserError: if the store fails for too long.
    """
    remote = RemoteFolder(url, patience)
    with tempfile.TemporaryDirectory(prefix="tfm-", ignore_cleanup_errors=True) as base:
        folder = os.path.join(os.path.realpath(base), os.path.basename(remote.url))
        os.mkdir(folder)
        mirror = Mirror(remote, folder)
        objects = mirror.pull(_is_viewed if is_view else is_needed, placeholders=is_view)
        if not any(map(is_mirrored, objects)):
            os.rmdir(folder)
        with registered(folder, mirror), contextlib.ExitStack() as stack:
            if is_view:
                _show_owners(remote, objects, folder, stack)
            try:
                yield folder
            finally:
                _push_or_keep(mirror, base)


@functools.cache
def copy_until_exit(url: str) -> str:
    """Opens a temporary copy that Python code reads until the process ends, see `open_to_read`."""
    stack = contextlib.ExitStack()
    folder = stack.enter_context(open_to_read(url))
    # Registered last and therefore called first. Python removes temporary folders by another such function.
    atexit.register(stack.close)
    return folder


def open_to_view(url: str) -> contextlib.AbstractContextManager[str]:
    """Opens a temporary copy of a folder of runs for a report, see `open_to_read`."""
    return open_to_read(url, is_view=True)


@contextlib.contextmanager
def open_output_file(url: str) -> Iterator[str]:
    """Opens a temporary copy of a file to write, see `tfm.commands.resumable_output`.

    Yields:
      The path of the file. What is written there is uploaded, also after an error. If the object exists, the
      file exists and is empty.

    Raises:
      UserError: if the URL contains credentials, or the store fails for too long. The results then stay in a
        local folder that the message names.
    """
    check_url(url)
    parent, name = url.rsplit("/", 1)
    remote = RemoteFolder(parent)
    with tempfile.TemporaryDirectory(prefix="tfm-", ignore_cleanup_errors=True) as base:
        mirror = Mirror(remote, os.path.realpath(base))
        path = os.path.join(mirror.folder, name)
        unfinished = [
            each for each in (f"{name}.part", f"{name}.part.origin") if remote.size(each) is not None
        ]
        remote.download({each: os.path.join(mirror.folder, each) for each in unfinished})
        if remote.size(name) is not None:
            with open(path, "wb"):
                pass
        mirror.mark_synced()
        with registered(mirror.folder, mirror):
            try:
                yield path
            finally:
                _push_or_keep(mirror, base)


@contextlib.contextmanager
def open_input(url: str) -> Iterator[str]:
    """Opens a temporary copy of a file, or of a folder with all its files.

    Yields:
      The path. It does not exist if there is no such object.

    Raises:
      UserError: if the URL contains credentials, or the store fails for too long.
    """
    check_url(url)
    parent, name = url.rstrip("/").rsplit("/", 1)
    remote = RemoteFolder(parent)
    with tempfile.TemporaryDirectory(prefix="tfm-", ignore_cleanup_errors=True) as base:
        mirror = Mirror(remote, os.path.realpath(base))
        names = [name] if remote.size(name) is not None else remote.sizes(name)
        for each in names:
            check_name(each, url)
        remote.download({each: os.path.join(mirror.folder, *each.split("/")) for each in names})
        with registered(mirror.folder, mirror):
            yield os.path.join(mirror.folder, name)


def _push_or_keep(mirror: Mirror, base: str) -> None:
    """Uploads results. If the store fails, the results stay in a folder that the message names."""
    try:
        mirror.push(removes=False)
    except UserError as error:
        kept = f"{base}-kept"
        os.rename(base, kept)
        raise UserError(f"{error} The results are in {kept}.") from None


def _show_owners(
    remote: RemoteFolder, objects: Iterable[str], folder: str, stack: contextlib.ExitStack
) -> None:
    """Locks the copy of each run that is in training, as its process would lock a local folder.

    Args:
      remote: the folder in the store.
      objects: names of its objects.
      folder: the copy.
      stack: unlocks the copy.
    """
    for name in objects:
        run, match = name.rpartition(OWNER_FOLDER)[0].rstrip("/"), OWNER_NAME.search(name)
        if match is None:
            continue
        record = parse_record(remote.read(name))
        beat = record.get("beat")
        if record.get("released") or not isinstance(beat, float) or time.time() - beat > SILENT_SECONDS:
            continue
        path = os.path.join(folder, run, LOCK_FILE)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)
        lock_file(stack.enter_context(open(path, "rb")))  # noqa: SIM115 (the stack closes it)


def _read_record(base: str) -> dict[str, Any]:
    """Returns the record of a working copy: its name, and the files that equal their objects."""
    path = os.path.join(base, RECORD_FILE)
    record: dict[str, Any] = {}
    if os.path.isfile(path):
        with contextlib.suppress(ValueError, OSError), open(path, encoding="utf-8") as file:
            record = json.load(file)
    return {"copy": record.get("copy", uuid.uuid4().hex), "files": record.get("files", {})}


def _local_name(url: str) -> str:
    """Returns a name of a local folder that only one URL has."""
    readable = "-".join(re.findall(r"[A-Za-z0-9._]+", url))[-80:]
    return f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def _is_viewed(name: str, size: int) -> bool:
    return bool(RECORD_NAME.fullmatch(name)) or (size <= VIEWED_BYTES and "checkpoints/" not in name)
