"""A run's directory → a model that translates, scores and shows its attention."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.array_types import Params
from transformer_jax.checkpoint import Checkpoints
from transformer_jax.config import Config, DecodeConfig, MeshConfig
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.run_directory import RunDirectory
from transformer_jax.scoring import AttentionMaps, PairScore, Scorer
from transformer_jax.train_step import abstract_params
from transformer_jax.translate import Translator


@dataclass(frozen=True)
class LoadedModel:
    """Weights, and what is done with them; those of several checkpoints are an ensemble."""

    config: Config
    """Of the first run."""
    params: tuple[Params, ...] = field(repr=False)
    """Of every checkpoint."""
    models: tuple[Transformer, ...] = field(repr=False)
    """What is applied to them, one for each."""
    tokenizers: Tokenizers = field(repr=False)
    translator: Translator = field(repr=False)
    scorer: Scorer = field(repr=False)
    checkpoint: str
    """Which weights: `step 1000`, `average of steps 800, 900, 1000`, or several with `+`."""
    minutes_trained: float
    """Wall-clock minutes of training up to the last of those steps, all checkpoints together."""

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of every sentence; a line feed in a sentence is a space."""
        _check_list(sentences)
        return [found.text for found in self.translator.translate(self.params, sentences)]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """The log-probability of every target, given its source."""
        _check_list(sources)
        _check_list(targets)
        return self.scorer.score(self.params, sources, targets)

    def attention(self, source: str, target: str) -> AttentionMaps:
        """Who attends to whom, by layer and head, when `target` is predicted from `source`."""
        return self.scorer.attention(self.params, source, target)


def _check_list(sentences: Sequence[str]) -> None:
    if isinstance(sentences, str):
        raise TypeError("a list of sentences is expected: a text alone is a sequence of letters")


class Choice(NamedTuple):
    """Which weights of a run."""

    run: RunDirectory
    step: str = "newest"
    """`newest`, `best`, or a number."""
    average_last: int = 1
    """Mean over this many newest checkpoints."""

    @classmethod
    def of(cls, run: str, checkpoint: str | int) -> "Choice":
        """`checkpoint` is `newest`, `best`, a step, or `average:N` for the mean of the N newest."""
        name, colon, count = str(checkpoint).partition(":")
        if not colon:
            return cls(RunDirectory(run), name)
        if name != "average" or not count.isdecimal():
            raise UserError(
                f"no checkpoint {checkpoint!r}: it must be newest, best, a step or average:N"
            )
        return cls(RunDirectory(run), average_last=int(count))


def load(choices: Sequence[Choice], decode: DecodeConfig) -> LoadedModel:
    """Loads one model, or several whose mean probability counts; of each the weights alone.

    Raises UserError where a run has no such checkpoint, or another tokenizer than the first.
    """
    mesh = sharding.make_mesh(MeshConfig())
    members = [_load_weights(choice, mesh) for choice in choices]
    first = members[0]
    for member, choice in zip(members, choices, strict=True):
        if member.tokenizers.fingerprint != first.tokenizers.fingerprint:
            raise UserError(
                f"{choice.run.path}: not the same tokenizer as {choices[0].run.path}: "
                "the models of an ensemble must share it"
            )
    models = tuple(member.model for member in members)
    return LoadedModel(
        config=first.config,
        params=tuple(member.params for member in members),
        models=models,
        tokenizers=first.tokenizers,
        translator=Translator(models, first.tokenizers, decode, mesh),
        scorer=Scorer(models, first.tokenizers, decode, mesh),
        checkpoint=" + ".join(member.name for member in members),
        minutes_trained=sum(member.minutes for member in members),
    )


class _Weights(NamedTuple):
    """What is read of a run."""

    config: Config
    tokenizers: Tokenizers
    model: Transformer
    params: Params
    name: str
    minutes: float


def _load_weights(choice: Choice, mesh: Mesh) -> _Weights:
    run, step, average_last = choice
    config = run.load_config()
    tokenizers = Tokenizers.load(run.tokenizers(config.tokenizer.shared))
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
    return _Weights(config, tokenizers, model, params, name, minutes)


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
