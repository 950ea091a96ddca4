"""Tests of the scripts of clusters/. Shell functions that print their arguments replace srun and gcloud."""

import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.commands.command import parse
from tfm.commands.options import Train

pytestmark = pytest.mark.long
CLUSTERS = ROOT / "clusters"
SCRIPTS = sorted(CLUSTERS.glob("*.sh"))
PREEMPTED = 128 + signal.SIGTERM
REQUEUED = "requeue 7\n"
CODES = [(0, ""), (1, ""), (137, ""), (PREEMPTED, REQUEUED), (128 + signal.SIGUSR1, REQUEUED)]
PRINT = "() { printf '%s\\n' \"$*\"; }"
# An existing TPU, on which each call succeeds.
GCLOUD = "() { if [[ $* == *describe* ]]; then echo READY; else printf '%s\\0' \"$@\" $'\\n'; fi; }"


def run(script, *arguments, functions=None, **variables):
    """Runs a script. `functions` is {name of a program: body of the function that replaces it}."""
    replaced = {f"BASH_FUNC_{name}%%": body for name, body in (functions or {}).items()}
    command = ["bash", str(CLUSTERS / script), *arguments]
    options = {"capture_output": True, "text": True, "timeout": LIMIT}
    return subprocess.run(command, env=os.environ | replaced | variables, check=False, **options)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path):
    result = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_variable_has_its_default_once(path):
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^([A-Z_]+)=|^read -ra ([A-Z_]+)", text, re.MULTILINE)
    assert names
    assert len(names) == len(set(names))


def test_slurm_starts_a_valid_training():
    result = run("slurm.sh", "--config.training.seed=3", functions={"srun": PRINT}, SLURM_JOB_ID="7")
    assert result.returncode == 0, result.stderr
    values = parse(Train, shlex.split(result.stdout.partition(" tfm train ")[2]))
    assert values.distributed
    assert (values.workdir, values.config.training.seed) == ("runs/quickstart", 3)
    assert values.config.training.parallel == "mesh"


@pytest.mark.parametrize(("code", "calls"), CODES)
def test_only_a_preempted_slurm_job_is_queued_again(code, calls):
    functions = {"srun": f"() {{ return {code}; }}", "scontrol": PRINT}
    result = run("slurm.sh", functions=functions, SLURM_JOB_ID="7")
    assert (result.returncode, result.stdout) == (code, calls)


def test_slurm_sends_sigterm_once_to_every_process():
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert re.fullmatch(r"TERM@\d+", options["signal"])  # "B:" would signal only the script
    assert "requeue" in options
    assert options["open-mode"] == "append"
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "gpus-per-task" not in options


def test_all_hosts_of_a_tpu_vm_run_the_same_valid_training():
    variables = {"BUCKET": "gs://mine", "NAME": "big", "CONFIG": "wmt14:large_batch"}
    result = run("tpu_vm.sh", "train", functions={"gcloud": GCLOUD}, **variables)
    assert result.returncode == 0, result.stderr
    _, prepare, command = (call.strip("\0").split("\0") for call in result.stdout.split("\n")[:3])
    assert "--worker=all" in prepare
    assert "--worker=all" in command
    subprocess.run(["bash", "-n", "-c", prepare[-1].removeprefix("--command=")], check=True, timeout=LIMIT)
    assert "[train,tpu,gcs]" in prepare[-1]
    program, name, *arguments = shlex.split(command[-1].removeprefix("--command="))
    assert (program, name) == ("tfm-venv/bin/tfm", "train")
    values = parse(Train, arguments)
    assert values.workdir == "gs://mine/runs/big"
    assert values.distributed
    assert values.config.training.parallel == "mesh"


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (["train"], {}, "Expected BUCKET=gs://BUCKET"),
        (["traim"], {"BUCKET": "gs://x"}, "create|train|delete"),
    ],
)
def test_invalid_arguments_end_the_script_before_any_call(arguments, variables, error):
    result = run("tpu_vm.sh", *arguments, functions={"gcloud": PRINT}, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert error in result.stderr
