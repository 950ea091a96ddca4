"""Folders and files that have a URL, such as gs://BUCKET/run and s3://BUCKET/run, through fsspec.

A store has neither renames nor appends, but writes each object completely or not at all. fsspec is imported
when the first URL is opened, so commands on local paths do not pay for it. The libraries of the stores read
the credentials from the environment.
"""

import atexit
import contextlib
import errno
import functools
import importlib
import io
import logging
import os
import random
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tfm.errors import UserError, first_line, install_extra
from tfm.io.files import is_inner_path
from tfm.io.local_copies import show_as

URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
# A user name with a password, or a parameter that signs the URL.
SECRET_IN_URL = re.compile(
    r"//[^/]*:[^/]*@|[?&](sig|signature|token|x-amz-[^=]*|x-goog-[^=]*)=", re.IGNORECASE
)
PATIENCE = 60.0  # seconds during which a command repeats a request that fails
TRAINING_PATIENCE = 600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0
CONNECT_SECONDS, READ_SECONDS = 20, 60  # after which a request without an answer is repeated
THREADS = 8
SMALL_BYTES = 5 << 20  # smaller objects are written from memory by `RemoteFolder._pipe`
# Errors that the same request would meet again. FileExistsError answers `RemoteFolder.create`.
PERMANENT_ERRORS = (
    *(FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(ImportError, NotImplementedError, TypeError, UserError),
)
# Errors of the local disk.
LOCAL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG)
PERMANENT_NAMES = re.compile("Credential|RefreshError|ParamValidation|InvalidRegion|ProfileNotFound")
REPEATED_CODES = (408, 425, 429)
T = TypeVar("T")
log = logging.getLogger(__name__)


def is_url(path: object) -> bool:
    """Returns whether a path is a URL, such as gs://BUCKET/run."""
    return isinstance(path, str) and URL.match(path) is not None


def check_url(url: str) -> None:
    """Raises a UserError if a URL contains credentials.

    The message does not repeat the URL. A URL appears in the log and in the record of the starts.
    """
    if SECRET_IN_URL.search(url):
        raise UserError(
            "Expected a URL without credentials. Give them in the environment, where the library of the "
            "store reads them (docs/clusters.md)."
        )


def check_name(name: str, url: str) -> None:
    """Raises a UserError for the name of an object that would lead out of a local folder."""
    if not is_inner_path(name):
        raise UserError(
            f"{url} has an object with the name {name!a}, which is no path in a folder. Remove it."
        )


