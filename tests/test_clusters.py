"""The templates for clusters: SLURM and gcloud by programs in their place, the manifest by its numbers."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
import yaml

from tests.helpers.paths import ROOT
from tests.helpers.processes import LIMIT, finish, wait_until
from tests.helpers.tiny import write_config_file
from tests.helpers.tiny_regression import make_config
from tfm.commands import cli, train
from tfm.training.reporting import read_metrics

CLUSTERS = ROOT / "clusters"
SCRIPTS = sorted(CLUSTERS.glob("*.sh"))
SAVED_AT_SIGTERM = 128 + signal.SIGTERM
TASKS = 2  # processes that the srun of the tests starts

SRUN = f"""
    import os, pathlib, subprocess, sys
    command = sys.argv[1:]
    while command[0].startswith("--"):
        command.pop(0)
    of_all = os.environ | {{"SLURM_NTASKS": "{TASKS}", "SLURM_STEP_NODELIST": "localhost"}}
    tasks = [
        subprocess.Popen(command, env=of_all | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
        for i in range({TASKS})
    ]
    pathlib.Path("tasks").write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
RECORD = """
    import json, sys
    with open("calls", "a") as file:
        print(json.dumps(sys.argv[1:]), file=file)
"""
# The TPU is there from the next request on, unless none is left. Training ends as the next word of
# "trainings" says: done, error, or preempted, which also takes the TPU away.
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


def install(folder, name, code):
    """Makes a program of Python code, to be found before any other of its name."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    path.chmod(0o755)


def start(script, folder, *arguments, **variables):
    """A process of a script in a folder, with the programs of `install` first on its path."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PATH": path} | variables
    command = ["bash", str(CLUSTERS / script), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def run(*arguments, **variables):
    """Exit code and standard error of a script."""
    process = start(*arguments, **variables)
    _, errors = finish(process)
    return process.returncode, errors


def calls_in(folder):
    """The calls of the programs that record them, each a list of arguments."""
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stdout) == (0, "")


def parse_train(arguments):
    """The flags of a `tfm train`, once its config is found to be good."""
    values, _ = cli.parse(train.__name__, arguments, train.define_flags)
    cli.read_config(values)
    return values


# SLURM


def free_job():
    """The number of a job for which JAX takes a port that is free: one of the last 4,096, by the number."""
    for job in range(4096):
        with socket.socket() as tried:
            try:
                tried.bind(("localhost", 65535 - 4095 + job))
            except OSError:
                continue
            return str(job)
    raise AssertionError("no port is free")


@pytest.mark.long
def test_a_slurm_job_is_queued_again_and_resumes(tmp_path):
    config = make_config(steps=40, eval_every=5, log_every=1, checkpoint_every=1000)
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    job = free_job()
    variables = {
        "CONFIG": str(write_config_file(tmp_path, config)),
        "WORKDIR": str(tmp_path / "run"),
        "TFM": f"{sys.executable} -m tfm",
        "SLURM_JOB_ID": job,
    }
    arguments = ("slurm.sh", tmp_path, "--config.data.pause=0.3")  # 2.4 s of evaluations at least
    process = start(*arguments, **variables)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"step": 6' in metrics.read_text(), "step 6", process)
    for task in (tmp_path / "tasks").read_text().split():  # as --signal=TERM@180 does, each once
        os.kill(int(task), signal.SIGTERM)
    _, errors = finish(process)
    assert process.returncode == SAVED_AT_SIGTERM, errors[-3000:]
    assert errors.count("the same command resumes") == TASKS
    assert calls_in(tmp_path) == [["requeue", job]]
    code, errors = run(*arguments, **variables)
    assert code == 0, errors[-3000:]
    assert "Resuming from step" in errors
    assert calls_in(tmp_path) == [["requeue", job]]
    starts = (tmp_path / "run" / "starts.jsonl").read_text().splitlines()
    assert [json.loads(start)["processes"] for start in starts] == [TASKS, TASKS]
    steps = [row["step"] for row in read_metrics(str(tmp_path / "run")) if "train/loss" in row]
    assert steps == list(range(1, 41))


@pytest.mark.parametrize("code", [1, 2, 137])
def test_failed_slurm_job_is_not_queued_again(code, tmp_path):
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    install(tmp_path, "fail", f"raise SystemExit({code})")
    assert run("slurm.sh", tmp_path, TFM="fail", SLURM_JOB_ID="7")[0] == code
    assert not calls_in(tmp_path)


