"""Tests of working copies of stores, on folders with the protocol file://."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from tests.support.processes import LIMIT, run_python
from tests.support.workdirs import make_workdir
from tfm.checkpoints import manifest
from tfm.commands import list as list_runs
from tfm.commands import status, train
from tfm.commands.config_files import read_config_file
from tfm.errors import UserError
from tfm.io import local_copies, remote
from tfm.io.remote import RemoteFolder
from tfm.workdir import mirror, owner, runs, working_copies


@pytest.fixture(autouse=True)
def fast(tmp_path, monkeypatch):
    """Shortens all pauses, and puts working copies below `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(owner, "CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(owner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(working_copies, "POLL_SECONDS", 0.01)


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store/run"


def write_step(folder, step, content="values"):
    """Writes a checkpoint of two files."""
    path = folder / "checkpoints" / str(step)
    (path / "d").mkdir(parents=True)
    (path / "d" / "array").write_text(f"{content} {step}")
    (path / "_METADATA").write_text("{}")
    manifest.write(str(path), {"step": step})


def add_step(folder, step, tmp_path):
    """Writes a checkpoint and renames it into a folder, as Orbax does."""
    write_step(tmp_path / "new", step)
    os.makedirs(os.path.join(folder, "checkpoints"), exist_ok=True)
    os.rename(tmp_path / "new" / "checkpoints" / str(step), os.path.join(folder, "checkpoints", str(step)))


def objects(url):
    return sorted(name for name in RemoteFolder(url).sizes() if not name.startswith(owner.OWNER_FOLDER))


def open_copy(url, folder):
    """Returns an empty working copy in a folder."""
    folder.mkdir(parents=True)
    return mirror.Mirror(RemoteFolder(url), str(folder))


STEP_FILES = ("_METADATA", "d/array", "manifest")


def test_files_and_checkpoints_are_uploaded_and_removed_with_their_local_files(url, tmp_path):
    copy = open_copy(url, tmp_path / "copy")
    for step in (1, 2):
        write_step(tmp_path / "copy", step)
    for name in ("metrics.jsonl", "lock", "compiled/x", "checkpoints/3.orbax-checkpoint-tmp/d"):
        path = tmp_path / "copy" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("one")
    assert copy.push() > 0
    steps = [f"checkpoints/{step}/{name}" for step in (1, 2) for name in STEP_FILES]
    assert objects(url) == [*steps, "metrics.jsonl"]
    assert copy.push() == 0

    os.rename(tmp_path / "copy" / "checkpoints" / "1", tmp_path / "copy" / "checkpoints" / "1.deleted")
    (tmp_path / "copy" / "metrics.jsonl").write_text("longer")
    assert copy.push() == len("longer")
    assert objects(url) == [*steps[len(STEP_FILES) :], "metrics.jsonl"]


def test_manifest_is_uploaded_after_the_files_that_it_lists(url, tmp_path, monkeypatch):
    copy, names = open_copy(url, tmp_path / "copy"), []
    write_step(tmp_path / "copy", 1)
    upload = RemoteFolder.upload
    monkeypatch.setattr(
        RemoteFolder, "upload", lambda self, files: (names.append(sorted(files)), upload(self, files))[1]
    )
    copy.push()
    assert [each for each in names if each] == [
        ["checkpoints/1/_METADATA", "checkpoints/1/d/array"],
        ["checkpoints/1/manifest"],
    ]


def test_start_reads_manifests_and_a_checkpoint_when_it_is_opened(url, tmp_path):
    first = open_copy(url, tmp_path / "first")
    for step in (1, 2):
        write_step(tmp_path / "first", step)
    (tmp_path / "first" / "config.json").write_text("{}")
    first.push()
    with working_copies.open_to_read(url) as folder:
        steps = os.path.join(folder, "checkpoints")
        assert os.listdir(os.path.join(steps, "1")) == [manifest.FILE]
        local_copies.fetch(os.path.join(steps, "2"))
        assert manifest.check(os.path.join(steps, "2"))["step"] == 2
        assert os.listdir(os.path.join(steps, "1")) == [manifest.FILE]
    assert not os.path.exists(folder)


def test_checkpoint_that_training_deletes_meanwhile_is_no_damage(url, tmp_path):
    first = open_copy(url, tmp_path / "first")
    write_step(tmp_path / "first", 1)
    first.push()
    with working_copies.open_to_read(url) as folder:
        RemoteFolder(url).remove([f"checkpoints/1/{name}" for name in STEP_FILES])
        path = os.path.join(folder, "checkpoints", "1")
        with pytest.raises(FileNotFoundError):
            local_copies.fetch(path)
        assert not os.path.exists(path)


def test_start_removes_checkpoints_without_a_manifest(url, tmp_path):
    first = open_copy(url, tmp_path / "first")
    for step in (1, 2):
        write_step(tmp_path / "first", step)
    first.push()
    RemoteFolder(url).remove(["checkpoints/2/manifest"])
    with working_copies.open_to_train(url) as (folder, _):
        assert os.listdir(os.path.join(folder, "checkpoints")) == ["1"]
        assert objects(url) == [f"checkpoints/1/{name}" for name in STEP_FILES]


def test_checkpoints_are_uploaded_while_the_run_trains(url, tmp_path):
    with working_copies.open_to_train(url) as (folder, check):
        add_step(folder, 1, tmp_path)
        deadline = time.monotonic() + 10
        while not objects(url) and time.monotonic() < deadline:
            time.sleep(0.01)
        check()
    assert objects(url) == [f"checkpoints/1/{name}" for name in STEP_FILES]


def test_second_run_in_a_folder_is_refused_here_and_elsewhere(url, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.02)
    with working_copies.open_to_train(url):
        with pytest.raises(UserError, match=r"Another process is writing file://.*run"):
            working_copies.open_to_train(url).__enter__()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(UserError, match=rf"is in use by process {os.getpid()} on .* another --workdir"):
            working_copies.open_to_train(url).__enter__()
    with working_copies.open_to_train(url):
        pass


def test_killed_run_is_taken_over_after_its_silence_and_at_once_on_its_machine(url, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "SILENT_SECONDS", 0.05)
    killed = {"id": "1", "copy": "elsewhere", "host": "vm", "pid": 7, "since": "now", "beat": time.time()}
    RemoteFolder(url).write(f"{owner.OWNER_FOLDER}/4.json", json.dumps(killed).encode())
    began = time.monotonic()
    with working_copies.open_to_train(url):
        assert time.monotonic() - began > 0.05
        owners = [name for name in RemoteFolder(url).sizes() if name.startswith(owner.OWNER_FOLDER)]
        assert owners == [f"{owner.OWNER_FOLDER}/5.json"]
        ours = json.loads(RemoteFolder(url).read(owners[0]))
    RemoteFolder(url).write(owners[0], json.dumps(ours).encode())  # as a kill would leave it
    monkeypatch.setattr(owner, "SILENT_SECONDS", 1000.0)
    with working_copies.open_to_train(url):
        pass


def test_owner_that_was_taken_over_writes_no_checkpoint(url, tmp_path):
    def train_and_lose():
        with working_copies.open_to_train(url) as (folder, _):
            other = {"copy": "elsewhere", "host": "vm", "pid": 7, "since": "now"}
            RemoteFolder(url).write(f"{owner.OWNER_FOLDER}/2.json", json.dumps(other).encode())
            add_step(folder, 1, tmp_path)

    with pytest.raises(UserError, match=r"in use by process 7 on vm since now.*taken over"):
        train_and_lose()
    assert "checkpoints/1/manifest" not in objects(url)


def test_what_was_not_uploaded_is_uploaded_by_the_next_start_here(url, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise UserError("The store fails.")

    def train_without_a_store():
        with working_copies.open_to_train(url) as (folder, check), monkeypatch.context() as patch:
            patch.setattr(mirror.Mirror, "push", fail)
            add_step(folder, 1, tmp_path)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                check()
                time.sleep(0.01)

    with pytest.raises(UserError, match=r"The store fails\. Everything that the run has written is in"):
        train_without_a_store()
    assert not objects(url)
    with working_copies.open_to_train(url):
        pass
    assert objects(url) == [f"checkpoints/1/{name}" for name in STEP_FILES]


def test_copy_that_another_machine_has_overtaken_is_set_aside(url, tmp_path, monkeypatch, caplog):
    with working_copies.open_to_train(url) as (folder, _):
        here = os.path.join(folder, "scores.jsonl")
        pathlib.Path(here).write_text("old")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        with working_copies.open_to_train(url) as (other, _):
            pathlib.Path(other, "scores.jsonl").write_text("new")
    with open(here, "w", encoding="utf-8") as file:
        file.write("not uploaded")
    with working_copies.open_to_train(url), open(here, encoding="utf-8") as file:
        assert file.read() == "new"
    assert "Another machine has trained" in caplog.text
    aside = pathlib.Path(os.path.dirname(folder), "superseded", "scores.jsonl")
    assert aside.read_text() == "not uploaded"


def test_status_and_list_show_sizes_and_the_owner_without_the_arrays(regression_run, url, capsys):
    copy = mirror.Mirror(RemoteFolder(url), str(regression_run))
    copy.push()
    record = {"copy": "elsewhere", "host": "vm", "pid": 7, "since": "now", "beat": time.time()}
    RemoteFolder(url).write(f"{owner.OWNER_FOLDER}/1.json", json.dumps(record).encode())
    status.main([url])
    there = capsys.readouterr().out
    assert f"run             {url} (" in there
    assert "training: process 7 on vm since now" in there
    list_runs.main([url.removesuffix("/run")])
    assert capsys.readouterr().out.splitlines()[1].split()[0] == url
    status.main([str(regression_run)])
    here = capsys.readouterr().out
    sizes = [line for line in here.splitlines() if line.startswith(("step", "checkpoints"))]
    assert sizes == [line for line in there.splitlines() if line.startswith(("step", "checkpoints"))]


def test_python_code_opens_a_url(regression_run, url):
    mirror.Mirror(RemoteFolder(url), str(regression_run)).push()
    there, here = runs.load(url, checkpoint="last"), runs.load(str(regression_run), checkpoint="last")
    assert there.steps == here.steps


def test_url_without_a_run_is_an_error_that_names_it(url):
    with pytest.raises(UserError) as error:
        status.main([url])
    assert f"Expected the folder of a run at {url}" in local_copies.show(str(error.value))


@pytest.mark.parametrize(
    "secret",
    ["s3://key:hunter2@bucket/run", "https://host/run?X-Amz-Signature=hunter2", "gs://b/r?token=hunter2"],
)
def test_url_with_credentials_is_refused_and_not_repeated(secret):
    with pytest.raises(UserError, match="URL without credentials") as error:
        train.main(["--config=quickstart", f"--workdir={secret}"])
    assert "hunter2" not in str(error.value)


def test_missing_package_is_named_with_its_extra(monkeypatch):
    def import_module(name):
        raise ImportError("Please install s3fs to access S3")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(UserError, match=r"s3:// needs a package .*install s3fs.*\[s3\]"):
        status.main(["s3://bucket/run"])


def test_object_whose_name_leads_out_of_the_folder_is_refused(url, monkeypatch):
    monkeypatch.setattr(RemoteFolder, "sizes", lambda self, folder="": {"../x": 1})
    with pytest.raises(UserError, match=r"'\.\./x'"):
        status.main([url])


def test_name_that_is_too_long_for_the_local_disk_is_not_tried_again(url, tmp_path, monkeypatch):
    """Stores permit names of 1,024 characters."""
    folder = RemoteFolder(url, patience=1)
    folder.write("a", b"")
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(OSError, match="name too long"):
        folder.download({"a": str(tmp_path / ("a" * 300))})
    assert not pauses


def test_requests_that_fail_are_repeated_until_the_patience_ends(url, caplog, monkeypatch):
    caplog.set_level("INFO")
    files, root = remote.open_file_system(url)
    failures = [TimeoutError(), ConnectionError("reset"), OSError(5, "503")]

    class Failing:
        protocol = ("file",)
        makedirs = staticmethod(files.makedirs)

        def pipe_file(self, *arguments, **options):
            if failures:
                raise failures.pop()
            return files.pipe_file(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "open_file_system", lambda url: (Failing(), root))
        there = RemoteFolder(url, patience=5.0)
    there.write("x", b"content")
    assert RemoteFolder(url).read("x") == b"content"
    assert caplog.text.count("trying again") == 1
    failures += [OSError(5, "503")] * 1000
    began = time.monotonic()
    with pytest.raises(UserError, match=rf"{url} for 0 seconds \(OSError: .*503\)"):
        there.write("x", b"other", patience=0.05)
    assert time.monotonic() - began < 1
    failures[:] = [PermissionError("Forbidden"), TimeoutError()]
    with pytest.raises(UserError, match=r"Forbidden.*credentials in the environment"):
        there.write("x", b"other")


def test_large_file_is_written_into_a_new_folder(url, tmp_path, monkeypatch):
    """`tfm export --output=file://...` failed if the parameters were uploaded first."""
    monkeypatch.setattr(remote, "SMALL_BYTES", 3)
    (tmp_path / "x").write_bytes(b"content")
    RemoteFolder(url).upload({"new/folder/x": str(tmp_path / "x")})
    assert RemoteFolder(url).read("new/folder/x") == b"content"


