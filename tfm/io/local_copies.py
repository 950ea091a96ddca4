"""The local folders that stand for a URL, and the URLs that messages show instead of them."""

import contextlib
import os
from collections.abc import Iterator
from typing import Protocol


class WorkingCopy(Protocol):
    """A local folder that stands for a URL, see `tfm.workdir.mirror`. All names are below the folder."""

    url: str

    def fetch(self, name: str) -> None:
        """Downloads what the copy does not have yet below a folder."""

    def share(self) -> None:
        """Uploads the small files for the other hosts."""

    def refresh(self) -> None:
        """Downloads the small files that the first host shares."""

    def send_part(self, name: str) -> None:
        """Uploads the part that this host wrote of an unfinished checkpoint, and removes it here."""

    def receive_parts(self, name: str) -> None:
        """Downloads the parts that the other hosts wrote of an unfinished checkpoint."""


_copies: dict[str, WorkingCopy] = {}  # by their folders
_urls: dict[str, str] = {}  # {local folder: URL that messages show instead}


@contextlib.contextmanager
def registered(folder: str, copy: WorkingCopy) -> Iterator[None]:
    """A context in which the absolute path of a folder leads to a working copy."""
    _copies[folder] = copy
    show_as(folder, copy.url)
    try:
        yield
    finally:
        del _copies[folder]


def find_copy(path: str) -> tuple[WorkingCopy | None, str]:
    """Returns the working copy that contains a path, and the name in it. (None, "") for other paths."""
    for folder, copy in _copies.items():
        if path == folder or path.startswith(folder + os.sep):
            return copy, os.path.relpath(path, folder)
    return None, ""


def fetch(path: str) -> None:
    """Downloads what a working copy does not have yet below a path. Does nothing for other folders."""
    copy, name = find_copy(path)
    if copy is not None:
        copy.fetch(name)


def share(folder: str) -> None:
    """Uploads the small files of a working copy for the other hosts. Does nothing for other folders."""
    copy, _ = find_copy(folder)
    if copy is not None:
        copy.share()


def refresh(folder: str) -> None:
    """Downloads the small files of a working copy that the first host shares, see `share`."""
    copy, _ = find_copy(folder)
    if copy is not None:
        copy.refresh()


def show_as(folder: str, url: str) -> None:
    """Makes `show` replace a folder by the URL that it stands for."""
    _urls[folder] = url


def show(text: str) -> str:
    """Returns a text in which URLs replace the folders of working copies, also of closed ones."""
    for folder, url in _urls.items():
        text = text.replace(folder, url)
    return text
