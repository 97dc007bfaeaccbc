"""evaluate --all and --watch: every checkpoint of a run scored, once."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from transformer_jax.commands.shared import say
from transformer_jax.commands.systems import Output, System, search_facts, translate_set
from transformer_jax.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.results import find_result, read_results

if TYPE_CHECKING:
    from transformer_jax.loading import LoadedModel
    from transformer_jax.run_directory import RunDirectory
    from transformer_jax.test_sets import TestSet

_SECONDS_BETWEEN_LOOKS = 10


def sweep(
    systems: Sequence[System],
    decode: DecodeConfig,
    test_set: "TestSet",
    tell: Callable[[Sequence[Output]], None],
    metrics: Collection[str],
    watch: bool,
) -> None:
    """Translates with each checkpoint whose result with these metrics is not in its run's table.

    `tell` scores it. Watching, it goes on with new checkpoints until all runs are at their end; not
    watching, it raises UserError where a run has none.
    """
    sweeps = [_Sweep(system, decode, test_set, metrics) for system in systems]
    for one in sweeps:
        if not watch and not one.steps():
            raise UserError(f"{one.system.name}: no complete checkpoint; train first, or --watch")
    while True:
        # Asked before the look, which then finds the last checkpoint too.
        over = not watch or all([one.is_over() for one in sweeps])
        is_idle = True
        for one in sweeps:
            for step in one.waiting():
                is_idle = False
                if output := one.translate(step):
                    tell([output])
        if over:
            return
        if is_idle:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class _Sweep:
    """That of a run. Every process of a job sees what the first one does."""

    def __init__(
        self,
        system: System,
        decode: DecodeConfig,
        test_set: "TestSet",
        metrics: Collection[str],
    ):
        assert system.run is not None
        self.system, self.decode, self.test_set = system, decode, test_set
        self.run: RunDirectory = system.run
        self.metrics = set(metrics)
        self.model: LoadedModel | None = None
        self.gone: set[int] = set()
        self.known: set[int] = set()

    def steps(self) -> list[int]:
        """Those of all checkpoints."""
        from transformer_jax.distributed import of_first
        from transformer_jax.loading import trained_steps

        return of_first(lambda: trained_steps(self.run))

    def is_over(self) -> bool:
        """Whether the training has come to its end, by the newest checkpoint."""
        from transformer_jax.distributed import of_first
        from transformer_jax.loading import is_trained

        return of_first(lambda: is_trained(self.run))

    def waiting(self) -> list[int]:
        """The steps to be scored, ascending."""
        from transformer_jax.distributed import of_first

        return of_first(self._look)

    def _look(self) -> list[int]:
        from transformer_jax.loading import trained_steps

        results = read_results(self.run)
        steps = [step for step in trained_steps(self.run) if step not in self.gone]
        waiting = [step for step in steps if not self._is_scored(step, results)]
        for step in set(steps) - set(waiting) - self.known:
            say(f"{self.system.name}: step {step} has a result in {self.run.results} already")
        self.known |= set(steps)
        return waiting

    def _is_scored(self, step: int, results: Sequence[dict]) -> bool:
        key = search_facts(self.decode) | {
            "checkpoint": f"step {step}",
            "test_set": self.test_set.name,
            "fingerprint": self.test_set.fingerprint,
        }
        result = find_result(results, key)
        return result is not None and self.metrics <= set(result["signatures"])

    def translate(self, step: int) -> Output | None:
        """Nothing where the checkpoint has been deleted, as training does with old ones."""
        from transformer_jax.loading import Choice, load, trained_steps

        choice = Choice(self.run, str(step))
        try:
            if self.model is None:
                self.model = load([choice], self.decode)
            else:
                self.model = self.model.at(choice)
        except UserError:
            if step in trained_steps(self.run):
                raise
            say(f"{self.system.name}: step {step} is gone before it was scored")
            self.gone.add(step)
            return None
        system = self.system._replace(name=f"{self.system.name}@{step}")
        return translate_set(system, self.model, self.decode, self.test_set)
