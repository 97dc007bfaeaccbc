"""compile EXPERIMENT: what an experiment would need on devices that need not be there."""

import json
import os
from dataclasses import dataclass, replace
from typing import Literal

from transformer_jax.commands.shared import parse, read_experiment, say
from transformer_jax.config import Config, MeshConfig
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class CompileOptions(Config):
    """Compiles an experiment for devices that need not be there, and prints what they would need.

    Times are the compiler's estimates, not measurements.
    """

    topology: str = ""
    """`v4:2x2x1`, `v5e:4x4`, `v5p:2x2x1`, `v6e:4x4`, `tpu7x:2x2x1`, of any size; or `cpu:8`."""
    what: Literal["train", "decode"] = "train"
    """`train`: an update of the largest batch; `decode`: the beam search of a batch, which
    every device has all weights for, as in `translate`, unless `--mesh` says otherwise."""


def run(arguments: list[str]) -> int:
    """Compiles an experiment for a topology; see `CompileOptions`."""
    default, rest = read_experiment(CompileOptions, "compile", arguments)
    options = parse("compile", default, rest)
    if options.what == "decode":  # translate and evaluate split the rows, whatever training splits
        options = parse("compile", replace(default, mesh=MeshConfig()), rest)
    if not options.topology:
        raise UserError("give --topology, such as v5e:4x4, v5p:2x2x1 or cpu:8")
    _look_for_no_tpu()

    from transformer_jax.compile import compile_for, describe, to_json

    report = compile_for(options, options.topology, options.what)
    for line in describe(report):
        say(line)
    print(json.dumps(to_json(report)))
    return 0


def _look_for_no_tpu() -> None:
    """Lets JAX, not yet imported, and the TPU's compiler run on any machine, one with TPUs too."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # do not ask the cloud what this machine is
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # else a lock is left that stops the next one
    # Only so that it does not complain: they are the topology's, whatever these say.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