def test_a_slurm_job_that_is_ended_stays_so(tmp_path):
    """As by scancel, which ends all: the processes save, but the job stays cancelled."""
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    install(tmp_path, "save", f"import time; time.sleep(0.5); raise SystemExit({SAVED_AT_SIGTERM})")
    process = start("slurm.sh", tmp_path, TFM="save", SLURM_JOB_ID="7")
    wait_until((tmp_path / "tasks").exists, "the processes", process)
    process.terminate()
    finish(process)  # and the processes, which hold its pipes
    assert process.returncode == -signal.SIGTERM
    assert not calls_in(tmp_path)


def test_slurm_sends_one_sigterm_to_each_process():
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert re.fullmatch(r"TERM@\d+", options["signal"])  # "B:" would be the script alone
    assert "requeue" in options
    assert options["open-mode"] == "append"
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "gpus-per-task" not in options


# Kubernetes

TEXT, NUMBER = str, int
RULES = {"action": TEXT, "onPodConditions": [{"type": TEXT, "status": TEXT}]}
RULES |= {"onExitCodes": {"containerName": TEXT, "operator": TEXT, "values": [NUMBER]}}
POD = {
    "restartPolicy": TEXT,
    "terminationGracePeriodSeconds": NUMBER,
    "nodeSelector": None,
    "securityContext": {"fsGroup": NUMBER},
    "containers": [
        {
            "name": TEXT,
            "image": TEXT,
            "args": [TEXT],
            "resources": {"limits": None},
            "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
        }
    ],
    "volumes": [{"name": TEXT, "persistentVolumeClaim": {"claimName": TEXT}}],
}
JOB = {
    "completionMode": TEXT,
    "completions": NUMBER,
    "parallelism": NUMBER,
    "backoffLimit": NUMBER,
    "podFailurePolicy": {"rules": [RULES]},
    "template": {"spec": POD},
}
FAILURE = {"name": TEXT, "action": TEXT, "onJobFailureReasons": [TEXT]}
METADATA = {"name": TEXT, "annotations": None}
JOB_SET = {
    "apiVersion": TEXT,
    "kind": TEXT,
    "metadata": METADATA,
    "spec": {
        "network": {"enableDNSHostnames": bool},
        "failurePolicy": {"maxRestarts": NUMBER, "rules": [FAILURE]},
        "replicatedJobs": [{"name": TEXT, "replicas": NUMBER, "template": {"spec": JOB}}],
    },
}
CLAIM = {
    "apiVersion": TEXT,
    "kind": TEXT,
    "metadata": METADATA,
    "spec": {"accessModes": [TEXT], "storageClassName": TEXT, "resources": {"requests": None}},
}
HOST_CHIPS = 4  # of ct5lp-hightpu-4t, the machine of the slices of a v5e that have several hosts


def check_fields(found, schema, path=""):
    """Each field is one of the API (jobset.x-k8s.io/v1alpha2, batch/v1, v1), and of its type.

    A schema is a type, a list with that of the items, a mapping of fields, or None for texts by any name.
    """
    if isinstance(schema, dict):
        assert set(found) <= set(schema), f"{path}: {set(found) - set(schema)}"
        for name, value in found.items():
            check_fields(value, schema[name], f"{path}.{name}")
    elif isinstance(schema, list):
        assert isinstance(found, list), path
        for value in found:
            check_fields(value, schema[0], f"{path}[]")
    else:
        assert isinstance(found, schema or dict), path


