#!/bin/bash
# Trains on Cloud TPU VMs: NAME=tfm ZONE=us-west4-a BUCKET=gs://my-bucket CONFIG=quickstart clusters/tpu_vm.sh train
#
#   tpu_vm.sh create   asks for the TPU, and waits until it is there
#   tpu_vm.sh train    creates it where it is not there, installs tfm on all of its hosts, and trains; all
#                      again after a preemption
#   tpu_vm.sh delete   gives it back
#
# Runs on a machine that is not preempted, with gcloud; what it needs: docs/clusters.md.

set -euo pipefail

NAME=${NAME:-tfm}
ZONE=${ZONE:-us-west4-a}
TYPE=${TYPE:-v5litepod-16}                # 16 chips on 4 hosts
VERSION=${VERSION:-v2-alpha-tpuv5-lite}   # the system of the hosts, by the generation of the TPU
BUCKET=${BUCKET:-}                        # gs://BUCKET for the work directory, which has to outlive the TPU
WHEEL=${WHEEL:-dist/tfm_jax-0.1.0-py3-none-any.whl} # of: pip wheel --no-deps --wheel-dir=dist .
PYTHON=${PYTHON:-python3.11}              # on the hosts, 3.11 or newer
CONFIG=${CONFIG:-quickstart}
RETRIES=${RETRIES:-3}                     # after errors; a preemption does not count
SECONDS_BETWEEN=${SECONDS_BETWEEN:-30}    # looks at the TPU's state
VENV=tfm-venv                             # in the home folder of the hosts

# A command on all hosts; the exit code is 0 if it is 0 on all.
on_all_hosts() {
    gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

# READY for hosts that can be reached; PREEMPTED, TERMINATED, ...; empty where there is no TPU.
state() {
    gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" --format='value(state)' 2> /dev/null || true
}

request_state() {
    gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" --format='value(state.state)'
}

# A queued resource: the request waits until there is a spot TPU, instead of failing at once.
create() {
    delete # of a preempted one, the request stays and keeps the name
    gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" --zone="$ZONE" \
        --accelerator-type="$TYPE" --runtime-version="$VERSION" --spot
    until [[ $(state) == READY ]]; do
        if [[ $(request_state) == FAILED ]]; then
            echo "error: the request for the TPU failed: gcloud compute tpus queued-resources describe $NAME" >&2
            return 1
        fi
        sleep "$SECONDS_BETWEEN"
    done
}

# Makes the hosts ready for training; does no harm where that was begun before.
prepare() {
    gcloud compute tpus tpu-vm scp "$WHEEL" "$NAME:" --zone="$ZONE" --worker=all
    on_all_hosts "sudo apt-get update -q && sudo apt-get install -qy $PYTHON-venv \
&& $PYTHON -m venv $VENV && $VENV/bin/pip install -q './${WHEEL##*/}[train,tpu,gcs]'"
}

delete() {
    gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet || true
}

# The same command on each host; JAX finds the others by the metadata of the TPU.
train_once() {
    on_all_hosts "$VENV/bin/tfm train --config=$(printf '%q' "$CONFIG") --workdir=$BUCKET/runs/$NAME \
--distributed --config.training.parallel=mesh"
}

# Trains to the end. What was saved last is resumed: by SIGTERM, or training.checkpoint_every steps apart.
train() {
    local errors=0
    [[ $(state) == READY ]] || create
    prepare
    until train_once; do
        if [[ $(state) != READY ]]; then
            create
            prepare
        elif (((errors += 1) > RETRIES)); then
            echo "error: training failed $errors times on a TPU that is there: read the messages above." >&2
            return 1
        fi
    done
}

if [[ -z $BUCKET && ${1:-} != delete ]]; then
    echo "error: Expected BUCKET=gs://BUCKET, the place of the work directory: see docs/clusters.md." >&2
    exit 2
fi
case ${1:-} in
    create | train | delete) "$1" ;;
    *)
        echo "usage: $0 create|train|delete" >&2
        exit 2
        ;;
esac
