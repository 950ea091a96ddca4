"""The right of one process at a time to train in a folder of a store."""

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tfm.errors import UserError
from tfm.io.remote import RemoteFolder

OWNER_FOLDER = ".owner"
OWNER_NAME = re.compile(rf"{re.escape(OWNER_FOLDER)}/([0-9]+)\.json")
BEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0  # without a sign of life, after which an owner on another machine counts as killed
CONFIRM_SECONDS = 1.0  # in which two processes may both write the first object of an owner
POLL_SECONDS = 1.0  # between two looks for a sign of life
log = logging.getLogger(__name__)


class Owner:
    """The right of one process at a time to train in a folder of a store.

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
        """Becomes the owner, and starts the thread that writes signs of life.

        Waits up to `SILENT_SECONDS` if the last owner has not released the folder, see the class.

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
    return generation, parse_record(remote.read(_owner_name(generation)) if generation else None)


def parse_record(content: bytes | None) -> dict[str, Any]:
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
