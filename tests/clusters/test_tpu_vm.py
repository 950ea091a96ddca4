"""Tests of clusters/tpu_vm.sh. A small program replaces gcloud."""

import shlex
import subprocess

import pytest

from tests.support.clusters import RECORD, calls_in, install, parse_train, run
from tests.support.processes import LIMIT

# A request creates the TPU unless the file "none_left" exists. Training ends as the next word of "trainings"
# says: done, error, or preempted, which also deletes the TPU.
GCLOUD = (
    RECORD
    + """
    import pathlib
    tpu, trainings = pathlib.Path("tpu"), pathlib.Path("trainings")
    if "create" in sys.argv and not pathlib.Path("none_left").exists():
        tpu.touch()
    elif "describe" in sys.argv and "queued-resources" in sys.argv:
        print("FAILED")
    elif "describe" in sys.argv and "tpu-vm" in sys.argv:
        print("READY" if tpu.exists() else "PREEMPTED")
    elif "tfm train" in sys.argv[-1]:
        outcome, *rest = trainings.read_text().split()
        trainings.write_text(" ".join(rest))
        if outcome == "preempted":
            tpu.unlink()
        sys.exit(outcome != "done")
"""
)


def train_on_tpu(folder, trainings, **variables):
    """Returns exit code, standard error and calls of `tpu_vm.sh train`. `trainings` lists the outcomes."""
    install(folder, "gcloud", GCLOUD)
    (folder / "trainings").write_text(trainings)
    defaults = {"NFS": "10.0.0.2:/share", "SECONDS_BETWEEN": "0", "NAME": "mine", "ZONE": "us-west4-a"}
    code, errors = run("tpu_vm.sh", folder, "train", **defaults | variables)
    return code, errors, calls_in(folder)


def names_of(calls):
    """Returns the action of each call, without queries of the state."""
    remote = ("ssh", "scp")
    verbs = [call[3] for call in calls]
    found = [
        "train" if verb in remote and "tfm train" in call[-1] else verb
        for verb, call in zip(verbs, calls, strict=True)
    ]
    return [name for name in found if name != "describe"]


PREPARE = ["scp", "ssh"]
CREATE = ["delete", "create", *PREPARE]


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainings", "code", "expected"),
    [
        ("done", 0, [*CREATE, "train"]),
        ("preempted preempted done", 0, [*CREATE, "train", *CREATE, "train", *CREATE, "train"]),
        ("error done", 0, [*CREATE, "train", "train"]),
        ("error preempted error done", 1, [*CREATE, "train", "train", *CREATE, "train"]),
    ],
)
def test_training_on_a_tpu_vm_continues_after_a_preemption(trainings, code, expected, tmp_path):
    found, errors, calls = train_on_tpu(tmp_path, trainings, RETRIES="1")
    assert (found, names_of(calls)) == (code, expected), errors
    assert ("training failed 2 times" in errors) == bool(code)
    assert all("--zone=us-west4-a" in call and "mine" in " ".join(call) for call in calls)


def test_existing_tpu_vm_is_used(tmp_path):
    (tmp_path / "tpu").touch()
    code, _, calls = train_on_tpu(tmp_path, "done")
    assert (code, names_of(calls)) == (0, [*PREPARE, "train"])


def test_failed_request_for_a_tpu_vm_is_an_error(tmp_path):
    (tmp_path / "none_left").touch()
    code, errors, calls = train_on_tpu(tmp_path, "done")
    assert (code, names_of(calls)) == (1, ["delete", "create"])
    assert "the request for the TPU failed" in errors


def test_all_hosts_of_a_tpu_vm_run_the_same_command(tmp_path):
    _, _, calls = train_on_tpu(tmp_path, "done", CONFIG="wmt14:large_batch")
    remote = [call for call in calls if call[3] == "ssh"]
    assert len(remote) == 2
    assert all("--worker=all" in call for call in remote)
    prepare, command = (call[-1].removeprefix("--command=") for call in remote)
    subprocess.run(["bash", "-n", "-c", prepare], check=True, timeout=LIMIT)
    assert "mount -t nfs 10.0.0.2:/share /mnt/tfm" in prepare
    assert "install -q ./tfm-0.1.0-py3-none-any.whl[tpu]" in " ".join(shlex.split(prepare))
    cache, program, name, *arguments = shlex.split(command)
    assert cache == "XDG_CACHE_HOME=/mnt/tfm/cache"
    assert (program, name) == ("tfm-venv/bin/tfm", "train")
    values = parse_train(arguments)
    assert values.workdir == "/mnt/tfm/runs/mine"
    assert values.distributed
    assert values.config.training.parallel == "mesh"
    (created,) = (call for call in calls if call[3] == "create")
    assert "--spot" in created
    assert "--node-id=mine" in created


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [(["train"], {}, "Expected NFS=HOST:/SHARE"), (["traim"], {"NFS": "x:/y"}, "create|train|delete")],
)
def test_invalid_arguments_end_the_script_before_any_call(arguments, variables, error, tmp_path):
    install(tmp_path, "gcloud", GCLOUD)
    code, errors = run("tpu_vm.sh", tmp_path, *arguments, **variables)
    assert code == 2
    assert error in errors
    assert not calls_in(tmp_path)