def test_only_one_of_several_processes_creates_an_object(url):
    folders, created = [RemoteFolder(url) for _ in range(8)], []
    threads = [
        threading.Thread(target=lambda i=i: created.append(folders[i].create("x", b"%d" % i)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]


def test_credentials_in_a_url_of_the_config_are_refused_before_the_config_is_written(tmp_path):
    secret = "--config.data.directory=s3://key:hunter2@bucket/data"
    with pytest.raises(UserError, match="URL without credentials"):
        train.main(["--config=wmt14", f"--workdir={tmp_path}/run", secret])
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_commands_on_local_folders_do_not_import_fsspec():
    code = "import sys, tfm.commands.train, tfm.commands.evaluate; print('fsspec' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert (result.stdout, result.returncode) == ("False\n", 0), result.stderr


OPEN = "import sys; from tfm.workdir import runs; print(runs.open_folder(sys.argv[1]).config.task)"


@pytest.mark.long
def test_python_that_reads_a_run_in_a_store_ends_without_an_error(url, tmp_path):
    """Python removed the temporary copy at the exit before the copy was closed, which raised an error."""
    run = make_workdir(tmp_path / "run")
    RemoteFolder(url).upload({"config.json": str(run / "config.json")})
    result = run_python("-c", f"from tests.support import tiny_regression; {OPEN}", url)
    assert (result.returncode, result.stderr.decode()) == (0, "")
    assert result.stdout.decode().strip() == runs.open_folder(str(run)).config.task


def test_config_of_a_run_in_a_store_is_a_config_file(url, tmp_path):
    run = make_workdir(tmp_path / "run")
    RemoteFolder(url).upload({"config.json": str(run / "config.json")})
    assert read_config_file(f"{url}/config.json") == read_config_file(str(run / "config.json"))
    with pytest.raises(UserError, match=r"local config file.*quickstart\.py.*Copy the file"):
        read_config_file("gs://bucket/configs/quickstart.py")
