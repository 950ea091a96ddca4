"""Tests of the downloads of TFDS data sets: failures, signals, silent servers and damaged files."""

import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types

import pytest

from tests.support.io_conditions import files_of
from tests.support.paths import ROOT
from tests.support.processes import LIMIT, wait_until
from tests.support.tfds_sets import config_of
from tfm.data.sources import opening as sources
from tfm.data.sources import tfds, tfds_download
from tfm.errors import UserError


@contextlib.contextmanager
def server(answers, monkeypatch):
    """Runs a web server that returns `answers[path]`, or else the status 503. Yields the requested paths."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = answers.get(self.path)
            self.send_response(503 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("TFM_TEST_SERVER", f"http://127.0.0.1:{made.server_port}")
        try:
            yield asked
        finally:
            made.shutdown()
            thread.join()


def test_names_are_checked_before_a_download(tmp_path, monkeypatch):
    """One error lists all wrong names. There is no server, so a download would fail."""
    monkeypatch.setenv("TFM_TEST_SERVER", "http://127.0.0.1:1")
    config = config_of(tmp_path / "new", target_language="fr", train="trian", validation="validation[:x]")
    with pytest.raises(UserError) as error:
        sources.check_splits(config)
    for problem in (
        "There are 3 problems with the data",
        "'fr'; it has de, en",
        "'trian'; it has train, validation",
        "has no split 'validation[:x]'",
    ):
        assert problem in str(error.value)
    assert not (tmp_path / "new").exists()


def test_splits_and_features_of_real_data_sets_are_checked_before_a_download(tmp_path):
    config = config_of(tmp_path / "new", name="wmt14_translate/de-en", test="newstest", train="train[:1%]")
    with pytest.raises(UserError, match=r"'newstest'.* train, validation, test"):
        sources.check_splits(config)
    config = config_of(tmp_path / "new", name="mnist", source_language="image", target_language="label")
    with pytest.raises(UserError, match=r"\(1\) The feature 'image' of mnist.* is not text.*\(2\).*'label'"):
        sources.check_splits(config)
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_complete_downloads_are_reused_after_a_failure(tmp_path, monkeypatch):
    """Incomplete files are deleted. The files that the folder had before are kept."""
    (tmp_path / "mine").write_text("text")
    answers = {"/first": b"content"}
    with server(answers, monkeypatch) as asked:
        with pytest.raises(UserError, match=r"'downloaded' could not be prepared in .*RetryError.*/second"):
            sources.check_splits(config_of(tmp_path))
        assert asked.count("/second") == tfds_download.RETRIES + 1
        assert len(files_of(tmp_path)) == 3  # the download, its .INFO, and the user's file
        assert {path.name for path in tmp_path.iterdir()} == {"mine", "downloads"}
        answers |= {"/second": b"content"}
        asked.clear()
        sources.check_splits(config_of(tmp_path))
        assert asked == ["/second"]
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "downloads", "downloaded"}
    assert len(sources.open_pairs(config_of(tmp_path), "train")) == 6  # the server has stopped


@pytest.mark.long
def test_failed_connection_leaves_no_files(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # the socket does not listen
        monkeypatch.setenv("TFM_TEST_SERVER", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(UserError, match=r"could not be prepared in .*ConnectionError.*data\.directory"):
            sources.check_splits(config_of(tmp_path / "a"))
    assert files_of(tmp_path) == {}


FILE_USES = {  # how the code of data sets names its files
    "download": lambda manager: manager.download({"a": "http://a"})["a"] / "b",
    "extract": lambda manager: manager.extract("a") / "b",
    "download and extract": lambda manager: manager.download_and_extract(["http://a"])[0] / "b",
    "archive": lambda manager: list(manager.iter_archive(manager.download("http://a"))),
    "folder of downloads": lambda manager: manager.download_dir / "b",
    "folder of the user": lambda manager: manager.manual_dir / "b",
}


@pytest.mark.parametrize("name", FILE_USES)
def test_splits_are_known_before_the_files_exist(name):
    def generators(manager):
        FILE_USES[name](manager)
        return {"train": None}

    info = types.SimpleNamespace(splits={}, full_name="set")
    builder = types.SimpleNamespace(info=info, _split_generators=generators)
    (problem,) = tfds.split_problems(builder, ["train", "test"])
    assert "'test'; it has train" in problem


UNGUARDED = """
from tests.support.tfds_sets import config_of
from tfm.data.sources.opening import open_pairs
print(len(open_pairs(config_of(sys.argv[1], name="tiny_translate"), "train")))
"""
WAITING = """
import sys
from tests.support.tfds_sets import config_of
from tfm.data.sources.opening import check_splits
from tfm.io.signals import handle_signals
with handle_signals():
    check_splits(config_of(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_end_a_download_at_once(tmp_path, number):
    """The server accepts a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {"TFM_TEST_SERVER": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = [sys.executable, "-c", WAITING, str(tmp_path / "new")]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        silent.settimeout(LIMIT)
        connection, _ = silent.accept()
        process.send_signal(number)
        code = process.wait(timeout=tfds_download.SILENT_SECONDS / 2)
        process.stderr.close()
        with connection:
            connection.settimeout(tfds_download.SILENT_SECONDS / 2)
            while connection.recv(1000):  # until the downloading process closes the connection
                pass
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    # After a SIGKILL, the downloading process deletes its files. It is no child of this process.
    wait_until(lambda: not list((tmp_path / "new").iterdir()), "the folder is empty")


@pytest.mark.long
def test_script_without_a_main_guard_runs_once(tmp_path):
    (tmp_path / "script.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\nprint('run'){UNGUARDED}"
    )
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, timeout=LIMIT, check=True)
    assert result.stdout.split() == [b"run", b"6"]


def test_request_to_a_silent_server_times_out(monkeypatch, tmp_path):
    """By default, the package requests waits forever."""
    import requests
    from tensorflow_datasets.core.download import downloader

    for module, name in ((requests.adapters.HTTPAdapter, "send"), (downloader, "MAX_RETRIES")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(tfds_download, "SILENT_SECONDS", 0.05)
    before = socket.getdefaulttimeout()
    try:
        tfds_download.bound_requests()
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(requests.ReadTimeout),
        ):
            requests.get(f"http://127.0.0.1:{silent.getsockname()[1]}/x")  # TFDS sets no timeout either
    finally:
        socket.setdefaulttimeout(before)


@pytest.mark.long
@pytest.mark.parametrize("damage", ["half", "empty", "missing", "info", "no info"])
def test_damaged_data_set_error_asks_to_delete_the_folder(tmp_path, damage, prepared_set):
    shutil.copytree(prepared_set, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "tiny_translate" / "1.0.0"
    (records_file,) = folder.glob("*train*")
    info = folder / "dataset_info.json"
    {
        "half": lambda: os.truncate(records_file, 65536),
        "empty": lambda: records_file.write_bytes(b""),
        "missing": records_file.unlink,
        "info": lambda: info.write_text("{"),
        "no info": info.unlink,
    }[damage]()
    with pytest.raises(UserError, match=r"damaged.*delete (that|their) folder"):
        sources.open_pairs(config_of(tmp_path, name="tiny_translate"), "train")[:]


@pytest.fixture(scope="module")
def prepared_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    sources.open_pairs(config_of(folder, name="tiny_translate"), "train")
    return folder


@pytest.mark.long
def test_data_set_in_another_file_format_is_an_error(tmp_path, prepared_set):
    shutil.copytree(prepared_set, tmp_path, dirs_exist_ok=True)
    info = tmp_path / "tiny_translate" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"tiny_translate.*another format than array_record"):
        tfds.find_builder("tiny_translate", str(tmp_path))