class RemoteFolder:
    """The objects below a URL.

    Args:
      url: the URL of the folder. It need not exist.
      patience: seconds during which a request that fails is repeated, with growing pauses.

    Raises:
      UserError: from any method, if the library of the store is missing, or a request fails for longer than
        `patience` seconds or in a way that a repetition cannot help.
    """

    def __init__(self, url: str, patience: float = PATIENCE):
        check_url(url)
        self.url, self.patience = url.rstrip("/"), patience
        self._files: Any = None
        self._files, self._root = self._repeat(lambda: open_file_system(self.url))
        self._root = self._root.rstrip("/")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Returns {name below the URL: bytes} of all objects below a folder. {} if there is none."""
        start = self._path(folder) if folder else self._root

        def find() -> Mapping[str, Any]:
            self._files.invalidate_cache()
            return self._files.find(start, detail=True)

        try:
            entries = self._repeat(find)
        except FileNotFoundError:
            return {}
        prefix = f"{self._root}/"
        bytes_of = {path: int(info.get("size") or 0) for path, info in entries.items()}
        names = {
            path.removeprefix(prefix): size for path, size in bytes_of.items() if path.startswith(prefix)
        }
        return {name: size for name, size in names.items() if name and not name.endswith("/")}

    def size(self, name: str) -> int | None:
        """Returns the number of bytes of an object, or None if it does not exist or is a folder."""
        try:
            info = self._repeat(lambda: self._files.info(self._path(name)))
        except FileNotFoundError:
            return None
        return int(info["size"] or 0) if info["type"] == "file" else None

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object, or None if it does not exist."""
        try:
            return self._repeat(lambda: self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, patience: float | None = None) -> None:
        """Writes an object completely or not at all. For `patience`, see the class."""
        self._repeat(lambda: self._pipe(name, content), patience)

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object if it does not exist, and returns whether the object has the content now.

        Returns True also if the object existed with the same content, because a repeated request may meet its
        own object.

        Google Cloud Storage, S3 and a local disk check this atomically. Any other store is only asked before,
        so the caller has to read the object again.
        """
        try:
            self._repeat(lambda: self._pipe(name, content, mode="create"))
        except FileExistsError:
            return self.read(name) == content  # a repeated request may meet its own object
        return True

    def upload(self, files: Mapping[str, str]) -> int:
        """Writes {name: path of a local file}, several at a time. Returns their bytes."""
        return sum(self._each(self._upload_file, files.items()))

    def download(self, files: Mapping[str, str]) -> None:
        """Reads {name: path of the local file to write}, several at a time. Each file is whole or absent.

        Raises:
          FileNotFoundError: if an object does not exist.
        """
        for folder in {os.path.dirname(path) for path in files.values()}:
            os.makedirs(folder, exist_ok=True)
        self._each(self._download_file, files.items())

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects. Skips those that do not exist."""

        def remove(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._repeat(lambda: self._files.rm_file(self._path(name)))

        self._each(remove, names)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Returns the bytes of an object from `start` up to `end`, or fewer at its end."""
        content: bytes = self._repeat(lambda: self._files.cat_file(self._path(name), start=start, end=end))
        return content

    def _upload_file(self, item: tuple[str, str]) -> int:
        name, path = item
        size = os.path.getsize(path)
        if size >= SMALL_BYTES:
            self._make_parent(name)
            self._repeat(lambda: self._files.put_file(path, self._path(name)))
            return size
        with open(path, "rb") as file:
            content = file.read()
        self.write(name, content)
        return len(content)

    def _download_file(self, item: tuple[str, str]) -> None:
        name, path = item
        temporary = f"{path}.{uuid.uuid4().hex[:12]}.tmp"  # `tfm.io.files.remove_temporary` finds it
        try:
            self._repeat(lambda: self._files.get_file(self._path(name), temporary))
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _pipe(self, name: str, content: bytes, **options: Any) -> None:
        self._make_parent(name)
        if content.endswith(b"\r") and "gs" in _protocols(self._files):
            # gcsfs sends a small object between lines of a multipart body, where a carriage return at its end
            # can be read as a part of the next line. An object that is sent in chunks stays whole.
            options["chunksize"] = len(content)
        if "file" in _protocols(self._files) and options.get("mode") == "create":
            # fsspec only asks whether the file exists, so two processes could both write it.
            with self._files.open(self._path(name), "xb") as file:
                file.write(content)
            return
        self._files.pipe_file(self._path(name), content, **options)

    def _make_parent(self, name: str) -> None:
        """Makes the folder of an object in a local store, the only store whose folders must exist."""
        if "file" in _protocols(self._files):
            self._files.makedirs(os.path.dirname(self._path(name)), exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _each(self, action: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """Calls an action for each item in several threads, and raises the first error."""
        with ThreadPoolExecutor(THREADS, "store") as pool:
            return list(pool.map(action, items))

    def _repeat(self, request: Callable[[], T], patience: float | None = None) -> T:
        """Returns the result of a request. Repeats it with growing pauses while the store fails."""
        limit = self.patience if patience is None else patience
        began, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                return request()
            except (FileNotFoundError, FileExistsError, UserError):
                raise
            except Exception as error:
                if getattr(error, "errno", None) in LOCAL_CODES:
                    raise
                reason = (
                    f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
                )
                if isinstance(error, PERMANENT_ERRORS) or _is_refused(error):
                    raise UserError(
                        f"Cannot read or write {self.url}: {reason}. Check the URL, the "
                        "credentials in the environment and their permissions."
                    ) from None
                if time.monotonic() - began + pause > limit:
                    raise UserError(
                        f"Cannot read or write {self.url} for {limit:.0f} seconds ({reason}). Check the "
                        "network and the store, and start the same command again."
                    ) from None
                if pause == FIRST_PAUSE:
                    log.info("%s does not answer (%s): trying again for %.0f s", self.url, reason, limit)
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_PAUSE)


def _is_refused(error: Exception) -> bool:
    """Returns whether an error of a library says that the request is wrong, not that the store failed."""
    code = getattr(error, "code", None) or getattr(error, "status", None)
    is_refused = isinstance(code, int) and 400 <= code < 500 and code not in REPEATED_CODES
    return is_refused or PERMANENT_NAMES.search(type(error).__name__) is not None


def open_file_system(url: str) -> tuple[Any, str]:
    """Returns the file system of fsspec for a URL, and the path of the URL in it.

    Raises:
      UserError: if the protocol is unknown, or its package is not installed.
    """
    protocol = url.partition("://")[0].lower()
    extra = EXTRAS.get(protocol)
    advice = install_extra(extra) if extra else "install the package that reads this protocol"
    try:
        fsspec = importlib.import_module("fsspec.core")
        options: dict[str, Any] = {}
        if extra == "gcs":
            aiohttp = importlib.import_module("aiohttp")
            options["requests_timeout"] = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
            )
        if extra == "s3":
            options["config_kwargs"] = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        return fsspec.url_to_fs(url, **options)
    except ImportError as error:
        raise UserError(
            f"{protocol}:// needs a package that is missing ({first_line(error)}): {advice}."
        ) from None
    except ValueError as error:
        raise UserError(f"{url} cannot be opened: {first_line(error)}. Check the URL.") from None


def _protocols(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class RemoteFile(io.RawIOBase):
    """An object that is read by ranges.

    Args:
      folder: its folder.
      name: its name there.
      size: its bytes.
    """

    def __init__(self, folder: RemoteFolder, name: str, size: int):
        self._folder, self._name, self._size, self._position = folder, name, size, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads the next range."""
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content = self._folder.read_range(self._name, self._position, end)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


# Folders of data: local folders with an empty file of the right size for each object.


_objects: dict[str, tuple[RemoteFolder, str, int]] = {}


@functools.cache
def list_locally(url: str) -> str:
    """Returns a local folder that has the names and sizes of the objects below a URL, until the process ends.

    Its files contain only zeros. `open_object` reads the content of the objects. The folder does not exist if
    there are no objects.

    Raises:
      UserError: if `RemoteFolder` raises it, or the name of an object would lead out of the folder.
    """
    folder = RemoteFolder(url)
    base = tempfile.TemporaryDirectory(prefix="tfm-data-", ignore_cleanup_errors=True)
    atexit.register(base.cleanup)
    root = os.path.join(os.path.realpath(base.name), os.path.basename(folder.url))
    show_as(root, folder.url)
    for name, size in folder.sizes().items():
        check_name(name, url)
        path = os.path.join(root, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.truncate(size)
        _objects[path] = folder, name, size
    return root


def open_object(path: str) -> io.RawIOBase | None:
    """Opens the object of a file below `list_locally`. Returns None for other files."""
    return RemoteFile(*_objects[path]) if path in _objects else None
