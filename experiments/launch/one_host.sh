#!/usr/bin/env bash
# Runs a command of transformer_jax on one host, on all its GPUs (or TPU chips) in one process.
#
# Use    experiments/launch/one_host.sh train experiments/wmt14_en_de_base.py \
#            --run-directory runs/wmt14_en_de_base
# Edit   nothing; GPUS=0,1,2,3 in the environment takes these GPUs alone, PYTHON another Python.
# Stop   kill -TERM, or Ctrl-C: it saves and leaves; the same command goes on from there.
set -euo pipefail

if [[ -n "${GPUS:-}" ]]; then
  export CUDA_VISIBLE_DEVICES="$GPUS"
fi
# The shell becomes the program, so that signals reach it.
exec "${PYTHON:-python}" -m transformer_jax "$@"
