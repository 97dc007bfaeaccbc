"""A run's directory → a model that translates."""

from typing import NamedTuple

from transformer_jax import sharding
from transformer_jax.array_types import Params
from transformer_jax.checkpoint import Checkpoints
from transformer_jax.config import Config, DecodeConfig, MeshConfig
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.run_directory import RunDirectory
from transformer_jax.train_step import abstract_params
from transformer_jax.translate import Translator


class LoadedModel(NamedTuple):
    """Weights, and what turns text into text with them."""

    config: Config
    params: Params
    translator: Translator
    checkpoint: str
    """Which weights: `step 1000`, or `average of steps 800, 900, 1000`."""
    minutes_trained: float
    """Wall-clock minutes of training up to the last of those steps."""


def load(
    run: RunDirectory, decode: DecodeConfig, step: str = "newest", average_last: int = 1
) -> LoadedModel:
    """Loads `step` (`newest`, `best`, or a number), or the mean of the newest `average_last` steps.

    Only the weights are read. Raises UserError where the run has no such checkpoint.
    """
    config = run.load_config()
    tokenizers = Tokenizers.load(run.tokenizers(config.tokenizer.shared))
    mesh = sharding.make_mesh(MeshConfig())
    model = Transformer(
        config.model, tokenizers.vocab_size, tokenizers.target.bos_id, tokenizers.shared
    )
    with Checkpoints(run.checkpoints) as checkpoints:
        if average_last > config.checkpoint.keep_newest:
            # Among more there would be old ones that are kept for their score.
            raise UserError(
                f"--average-last is {average_last}: the run keeps "
                f"checkpoint.keep_newest = {config.checkpoint.keep_newest}"
            )
        steps = _choose(checkpoints, step, average_last)
        params = checkpoints.average(steps, abstract_params(model, mesh))
        minutes = checkpoints.progress(steps[-1]).seconds / 60
    names = ", ".join(map(str, steps))
    name = f"step {names}" if len(steps) == 1 else f"average of steps {names}"
    return LoadedModel(config, params, Translator(model, tokenizers, decode, mesh), name, minutes)


def _choose(checkpoints: Checkpoints, step: str, average_last: int) -> list[int]:
    # Step 0 is the trial of whether checkpoints can be written: its weights are random.
    steps = [step for step in checkpoints.steps() if step > 0]
    known = f"it has {', '.join(map(str, steps))}"
    if not steps:
        raise UserError(f"{checkpoints.directory}: no complete checkpoint; train first")
    if average_last < 1:
        raise UserError(f"--average-last is {average_last}: it must be 1 or more")
    if average_last > 1:
        if step != "newest":
            raise UserError("--average-last takes the newest checkpoints: leave out --step")
        if average_last > len(steps):
            raise UserError(
                f"{checkpoints.directory}: --average-last {average_last} needs as many "
                f"checkpoints, but {known}"
            )
        return steps[-average_last:]
    if step == "newest":
        return steps[-1:]
    if step == "best":
        best = checkpoints.progress(steps[-1])
        if best.best_score is None:
            raise UserError(f"{checkpoints.directory}: no checkpoint has been scored yet")
        step = str(best.best_step)
    if not step.isdecimal() or int(step) not in steps:
        raise UserError(f"{checkpoints.directory}: no checkpoint {step}; {known}")
    return [int(step)]
