"""Downloads of TFDS data sets in another process, because TFDS cannot be interrupted within its own.

TFDS retries a connection for minutes, and its download threads delay the end of their process. The other
process runs this module and writes the reason of a failure to its standard output.
"""

import contextlib
import glob
import importlib
import importlib.util
import io
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Any

from tfm.errors import UserError

RETRIES = 2  # of a connection, 0.4 and 0.8 seconds apart
CONNECT_SECONDS = 10  # for a server to accept a connection
SILENT_SECONDS = 60  # without a byte from a server
MAX_REASON_CHARACTERS = 400
log = logging.getLogger(__name__)


def download(name: str, module: str, root: str, folder: str) -> None:
    """Writes the array_record files of a data set into `folder`. The folder appears when it is complete.

    An attempt that fails or is interrupted leaves `root` and complete downloads, for the next attempt.
    Several processes may download the same data set.

    Args:
      name: name of the data set.
      module: name of the module that defines the data set. The other process imports it.
      root: TFDS's data_dir. It may not exist yet.
      folder: folder of the data set, below `root`.

    Raises:
      UserError: if the data set could not be downloaded or written.
      OSError: if `root` cannot be written.
    """
    os.makedirs(root, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="preparing-", dir=root) as temporary:
        downloads, own_downloads = (os.path.join(parent, "downloads") for parent in (root, temporary))
        _link_downloads(downloads, own_downloads)
        log.info("Downloading and preparing the data set %s in %s", name, folder)
        try:
            reason = _run_in_child(name, module, root, temporary)
        finally:
            _link_downloads(own_downloads, downloads)
        if reason:
            raise UserError(
                f"The data set '{name}' could not be prepared in {folder} ({reason}). Check the network and "
                "the disk, or prepare it elsewhere and set data.directory."
            )
        _move_data_set(os.path.join(temporary, os.path.relpath(folder, root)), folder)


def _link_downloads(source: str, target: str) -> None:
    """Links complete downloads into another folder. TFDS writes an .INFO file for each complete download."""
    for info in glob.iglob(os.path.join(glob.escape(source), "**", "*.INFO"), recursive=True):
        for path in (info.removesuffix(".INFO"), info):
            link = os.path.join(target, os.path.relpath(path, source))
            with contextlib.suppress(OSError):  # without the link, TFDS downloads the file again
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.link(path, link)


def _move_data_set(written: str, folder: str) -> None:
    """Moves a data set to its place, unless another process was faster."""
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    settings = os.path.join(os.path.dirname(os.path.dirname(written)), ".config")  # names the default config
    with contextlib.suppress(OSError):
        os.rename(settings, os.path.join(os.path.dirname(parent), ".config"))
    try:
        os.rename(written, folder)
    except OSError:
        if not os.path.isdir(folder):
            raise


def _run_in_child(*arguments: str) -> str:
    """Runs `_prepare` in a new process, and kills the process when this function ends in any way.

    Returns:
      The reason if the process failed, otherwise "".
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.PIPE,  # the end of this stream signals the end of this process
        stdout=subprocess.PIPE,
        stderr=None if sys.stderr.isatty() else subprocess.DEVNULL,  # progress is for a terminal
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,  # at a terminal, Ctrl-C would reach both processes
    )
    with process:
        try:
            assert process.stdout
            reason, code = process.stdout.read().decode(), process.wait()
        finally:
            process.kill()
    return reason or (f"the process that prepares it ended with code {code}" if code else "")


def _end_with_parent(temporary: str) -> None:
    """Waits until the parent has ended, for example by SIGKILL, deletes the temporary folder and exits."""
    sys.stdin.read()
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(1)


def _prepare(name: str, module: str, root: str, temporary: str) -> None:
    """Downloads and prepares a data set in the folder `temporary`. Changes TFDS for the whole process."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    logging.disable(logging.WARNING)
    bound_requests()
    _replace_tensorflow(importlib.import_module(module))
    builder = tfds.builder(name, data_dir=temporary, file_format="array_record")
    builder.download_and_prepare(
        file_format="array_record",
        download_dir=os.path.join(temporary, "downloads"),
        download_config=tfds.download.DownloadConfig(
            extract_dir=os.path.join(temporary, "extracted"),
            manual_dir=os.path.join(root, "downloads", "manual"),
            try_download_gcs=False,
        ),
    )


def bound_requests() -> None:
    """Limits how long any request and any new socket of this process waits for a connection or the next byte.

    It also limits how often TFDS tries again. A download may take longer in total.
    """
    import requests
    from tensorflow_datasets.core.download import downloader

    send = requests.adapters.HTTPAdapter.send

    def send_bounded(self, request, **options):
        options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, SILENT_SECONDS)
        return send(self, request, **options)

    requests.adapters.HTTPAdapter.send = send_bounded
    downloader.MAX_RETRIES = RETRIES
    socket.setdefaulttimeout(SILENT_SECONDS)


def _replace_tensorflow(module: Any) -> None:
    """Lets TFDS encode arrays as images and read files if TensorFlow is not installed.

    MNIST and CIFAR-10 need TensorFlow for nothing else.

    Args:
      module: the module that defines the data set.
    """
    if importlib.util.find_spec("tensorflow"):
        return
    from PIL import Image
    from tensorflow_datasets.core.features import image_feature

    def encode(self, array):
        image_feature._validate_np_array(array, shape=self.shape, dtype=self.np_dtype)
        file = io.BytesIO()
        pixels = array[..., 0] if array.shape[-1] == 1 else array
        Image.fromarray(pixels).save(file, self.encoding_format or "png", quality=95)
        return file.getvalue()

    image_feature._ImageEncoder._encode_image = encode
    if hasattr(module, "tf"):
        gfile = types.SimpleNamespace(GFile=open)
        module.tf = types.SimpleNamespace(io=types.SimpleNamespace(gfile=gfile))


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, args=sys.argv[-1:], daemon=True).start()
    reason = ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            _prepare(*sys.argv[1:])
    except Exception as error:  # the code of a data set may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_REASON_CHARACTERS]
    print(reason, end="", flush=True)
    os._exit(0)  # download threads may still run