@pytest.fixture(scope="module")
def manifest():
    """(claim, JobSet) of the template."""
    return list(yaml.safe_load_all((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def job(manifest):
    """The one Job of the JobSet."""
    (replicated,) = manifest[1]["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_the_manifest_has_fields_of_the_api_only(manifest):
    claim, job_set = manifest
    check_fields(claim, CLAIM)
    check_fields(job_set, JOB_SET)
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")


def test_the_hosts_have_the_chips_of_the_slice(job):
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert chips == HOST_CHIPS
    assert job["completions"] == job["parallelism"] == math.prod(map(int, topology.split("x"))) // chips
    assert job["completionMode"] == "Indexed"


def test_a_preemption_restarts_all_hosts(manifest, job):
    policy = manifest[1]["spec"]["failurePolicy"]
    pod = job["template"]["spec"]
    assert policy["maxRestarts"] > 0
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    ]
    assert job["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"  # which a podFailurePolicy demands
    by_condition, by_code = job["podFailurePolicy"]["rules"]
    assert by_condition["action"] == by_code["action"] == "FailJob"
    assert by_condition["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert by_code["onExitCodes"] == {
        "containerName": pod["containers"][0]["name"],
        "operator": "In",
        "values": [SAVED_AT_SIGTERM],
    }


def test_work_directory_is_on_the_claimed_volume(manifest, job):
    pod = job["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (mount,) = container["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == manifest[0]["metadata"]["name"]
    assert mount["name"] == volume["name"]
    assert manifest[0]["spec"]["accessModes"] == ["ReadWriteMany"]
    command, *arguments = container["args"]
    assert command == "train"
    values = parse_train(arguments)
    assert values.workdir.startswith(f"{mount['mountPath']}/")
    assert values.distributed
    assert values.config.training.parallel == "mesh"


# Cloud TPU VMs


def train_on_tpu(folder, trainings, **variables):
    """Exit code, standard error and calls of `tpu_vm.sh train`, whose trainings end as `trainings` says."""
    install(folder, "gcloud", GCLOUD)
    (folder / "trainings").write_text(trainings)
    defaults = {"NFS": "10.0.0.2:/share", "SECONDS_BETWEEN": "0", "NAME": "mine", "ZONE": "us-west4-a"}
    code, errors = run("tpu_vm.sh", folder, "train", **defaults | variables)
    return code, errors, calls_in(folder)


def names_of(calls):
    """What each call asks for, without looks at the state."""
    remote = ("ssh", "scp")
    verbs = [call[3] for call in calls]
    found = [
        "train" if verb in remote and "tfm train" in call[-1] else verb
        for verb, call in zip(verbs, calls, strict=True)
    ]
    return [name for name in found if name != "describe"]


PREPARE = ["scp", "ssh"]
CREATE = ["delete", "create", *PREPARE]


@pytest.mark.parametrize(
    ("trainings", "code", "expected"),
    [
        ("done", 0, [*CREATE, "train"]),
        ("preempted preempted done", 0, [*CREATE, "train", *CREATE, "train", *CREATE, "train"]),
        ("error done", 0, [*CREATE, "train", "train"]),
        ("error preempted error done", 1, [*CREATE, "train", "train", *CREATE, "train"]),
    ],
)
def test_a_tpu_vm_goes_on_after_a_preemption(trainings, code, expected, tmp_path):
    found, errors, calls = train_on_tpu(tmp_path, trainings, RETRIES="1")
    assert (found, names_of(calls)) == (code, expected), errors
    assert ("training failed 2 times" in errors) == bool(code)
    assert all("--zone=us-west4-a" in call and "mine" in " ".join(call) for call in calls)


def test_a_tpu_vm_that_is_there_is_taken(tmp_path):
    (tmp_path / "tpu").touch()
    code, _, calls = train_on_tpu(tmp_path, "done")
    assert (code, names_of(calls)) == (0, [*PREPARE, "train"])


def test_failed_request_for_a_tpu_vm_is_an_error(tmp_path):
    (tmp_path / "none_left").touch()
    code, errors, calls = train_on_tpu(tmp_path, "done")
    assert (code, names_of(calls)) == (1, ["delete", "create"])
    assert "the request for the TPU failed" in errors


def test_all_hosts_of_a_tpu_vm_get_one_command(tmp_path):
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
def test_mistake_ends_the_script_before_any_call(arguments, variables, error, tmp_path):
    install(tmp_path, "gcloud", GCLOUD)
    code, errors = run("tpu_vm.sh", tmp_path, *arguments, **variables)
    assert code == 2
    assert error in errors
    assert not calls_in(tmp_path)


# Containers


def sources_of_dockerfile():
    """The paths that the Dockerfile copies."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return {path for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for path in line.split()[:-1]}


def test_images_get_all_files_of_the_package():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert set(re.findall(r"^!(.*)$", ignored, re.MULTILINE)) == sources_of_dockerfile()
    recipe = (CLUSTERS / "tfm.def").read_text(encoding="utf-8")
    files = re.search(r"%files\n(.*?)\n\n", recipe, re.DOTALL)[1]
    pairs = [line.split() for line in files.splitlines()]
    assert {source for source, _ in pairs} == sources_of_dockerfile()
    assert all(target == f"/src/{source}" for source, target in pairs)
    assert all((ROOT / source).exists() for source in sources_of_dockerfile())


def test_the_dependencies_come_before_the_code():
    """A change of the code alone installs no dependency again."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert text.index("pip install --requirement") < text.index("COPY tfm tfm")
    assert text.index("useradd") < text.index("\nUSER tfm") < text.index("ENTRYPOINT")


def requirements(*extras):
    command = [sys.executable, str(CLUSTERS / "requirements.py"), *extras]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


def test_an_image_has_the_dependencies():
    plain = requirements("").stdout.splitlines()
    assert [line for line in plain if re.match(r"jax[>=<]", line)]
    assert not [line for line in plain if line.startswith("jax[")]
    both = requirements("cuda,digits").stdout.splitlines()
    assert both[: len(plain)] == plain
    added = both[len(plain) :]
    assert len(added) == 2
    assert added[0].startswith("jax[cuda")
    assert added[1].startswith("scikit-learn")
    wrong = requirements("gpu")
    assert wrong.returncode != 0
    assert "got gpu" in wrong.stderr
