"""A TFDS data set downloaded and written to disk by another process, so that it can be ended at any moment.

TFDS retries a connection for minutes, and its download threads delay the end of their process.
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
import threading
import types

from tfm.data.sources.tfds_preparation import write_data_set
from tfm.errors import UserError

RETRIES = 2  # of a connection, 0.4 and 0.8 seconds apart
CONNECT_SECONDS = 10  # for a server to accept a connection
SILENT_SECONDS = 60  # without a byte from it
LONGEST_REASON = 400  # characters of an error of TFDS that are shown
log = logging.getLogger(__name__)


def download(name: str, module: str, root: str, folder: str) -> None:
    """Writes the array_record files of a data set into `folder`. The folder appears when it is complete.

    An attempt that fails or is interrupted leaves complete downloads for the next attempt.

    Args:
      name: of the data set.
      module: that defines it; it is imported.
      root: TFDS's data_dir; made if absent.
      folder: of the data set, below `root`.

    Raises:
      UserError: it could not be downloaded or written.
      OSError: `root` cannot be written.
    """
    with write_data_set(root, folder) as temporary:
        try:
            _link_downloads(root, temporary)
            log.info("Downloading and preparing the data set %s in %s", name, folder)
            _run([name, module, root, temporary], folder)
        finally:
            _keep_downloads(root, temporary)


def _link_downloads(root, temporary):
    """Lets TFDS find the downloads of earlier attempts."""
    for path in _whole_downloads(root):
        link = os.path.join(temporary, os.path.relpath(path, root))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.abspath(path), link)


def _keep_downloads(root, temporary):
    """Moves new downloads that are whole into `root`."""
    for path in _whole_downloads(temporary):
        kept = os.path.join(root, os.path.relpath(path, temporary))
        with contextlib.suppress(OSError):  # the next attempt downloads them again
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            os.replace(path, kept)


def _whole_downloads(root):
    """Files, no links, that TFDS has downloaded whole: it has written an .INFO file for each of them."""
    for info in glob.iglob(os.path.join(glob.escape(root), "downloads", "**", "*.INFO"), recursive=True):
        path = info.removesuffix(".INFO")
        if os.path.isfile(path) and not os.path.islink(path):
            yield path
            yield info


def _run(arguments, folder):
    """Runs `_prepare` in another process and ends it however this function ends."""
    command = [sys.executable, "-P", "-m", "tfm.data.sources.tfds_download", *arguments]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # In a new session, so that Ctrl-C at a terminal reaches only this process. It ends the other process.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None  # a pipe
            answer = process.stdout.read()
            code = process.wait()
        finally:
            process.kill()
    if code or not answer:
        reason = answer.decode("utf-8") or f"the process that prepares it ended with code {code}"
        raise UserError(
            f"The data set '{arguments[0]}' could not be prepared in {folder} ({reason}); "
            "check the network and the disk, or prepare it elsewhere and set data.directory."
        )


def _main(name, module, root, temporary):
    """Prepares a data set below `temporary`; writes "done", or why it could not, for the starting process."""
    answer = os.dup(1)
    if not sys.stderr.isatty():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)  # progress is for a terminal
    threading.Thread(target=_end_with_parent, args=(root, temporary), daemon=True).start()
    code, reason = 0, "done"
    try:
        _prepare(name, module, root, temporary)
    except Exception as error:  # whatever a data set's own code raises
        text = " ".join(str(error).split())
        code, reason = 1, f"{type(error).__name__}: {text}"[:LONGEST_REASON]
    os.write(answer, reason.encode("utf-8", "replace"))
    os._exit(code)  # its threads may still download


def _prepare(name, module, root, temporary):
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    logging.disable(logging.WARNING)
    bound_requests()
    _replace_tensorflow(importlib.import_module(module))
    builder = tfds.builder(name, data_dir=temporary, file_format="array_record")
    downloads = os.path.join(temporary, "downloads")
    builder.download_and_prepare(
        file_format="array_record",
        download_dir=downloads,
        download_config=tfds.download.DownloadConfig(
            extract_dir=os.path.join(temporary, "extracted"),
            manual_dir=os.path.join(root, "downloads", "manual"),
            try_download_gcs=False,
        ),
    )


def bound_requests():
    """Sets limits to what TFDS does with requests and urllib; for a process that does nothing else."""
    import requests
    from tensorflow_datasets.core.download import downloader

    send = requests.adapters.HTTPAdapter.send

    def send_bounded(self, request, **options):
        options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, SILENT_SECONDS)
        return send(self, request, **options)

    requests.adapters.HTTPAdapter.send = send_bounded
    downloader.MAX_RETRIES = RETRIES
    socket.setdefaulttimeout(SILENT_SECONDS)


def _replace_tensorflow(module):
    """Lets TFDS encode arrays as images and read files where TensorFlow is not installed.

    MNIST and CIFAR-10 ask it for nothing else. For a process that does nothing else.

    Args:
      module: that defines the data set.
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


def _end_with_parent(root, temporary):
    """Ends this process when its parent has ended and thereby closed the other end of stdin."""
    sys.stdin.buffer.read()
    _keep_downloads(root, temporary)
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
