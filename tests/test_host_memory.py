"""The memory of an update is not given back to the system, and so has no page faults."""

import os
import platform
import subprocess
import sys

import pytest

# Prints the pages touched for the first time by a program that needs 128 MB, when it runs again.
PROGRAM = """
import resource, sys
from transformer_jax.host_memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import jax, jax.numpy as jnp

@jax.jit
def needs_memory(x):
    many = jax.lax.optimization_barrier(jnp.exp(jnp.broadcast_to(x, (32, 1024, 1024))))
    return (many @ x).sum()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x = jnp.ones((1024, 1024))
needs_memory(x).block_until_ready()
before = faults()
needs_memory(x).block_until_ready()
print(faults() - before)
"""


def faults_with(memory: str) -> int:
    command = [sys.executable, "-c", PROGRAM, memory]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_that_is_kept_is_not_asked_for_again():
    returned, kept = faults_with("returned"), faults_with("kept")
    assert returned > 25_000, "128 MB are 32,768 pages: the comparison shows nothing"
    assert kept < returned / 10
