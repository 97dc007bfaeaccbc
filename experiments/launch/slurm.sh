#!/usr/bin/env bash
# Runs a command of transformer_jax on several hosts of a Slurm cluster, one process a host.
#
# Use    sbatch experiments/launch/slurm.sh train experiments/wmt14_en_de_big.py \
#            --run-directory /shared/runs/wmt14_en_de_big
# Edit   the #SBATCH lines: hosts, GPUs, cores and time, and what your cluster asks for (partition,
#        account); how Python is found, below. The run directory must be one that all hosts share.
# Stop   scancel --batch --signal=TERM JOB: it saves and leaves. Before the time is over it saves,
#        and the job is queued again and goes on; so it does when a host fails or is taken away.
#        A plain scancel leaves it what the cluster's KillWait says, 30 seconds where not set.
#SBATCH --job-name=transformer-jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x.%j.log
#SBATCH --signal=B:USR1@300
set -uo pipefail

PYTHON=${PYTHON:-python}  # such as /shared/venv/bin/python

# JAX finds hosts, ranks and the coordinator in Slurm's variables. Where one process dies the others
# are ended with it, and none waits for it for ever.
srun --kill-on-bad-exit=1 "$PYTHON" -m transformer_jax "$@" --distributed.enabled &
step=$!

# SIGUSR1 comes 300 seconds before the end of the time, to this shell alone; srun hands SIGTERM on
# to every process, and the program saves.
requeue=no
trap 'signalled=yes; requeue=yes; kill -TERM "$step"' USR1
trap 'signalled=yes; kill -TERM "$step"' TERM

# A signal ends `wait`, not srun.
signalled=yes
while [[ $signalled == yes ]]; do
  signalled=no
  wait "$step"
  status=$?
done

# Training that ended by itself has nothing to go on with.
if [[ $requeue == yes && $status -eq 143 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
