"""average RUN@CHECKPOINTS NEW_RUN: the mean of several checkpoints' weights, as a run."""

import shutil
from dataclasses import dataclass, replace

from transformer_jax.commands.shared import parse, say, split_checkpoint, split_runs
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory


@dataclass(frozen=True)
class AverageOptions:
    """Writes the mean of the weights of several checkpoints (section 6.1) as a new run.

    CHECKPOINTS are average:5, the newest five; average:best:5, the five with the best scores that
    checkpoint.keep_best keeps; average:1000-5000, all of those steps; average:1000-5000:500, those
    500 steps apart; or average:1000,2000,4000. Two copies of the weights are in memory at most. The
    new run translates, scores and evaluates as any other; training does not go on from it.
    """


def run(arguments: list[str]) -> int:
    """Writes the mean of several checkpoints; see `AverageOptions`."""
    usage = "average RUN@average:5 NEW_RUN"
    names, rest = split_runs(arguments, usage)
    parse("average RUN@CHECKPOINTS NEW_RUN", AverageOptions(), rest)
    if len(names) != 2:
        raise UserError(f"usage: transformer-jax {usage}; see average --help")
    path, checkpoint = split_checkpoint(names[0])
    if not checkpoint:
        raise UserError(f"which checkpoints? name them, such as {path}@average:5")
    average(RunDirectory(path), checkpoint, RunDirectory(names[1]))
    return 0


def average(run: RunDirectory, checkpoint: str, new: RunDirectory) -> None:
    """Writes the weights of a checkpoint, as `Choice` names it, into a new run's directory."""
    if new.path.exists():
        raise UserError(f"{new.path}: there is something already; name a folder that is not there")

    from transformer_jax import sharding
    from transformer_jax.checkpoint import Checkpoints
    from transformer_jax.config import CheckpointConfig, MeshConfig
    from transformer_jax.loading import Choice, load_weights

    weights = load_weights(Choice(run, checkpoint), sharding.make_mesh(MeshConfig()))
    shared = weights.config.tokenizer.shared
    with new.creating():
        for one, other in zip(run.tokenizers(shared), new.tokenizers(shared), strict=True):
            shutil.copyfile(one, other)
        new.save_config(replace(weights.config, run_directory=str(new.path)))
        progress = replace(weights.progress, averaged_steps=weights.steps)
        with Checkpoints(new.checkpoints, CheckpointConfig()) as checkpoints:
            checkpoints.save_params(weights.steps[-1], weights.params, progress)
    say(f"{weights.name} of {run.path} is now {new.path}")
