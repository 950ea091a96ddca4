"""A local folder that mirrors a folder in a store, such as gs://BUCKET/run.

Everything that reads or writes a run works on local files. The arrays of a checkpoint are fetched when the
checkpoint is opened. The objects of a checkpoint are uploaded before its manifest. The manifest contains the
checksum of each object. Without its manifest, a checkpoint in the store is incomplete, and the next start
removes it.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable

from tfm.checkpoints import manifest
from tfm.io.files import TEMPORARY_NAME
from tfm.io.lock import LOCK_FILE
from tfm.io.remote import RemoteFolder, check_name
from tfm.workdir.owner import OWNER_FOLDER

UPLOAD_PREFIX = ".upload"
# Not mirrored: locks, compiled programs, and what is unfinished.
LOCAL_NAME = re.compile(
    rf"{LOCK_FILE}|compiled|\..*\.tfm-lock|{re.escape(OWNER_FOLDER)}|[0-9]+\.(deleted|orbax-checkpoint-tmp.*)"
    rf"|after_[0-9]+\.part|.*{TEMPORARY_NAME.pattern}"
)
STEP_OBJECT = re.compile(r"((?:.*/)?checkpoints/[0-9]+)/.*")
UNFINISHED = re.compile(r"\.orbax-checkpoint-tmp.*")
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
          {name: bytes} of all objects, also of those that are not mirrored.
        """
        listed = self.remote.sizes()
        objects = {name: size for name, size in listed.items() if is_mirrored(name)}
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
        return listed

    def fetch(self, name: str) -> None:
        """Downloads the files of a checkpoint that its manifest lists and that are not here.

        Does nothing if the manifest is not here or is damaged. If only an object is missing in the store, the
        other files may be downloaded, and the caller reports the damage.

        Raises:
          FileNotFoundError: if training has deleted the checkpoint. Its folder is then removed here, too.
        """
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

        Raises:
          UserError: if the folder has another owner, or the store fails for too long.
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
        self.pull(is_needed)

    def mark_synced(self) -> None:
        """Declares that the local files equal their objects."""
        self.synced = self._scan()

    def set_aside(self, path: str) -> None:
        """Empties the folder, because another machine has trained the run.

        If there are files that were not uploaded, the whole content moves to `path`, whose earlier content is
        deleted, and a warning says so. Otherwise, the content is deleted.
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
        """Removes the objects of checkpoints without a manifest, such as a kill leaves. Logs their number.

        Args:
          objects: names of all objects in the store.
        """
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


def is_mirrored(name: str) -> bool:
    """Returns whether an object belongs to the copy. Locks, owners and compiled programs do not."""
    return not any(LOCAL_NAME.fullmatch(part) for part in name.split("/"))


def _is_manifest(name: str) -> bool:
    """Returns whether a file is the manifest of a checkpoint. The manifest of an export is at the top."""
    return os.path.basename(name) == manifest.FILE and name != manifest.FILE


def _is_below(name: str, folders: Collection[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in folders)


def is_needed(name: str, size: int) -> bool:
    """Returns whether a start needs an object: the files of the run itself and the manifests."""
    return "/" not in name or _is_manifest(name)


def is_any(name: str, size: int) -> bool:
    """Selects all objects."""
    return True
