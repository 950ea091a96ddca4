"""Run folders in a store such as gs://BUCKET/run: a local working copy that is mirrored.

Everything that reads or writes a run works on local files. A command pulls the small files of the run and the
manifests of its checkpoints. The arrays of a checkpoint are fetched when the checkpoint is opened. Training
has a thread that uploads each checkpoint when it is complete here. The objects of a checkpoint are uploaded
before its manifest, which names the checksum of each. Without its manifest, a checkpoint in the store is
incomplete, and the next start removes it.

Only one process trains in a folder, see `Owner`. What it could not upload stays in its working copy, and the
next start on the same machine uploads it.
"""

import atexit
import contextlib
import functools
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from tfm.checkpoints import manifest
from tfm.errors import UserError
from tfm.io.files import TEMPORARY_NAME, atomic_file, lock_file, open_locked, user_cache, writing
from tfm.io.lock import LOCK_FILE
from tfm.io.remote import PATIENCE, TRAINING_PATIENCE, RemoteFolder, check_name, check_url, registered
from tfm.training.setup import CHECKPOINT_FOLDER

RECORD_FILE = "copy.json"
SWEEP_RUNS = "*/*"  # VARIANT/seed_N
UPLOAD_PREFIX = ".upload"
OWNER_FOLDER = ".owner"
OWNER_NAME = re.compile(rf"{re.escape(OWNER_FOLDER)}/([0-9]+)\.json")
BEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0  # without a sign of life, after which an owner on another machine counts as killed
CONFIRM_SECONDS = 1.0  # in which two processes may both write the first object of an owner
POLL_SECONDS = 1.0  # between two looks for new checkpoints
# Not mirrored: locks, compiled programs, and what is unfinished.
LOCAL_NAME = re.compile(
    rf"{LOCK_FILE}|compiled|\..*\.tfm-lock|{re.escape(OWNER_FOLDER)}|[0-9]+\.(deleted|orbax-checkpoint-tmp.*)"
    rf"|after_[0-9]+\.part|.*{TEMPORARY_NAME.pattern}"
)
STEP_OBJECT = re.compile(r"((?:.*/)?checkpoints/[0-9]+)/.*")
UNFINISHED = re.compile(r"\.orbax-checkpoint-tmp.*")
RECORD_NAME = re.compile(r".*\.jsonl?")
VIEWED_BYTES = 1 << 16  # of other files that `tfm status` and `tfm list` read
Stat = tuple[int, int]  # bytes and time of change of a local file
log = logging.getLogger(__name__)


