"""Tests of the numbers and the command of clusters/jobset.yaml."""

import math
import signal

import pytest
import yaml

from tests.support.paths import ROOT
from tfm.commands.command import parse
from tfm.commands.options import Train

HOST_CHIPS = 4  # chips of ct5lp-hightpu-4t, the host of all v5e slices with several hosts


@pytest.fixture(scope="module")
def manifest():
    """Returns the JobSet of the template."""
    return yaml.safe_load((ROOT / "clusters" / "jobset.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def job(manifest):
    """Returns the only Job of the JobSet."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_hosts_have_all_chips_of_the_slice(job):
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert chips == HOST_CHIPS
    assert job["completions"] == job["parallelism"] == math.prod(map(int, topology.split("x"))) // chips
    assert job["completionMode"] == "Indexed"


def test_a_failed_host_fails_the_job_so_that_all_hosts_restart(manifest, job):
    assert job["backoffLimit"] == 0
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_preemptions_do_not_count_as_restarts(manifest):
    (rule,) = manifest["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_a_disrupted_or_terminated_host_counts_as_preempted(job):
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    by_condition, by_code = job["podFailurePolicy"]["rules"]
    assert by_condition["action"] == by_code["action"] == "FailJob"
    assert by_condition["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert by_code["onExitCodes"] == {
        "containerName": pod["containers"][0]["name"],
        "operator": "In",
        "values": [128 + signal.SIGTERM],
    }


def test_work_directory_is_in_a_bucket(job):
    pod = job["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    command, *arguments = container["args"]
    assert command == "train"
    values = parse(Train, arguments)
    assert values.workdir == "gs://BUCKET/runs/quickstart"
    assert values.distributed
    assert values.config.training.parallel == "mesh"
