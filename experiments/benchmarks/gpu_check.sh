#!/usr/bin/env bash
# Checks and measures transformer_jax on one NVIDIA GPU: parity with the CPU, speed of training with
# cuDNN's attention and with XLA's, speed of the beam search. Made to take less than 8 minutes on an
# H200; needs no internet and no data.
#
# It has been tried only on a CPU with tiny sizes (--tiny), never on a GPU yet.
#
# Use    experiments/benchmarks/gpu_check.sh [--tiny] [--output FILE.json]
# Edit   nothing; GPUS=1 in the environment takes that GPU, PYTHON another Python.
# Ends   with 0, with 1 where the GPU's numbers are not those of the CPU, with 2 without a GPU.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_VISIBLE_DEVICES="${GPUS:-${CUDA_VISIBLE_DEVICES:-0}}"
exec "${PYTHON:-python}" "$root/experiments/benchmarks/gpu_check.py" "$@"