class Mirror:
    """A local folder that is a working copy of a folder in a store.

    Args:
      remote: the folder in the store.
      folder: the absolute path of the local folder.
      check: called before an upload, and before a checkpoint becomes complete in the store. It raises a
        UserError if the folder has another owner.
    """

    def __init__(self, remote: RemoteFolder, folder: str, check: Callable[[], None] = lambda: None):
        self.remote, self.folder, self.url = remote, folder, remote.url
        self._check = check
        self._pushing = threading.Lock()
        self._received: set[str] = set()  # objects that other hosts uploaded
        self.synced: dict[str, Stat] = {}  # the local files that equal their objects

    def pull(self, wants: Callable[[str, int], bool], *, placeholders: bool = False) -> dict[str, int]:
        """Downloads the objects that `wants(name, bytes)` selects, except those with newer local files.

        Args:
          wants: the selection.
          placeholders: whether the other objects become empty files of their sizes, for a report of sizes.

        Returns:
          {name: bytes} of all objects.
        """
        objects = {name: size for name, size in self.remote.sizes().items() if _is_mirrored(name)}
        for name in objects:
            check_name(name, self.url)
        local = self._scan()
        unchanged = {name for name in objects if self.synced.get(name) == local.get(name)}
        chosen = {name: self._path(name) for name in unchanged if wants(name, objects[name])}
        with contextlib.suppress(FileNotFoundError):  # a run in training deletes checkpoints at this moment
            self.remote.download(chosen)
        for name in objects.keys() - chosen.keys() if placeholders else ():
            os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)
            with open(self._path(name), "wb") as file:
                file.truncate(objects[name])
        now = self._scan()
        self.synced |= {name: now[name] for name in (objects if placeholders else chosen) if name in now}
        return objects

    def fetch(self, name: str) -> None:
        """Downloads the files of a checkpoint that its manifest lists and that are not here."""
        path = os.path.join(self._path(name), manifest.FILE)
        if not os.path.isfile(path):
            return
        try:
            listed = manifest.read(os.path.dirname(path))["files"]
        except manifest.Damaged:
            return  # the caller reports it
        for each in listed:
            check_name(each, self.url)
        paths = {f"{name}/{each}": os.path.join(self._path(name), *each.split("/")) for each in listed}
        missing = {each: path for each, path in paths.items() if not os.path.isfile(path)}
        try:
            self.remote.download(missing)
        except FileNotFoundError:
            if f"{name}/{manifest.FILE}" in self.remote.sizes(name):
                return  # an object is missing, and the caller reports the damage
            shutil.rmtree(self._path(name), ignore_errors=True)  # training deleted the checkpoint
            raise

    def push(self, *, removes: bool = True) -> int:
        """Uploads the files that have changed, and then the new checkpoints, the newest first.

        Args:
          removes: whether files that are removed here are removed in the store.

        Returns:
          The uploaded bytes.
        """
        with self._pushing:
            self._check()
            local = self._scan()
            changed = {name for name, stat in local.items() if self.synced.get(name) != stat}
            complete = {os.path.dirname(name) for name in local if _is_manifest(name)}
            new = {os.path.dirname(name) for name in changed if _is_manifest(name)}
            uploaded = self._upload([name for name in changed if not _is_below(name, complete)], local)
            for folder in sorted(new, key=lambda each: local[f"{each}/{manifest.FILE}"][1], reverse=True):
                names = [name for name in local if name.startswith(f"{folder}/")]
                uploaded += self._upload(names, local, is_checkpoint=True)
            if removes:
                self._remove(self.synced.keys() - local.keys())
            return uploaded

    def send_part(self, name: str) -> None:
        """Uploads the part that this host wrote of an unfinished checkpoint, and removes it here."""
        final, folder = UNFINISHED.sub("", name), self._path(name)
        names = (
            os.path.relpath(os.path.join(parent, each), folder)
            for parent, _, names in os.walk(folder)
            for each in names
        )
        self.remote.upload({f"{final}/{each}": os.path.join(folder, each) for each in names})
        shutil.rmtree(folder)

    def receive_parts(self, name: str) -> None:
        """Downloads the parts that the other hosts wrote of an unfinished checkpoint."""
        final = UNFINISHED.sub("", name)
        parts = [
            each
            for each in self.remote.sizes(final)
            if not os.path.exists(self._path(name + each.removeprefix(final)))
        ]
        self.remote.download({each: self._path(name + each.removeprefix(final)) for each in parts})
        self._received.update(parts)

    def share(self) -> None:
        """Uploads the small files for the other hosts."""
        self.push()

    def refresh(self) -> None:
        """Downloads the small files that the first host shares."""
        self.pull(_is_needed)

    def mark_synced(self) -> None:
        """Declares that the local files equal their objects."""
        self.synced = self._scan()

    def set_aside(self, path: str) -> None:
        """Empties the folder, because another machine has trained the run.

        What was not uploaded is moved to `path`.
        """
        local = self._scan()
        if any(self.synced.get(name) != stat for name, stat in local.items()):
            log.warning(
                "Another machine has trained %s since. What was not uploaded from here is in %s",
                self.url,
                path,
            )
            shutil.rmtree(path, ignore_errors=True)
            os.rename(self.folder, path)
        else:
            shutil.rmtree(self.folder)
        os.mkdir(self.folder)
        self.synced = {}

    def remove_incomplete(self, objects: Iterable[str]) -> None:
        """Removes the objects of checkpoints without a manifest, which a kill left."""
        names = set(objects)
        steps = {name: match[1] for name in names if (match := STEP_OBJECT.fullmatch(name))}
        left = [name for name, step in steps.items() if f"{step}/{manifest.FILE}" not in names]
        if left:
            log.info("Removing %s objects of incomplete checkpoints from %s", len(left), self.url)
        self.remote.remove(left)

    def _upload(self, names: Iterable[str], local: dict[str, Stat], *, is_checkpoint: bool = False) -> int:
        """Uploads files as they are now, a manifest last. Returns their bytes.

        A checkpoint that is deleted at the same time is skipped.
        """
        with tempfile.TemporaryDirectory(prefix=UPLOAD_PREFIX, dir=os.path.dirname(self.folder)) as snapshot:
            copies: dict[str, str] = {}
            for number, name in enumerate(names):
                copies[name] = os.path.join(snapshot, str(number))
                try:
                    _take(self._path(name), copies[name], links=is_checkpoint)
                except FileNotFoundError:
                    if is_checkpoint:
                        return 0
                    del copies[name]
            last = {
                name: copies.pop(name) for name in list(copies) if os.path.basename(name) == manifest.FILE
            }
            uploaded = self.remote.upload(
                {name: path for name, path in copies.items() if name not in self._received}
            )
            if last:
                self._check()
                uploaded += self.remote.upload(last)
        self.synced |= {name: local[name] for name in copies | last if not is_checkpoint or name in last}
        return uploaded

    def _remove(self, names: Iterable[str]) -> None:
        """Removes objects whose files are gone, checkpoints with all their objects and the manifest first."""
        gone = set(names)
        folders = {os.path.dirname(name) for name in gone if _is_manifest(name)}
        self.remote.remove([name for name in gone if _is_manifest(name) or not _is_below(name, folders)])
        for folder in folders:
            self.remote.remove(
                [f"{folder}/{name.removeprefix(folder + '/')}" for name in self.remote.sizes(folder)]
            )
        for name in gone:
            del self.synced[name]

    def _scan(self) -> dict[str, Stat]:
        """Returns {name: stat} of the local files that are mirrored."""
        stats: dict[str, Stat] = {}
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not LOCAL_NAME.fullmatch(name)]
            for name in names:
                path = os.path.join(parent, name)
                with contextlib.suppress(FileNotFoundError):
                    if not LOCAL_NAME.fullmatch(name) and not os.path.islink(path):
                        stat = os.stat(path)
                        stats[os.path.relpath(path, self.folder)] = (stat.st_size, stat.st_mtime_ns)
        return stats

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, *name.split("/"))


