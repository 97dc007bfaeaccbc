#!/usr/bin/env bash
# Runs a command of transformer_jax on all hosts of a TPU VM slice, such as a v5e-16 (4 hosts).
#
# Use    experiments/launch/tpu_vm.sh train experiments/wmt14_en_de_base.py \
#            --run-directory /mnt/shared/runs/wmt14_en_de_base
# Edit   the four lines below, or set them in the environment. Once for a slice: the code and
#        Python packages on every host (pip install -e CODE "jax[tpu]"), and one shared disk, such
#        as Filestore, mounted at the same place on all of them for the run directory.
# Stop   experiments/launch/tpu_vm.sh stop: all hosts save the same step and leave; the command
#        above goes on from there. Run it in tmux: with the connection the training would end too.
set -euo pipefail

TPU_NAME=${TPU_NAME:-transformer-jax}
TPU_ZONE=${TPU_ZONE:-us-west4-a}
CODE=${CODE:-transformer_jax}  # folder of this repository on the hosts
PYTHON=${PYTHON:-python3}

if [[ "${1:-}" == stop ]]; then
  # The brackets keep pkill from finding the shell that runs it.
  command="pkill -TERM -f '[-]m transformer_jax'"
else
  # JAX finds the other hosts in the slice's metadata.
  command="cd $(printf %q "$CODE") && exec $(printf '%q ' "$PYTHON" -m transformer_jax "$@")"
  command+="--distributed.enabled"
fi
exec gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone "$TPU_ZONE" --worker=all --command "$command"
