"""Tests of the fields, numbers and commands of clusters/jobset.yaml."""

import math

import pytest
import yaml

from tests.support.clusters import CLUSTERS, SAVED_AT_SIGTERM, parse_train

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
HOST_CHIPS = 4  # chips of ct5lp-hightpu-4t, the host of all v5e slices with several hosts


def check_fields(found, schema, path=""):
    """Checks that each field exists in the API (jobset.x-k8s.io/v1alpha2, batch/v1, v1) and has its type.

    A schema is a type, a list with the schema of the items, a mapping of fields, or None for any mapping.
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
    """Returns (claim, JobSet) of the template."""
    return list(yaml.safe_load_all((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def job(manifest):
    """Returns the only Job of the JobSet."""
    (replicated,) = manifest[1]["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_manifest_has_only_fields_of_the_api(manifest):
    claim, job_set = manifest
    check_fields(claim, CLAIM)
    check_fields(job_set, JOB_SET)
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")


def test_hosts_have_all_chips_of_the_slice(job):
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert chips == HOST_CHIPS
    assert job["completions"] == job["parallelism"] == math.prod(map(int, topology.split("x"))) // chips
    assert job["completionMode"] == "Indexed"


def test_preemption_restarts_all_hosts(manifest, job):
    policy = manifest[1]["spec"]["failurePolicy"]
    pod = job["template"]["spec"]
    assert policy["maxRestarts"] > 0
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    ]
    assert job["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
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