class Owner:
    """The right to train in a folder of a store, which one process has at a time.

    Each owner creates the object .owner/N.json with the next number N. The store writes it only if it does
    not exist, so one of two processes that start together gets it. The owner writes its object again every
    `BEAT_SECONDS`, and loses the folder when a later number appears.

    A process waits for an owner that shows no sign of life. After `SILENT_SECONDS` it takes the folder over.
    It does so at once if that owner released the folder, or had the same working copy, because this process
    has locked it.

    Args:
      remote: the folder in the store.
      copy: names the working copy.
    """

    def __init__(self, remote: RemoteFolder, copy: str):
        self._remote, self._copy, self._lost = remote, copy, ""
        self._record: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "copy": copy,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%F %T %z"),
        }
        self.generation = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="owner", daemon=True)

    def claim(self, prepare: Callable[[bool], None]) -> None:
        """Becomes the owner.

        Args:
          prepare: called before with whether the last owner had the same working copy.

        Raises:
          UserError: if another process trains in the folder.
        """
        while True:
            before, last = read_owner(self._remote)
            is_same_copy = last.get("copy") == self._copy
            if last and not last.get("released") and not is_same_copy:
                self._wait_for_silence(last)
            prepare(is_same_copy)
            self.generation = before + 1
            content = self._content()
            if self._remote.create(_owner_name(self.generation), content):
                time.sleep(CONFIRM_SECONDS)
                if self._remote.read(_owner_name(self.generation)) == content:
                    break
        self._remote.remove(map(_owner_name, _list_owners(self._remote) - {self.generation}))
        self._thread.start()

    def check(self) -> None:
        """Raises a UserError if another process has taken the folder over."""
        if not self._lost and max(_list_owners(self._remote), default=0) > self.generation:
            self._lost = _in_use(self._remote.url, read_owner(self._remote)[1])
        self.check_known()

    def check_known(self) -> None:
        """Raises a UserError if an earlier check has found another owner. Asks nothing of the store."""
        if self._lost:
            raise UserError(
                f"{self._lost} It has taken over the run, because this process showed no sign of life for a "
                "minute. This process ends and writes nothing more there."
            )

    def release(self) -> None:
        """Ends the ownership. If the store fails, the next owner on another machine waits for the silence."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            with contextlib.suppress(UserError):
                content = self._content(released=True)
                self._remote.write(_owner_name(self.generation), content, patience=BEAT_SECONDS)

    def _content(self, **more: Any) -> bytes:
        return json.dumps(self._record | {"beat": time.time()} | more).encode()

    def _beat(self) -> None:
        """Writes a sign of life from time to time. A store that fails is the concern of `Mirror.push`."""
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(UserError):
                self.check()
                self._remote.write(_owner_name(self.generation), self._content(), patience=BEAT_SECONDS)

    def _wait_for_silence(self, holder: dict[str, Any]) -> None:
        """Returns when an owner has shown no sign of life for `SILENT_SECONDS`, or has released the folder.

        Compares no clocks, because the clocks of two machines may differ.

        Raises:
          UserError: if it shows one.
        """
        url, deadline = self._remote.url, time.monotonic() + SILENT_SECONDS
        log.info("%s Waiting up to %.0f s for a sign of life", _in_use(url, holder), SILENT_SECONDS)
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            now = read_owner(self._remote)[1]
            if now.get("released"):
                return
            if now and now != holder:  # a local disk may show a file while it is written
                raise UserError(f"{_in_use(url, now)} Wait for it or end it, or give another --workdir.")


def read_owner(remote: RemoteFolder) -> tuple[int, dict[str, Any]]:
    """Returns the number of the last owner, or 0, and its record, or {}."""
    generation = max(_list_owners(remote), default=0)
    return generation, _parse(remote.read(_owner_name(generation)) if generation else None)


def _parse(content: bytes | None) -> dict[str, Any]:
    """Returns the object in the JSON of a record, or {} for any other content."""
    try:
        record = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _list_owners(remote: RemoteFolder) -> set[int]:
    matches = (OWNER_NAME.fullmatch(name) for name in remote.sizes(OWNER_FOLDER))
    return {int(match[1]) for match in matches if match}


def _owner_name(generation: int) -> str:
    return f"{OWNER_FOLDER}/{generation}.json"


def _in_use(url: str, holder: dict[str, Any]) -> str:
    """Returns the sentence that names the owner of a folder."""
    pid, host, since = (holder.get(name, "unknown") for name in ("pid", "host", "since"))
    return f"{url} is in use by process {pid} on {host} since {since}."


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
        mirror.remove_incomplete(mirror.pull(_is_any if everything else _is_needed))
        save()
        stack.enter_context(registered(folder, mirror))
        uploader = Uploader(mirror, owner, save, SWEEP_RUNS if everything else "")
        stack.callback(uploader.close)
        yield folder, uploader.check


@contextlib.contextmanager
def open_to_read(url: str, *, patience: float = PATIENCE, is_view: bool = False) -> Iterator[str]:
    """Opens a temporary copy of a run, an export or a folder for results. Uploads the files that are new.

    Args:
      url: URL of the folder.
      patience: see `RemoteFolder`.
      is_view: whether a report of the folder is enough. Then, the files that the report does not read are
        empty, and the lock of each run shows whether it is in training. Otherwise, checkpoints are fetched
        when they are opened.

    Yields:
      The folder. It does not exist if there are no objects.
    """
    remote = RemoteFolder(url, patience)
    with tempfile.TemporaryDirectory(prefix="tfm-", ignore_cleanup_errors=True) as base:
        folder = os.path.join(os.path.realpath(base), os.path.basename(remote.url))
        os.mkdir(folder)
        mirror = Mirror(remote, folder)
        objects = mirror.pull(_is_viewed if is_view else _is_needed, placeholders=is_view)
        if not objects:
            os.rmdir(folder)
        with registered(folder, mirror), contextlib.ExitStack() as stack:
            if is_view:
                _show_owners(remote, folder, stack)
            try:
                yield folder
            finally:
                _push_or_keep(mirror, base)


@functools.cache
def copy_until_exit(url: str) -> str:
    """Opens a temporary copy that Python code reads until the process ends, see `open_to_read`."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_to_read(url))


