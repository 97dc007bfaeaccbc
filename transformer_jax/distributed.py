"""Several processes as one job: how they join, and how they agree before step 1.

The engine is JAX's own: `jax.distributed`, and the collectives of XLA. Every process runs the same
program on its own devices; the first one alone writes plain files and tells how it goes. What ends
the job, every process says.
"""

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.config import DistributedConfig
from transformer_jax.errors import UnfitCorpus, UserError

Result = TypeVar("Result")


def join(config: DistributedConfig) -> None:
    """Joins the job, before anything else uses JAX; alone, where it is not enabled.

    Raises UserError where no cluster is found, or the other processes are not.
    """
    if not config.enabled:
        return
    given = {}
    if config.coordinator:
        given = {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
        }
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=config.timeout,
            heartbeat_timeout_seconds=config.timeout,
            shutdown_timeout_seconds=config.timeout,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot join the other processes ({reason}); outside Slurm, Open MPI, Kubernetes and "
            "Cloud TPU give --distributed.coordinator, .num-processes and .process-id"
        ) from None


def is_first() -> bool:
    """Whether this process is the one that writes plain files and tells how it goes."""
    return jax.process_index() == 0


def everywhere(work: Callable[[], Result]) -> Result:
    """Does `work` in every process, and waits for all: what fails in one fails in all of them.

    Raises UserError where `work` raises that, or OSError, in some process.
    """
    result, message, status = None, "", UserError.status
    try:
        result = work()
    except UserError as error:
        message, status = str(error), error.status
    except OSError as error:
        message = f"{error.filename or ''}: {error.strerror}"
    failures = [json.loads(text) for text in _gather(json.dumps([message, status]))]
    for message, status in failures:
        if message:
            raise UnfitCorpus(message) if status == UnfitCorpus.status else UserError(message)
    return result  # type: ignore[return-value]


def on_first(work: Callable[[], object]) -> None:
    """Does `work` in the first process while the others wait; its failure is that of all."""
    everywhere(lambda: work() if is_first() else None)


def of_first(work: Callable[[], Result]) -> Result:
    """What `work` gives in the first process, as JSON can hold it; its failure is that of all."""
    result = everywhere(lambda: work() if is_first() else None)
    return json.loads(_gather(json.dumps(result))[0])


def check_agreement(facts: Mapping[str, object]) -> None:
    """Raises UserError in every process where one knows another value of a fact than the first."""
    everywhere = [json.loads(text) for text in _gather(json.dumps(facts, default=str))]
    for process, others in enumerate(everywhere):
        for name, value in everywhere[0].items():
            if others.get(name) != value:
                raise UserError(
                    f"{name} is {others.get(name)!r} in process {process} and {value!r} in "
                    "process 0: all processes must be started alike"
                )


def _gather(text: str) -> list[str]:
    """The text of every process, in all of them."""
    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(data)))
    padded = np.zeros(int(sizes.max()) + 1, np.uint8)
    padded[: len(data)] = data
    gathered = multihost_utils.process_allgather(padded)
    return [bytes(row[:size]).decode() for row, size in zip(np.array(gathered), sizes, strict=True)]
