#!/bin/bash
# Trains on the GPUs of several nodes of a SLURM cluster: CONFIG=quickstart sbatch clusters/slurm.sh
#
# At the time limit, and where the job is preempted, each process gets SIGTERM, saves and ends; the job is
# queued again and resumes. Folder, packages and file system: docs/clusters.md.

#SBATCH --job-name=tfm
#SBATCH --nodes=2
#SBATCH --time=24:00:00
# One process a GPU, with all GPUs of the node in sight: each takes that of its number, SLURM_LOCALID. With
# --gpus-per-task it would see its own alone, as number 0, and find no other.
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
# SIGTERM three minutes before the time limit, to the processes and not to this script (no "B:"): one signal
# each. A second one, a second later or more, would end a run before it has saved. USR1@180 does the same.
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -euo pipefail

CONFIG=${CONFIG:-quickstart}
WORKDIR=${WORKDIR:-runs/$CONFIG} # on a file system that all nodes share
read -ra TFM <<< "${TFM:-tfm}"   # or TFM="apptainer exec --nv tfm.sif tfm"
PREEMPTED=(143 138)              # exit codes of tfm after SIGTERM and SIGUSR1: 128 + 15 and 128 + 10

# A process that ends must not take the others along while they save (--kill-on-bad-exit is set on some
# clusters); those that wait for one that crashed are ended after two minutes.
code=0
srun --kill-on-bad-exit=0 --wait=120 "${TFM[@]}" train \
    --config="$CONFIG" --workdir="$WORKDIR" --distributed --config.training.parallel=mesh "$@" || code=$?

# An error is not tried again. A node that fails, and a preemption that leaves no time, are SLURM's own to
# queue again: --requeue.
if [[ " ${PREEMPTED[*]} " == *" $code "* ]]; then
    scontrol requeue "$SLURM_JOB_ID" || echo "error: not queued again; submit it to resume" >&2
fi
exit "$code"