def open_to_view(url: str) -> contextlib.AbstractContextManager[str]:
    """Opens a temporary copy of a folder of runs for a report, see `open_to_read`."""
    return open_to_read(url, is_view=True)


@contextlib.contextmanager
def open_output_file(url: str) -> Iterator[str]:
    """Opens a temporary copy of a file to write, see `tfm.commands.resumable_output`.

    Yields:
      The path of the file. What is written there is uploaded, also after an error. If the object exists, the
      file exists and is empty.
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


def _take(path: str, copy: str, *, links: bool) -> None:
    """Copies a file as it is now. A link is enough for a file that does not change but may be deleted.

    Raises:
      FileNotFoundError: if the file was deleted.
    """
    if links:
        try:
            os.link(path, copy)
            return
        except FileNotFoundError:
            raise
        except OSError:  # some file systems have no links
            pass
    shutil.copyfile(path, copy)


def _push_or_keep(mirror: Mirror, base: str) -> None:
    """Uploads results. If the store fails, the results stay in a folder that the message names."""
    try:
        mirror.push(removes=False)
    except UserError as error:
        kept = f"{base}-kept"
        os.rename(base, kept)
        raise UserError(f"{error} The results are in {kept}.") from None


def _show_owners(remote: RemoteFolder, folder: str, stack: contextlib.ExitStack) -> None:
    """Locks the copy of each run that is in training, as its process would lock a local folder."""
    for name in remote.sizes():
        run, match = name.rpartition(OWNER_FOLDER)[0].rstrip("/"), OWNER_NAME.search(name)
        if match is None:
            continue
        record = _parse(remote.read(name))
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


def _is_mirrored(name: str) -> bool:
    return not any(LOCAL_NAME.fullmatch(part) for part in name.split("/"))


def _is_manifest(name: str) -> bool:
    """Returns whether a file is the manifest of a checkpoint. The manifest of an export is at the top."""
    return os.path.basename(name) == manifest.FILE and name != manifest.FILE


def _is_below(name: str, folders: Collection[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in folders)


def _is_needed(name: str, size: int) -> bool:
    """Returns whether a start needs an object: the files of the run itself and the manifests."""
    return "/" not in name or _is_manifest(name)


def _is_viewed(name: str, size: int) -> bool:
    return bool(RECORD_NAME.fullmatch(name)) or (size <= VIEWED_BYTES and "checkpoints/" not in name)


def _is_any(name: str, size: int) -> bool:
    return True
