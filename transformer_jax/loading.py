"""A run's directory → a model that translates, scores and shows its attention."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.array_types import Params
from transformer_jax.checkpoint import Checkpoints, Progress
from transformer_jax.config import Config, DecodeConfig, MeshConfig
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.run_directory import RunDirectory
from transformer_jax.scoring import AttentionMaps, PairScore, Scorer
from transformer_jax.train_step import abstract_params
from transformer_jax.translate import Translator


class Choice(NamedTuple):
    """Which weights of a run."""

    run: RunDirectory
    checkpoint: str = "newest"
    """`newest`, `best`, a step, or the mean of several, as `average:` and one of `5` (the newest),
    `best:5`, `1000-5000`, `1000-5000:500` (those steps apart) and `1000,2000,4000`."""


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

    def at(self, choice: Choice) -> "LoadedModel":
        """The same with other weights of the same run: nothing is compiled anew."""
        weights = load_weights(choice, sharding.make_mesh(MeshConfig()))
        return replace(
            self,
            params=(weights.params,),
            checkpoint=weights.name,
            minutes_trained=weights.minutes,
        )

    def attention(self, source: str, target: str) -> AttentionMaps:
        """Who attends to whom, by layer and head, when `target` is predicted from `source`."""
        return self.scorer.attention(self.params, source, target)


def _check_list(sentences: Sequence[str]) -> None:
    if isinstance(sentences, str):
        raise TypeError("a list of sentences is expected: a text alone is a sequence of letters")


def load(choices: Sequence[Choice], decode: DecodeConfig) -> LoadedModel:
    """Loads one model, or several whose mean probability counts; of each the weights alone.

    Raises UserError where a run has no such checkpoint, or another tokenizer than the first.
    """
    mesh = sharding.make_mesh(MeshConfig())
    members = [load_weights(choice, mesh) for choice in choices]
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


class Weights(NamedTuple):
    """What is read of a run."""

    config: Config
    tokenizers: Tokenizers
    model: Transformer
    params: Params
    progress: Progress
    """Of the last of the steps."""
    steps: list[int]
    """One, or those whose mean the weights are."""

    @property
    def name(self) -> str:
        names = ", ".join(map(str, self.steps))
        return f"step {names}" if len(self.steps) == 1 else f"average of steps {names}"

    @property
    def minutes(self) -> float:
        return self.progress.seconds / 60


def load_weights(choice: Choice, mesh: Mesh) -> Weights:
    """Reads the weights, and all that is needed to use them. Raises UserError as `load` does."""
    config = choice.run.load_config()
    tokenizers = Tokenizers.load(choice.run.tokenizers(config.tokenizer.shared))
    model = Transformer(
        config.model, tokenizers.vocab_size, tokenizers.target.bos_id, tokenizers.shared
    )
    with Checkpoints(choice.run.checkpoints) as checkpoints:
        steps = choose_steps(checkpoints, choice.checkpoint, config.checkpoint.keep_newest)
        params = checkpoints.average(steps, abstract_params(model, mesh))
        progress = checkpoints.progress(steps[-1])
    steps = progress.averaged_steps or steps
    return Weights(config, tokenizers, model, params, progress, steps)


def trained_steps(run: RunDirectory) -> list[int]:
    """The steps that a run has checkpoints of, ascending; none where there is nothing yet."""
    if not run.checkpoints.is_dir():
        return []
    with Checkpoints(run.checkpoints) as checkpoints:
        return _trained(checkpoints)


def is_trained(run: RunDirectory) -> bool:
    """Whether the newest checkpoint is the last: of the last step, or that of the end of patience.

    So it is not where training was stopped before.
    """
    train = run.load_config().train
    if not run.checkpoints.is_dir():
        return False
    with Checkpoints(run.checkpoints) as checkpoints:
        steps = _trained(checkpoints)
        if not steps:
            return False
        progress = checkpoints.progress(steps[-1])
    return steps[-1] >= train.num_steps or progress.is_out_of_patience(train.patience)


def _trained(checkpoints: Checkpoints) -> list[int]:
    # Step 0 is the trial of whether checkpoints can be written: its weights are random.
    return [step for step in checkpoints.steps() if step > 0]


def choose_steps(checkpoints: Checkpoints, checkpoint: str, keep_newest: int) -> list[int]:
    """The steps that the text of a `Choice` means, ascending, of a run that keeps so many newest.

    Raises UserError where it means none, or the run has not all of them.
    """
    steps = _trained(checkpoints)
    if not steps:
        raise UserError(f"{checkpoints.directory}: no complete checkpoint; train first")
    known = f"it has {', '.join(map(str, steps))}"
    average, colon, which = checkpoint.partition(":")
    if colon and average == "average":
        chosen = _choose_several(checkpoints, steps, which, keep_newest)
    elif checkpoint == "newest":
        chosen = steps[-1:]
    elif checkpoint == "best":
        chosen = _best(checkpoints, steps)[:1]
    else:
        chosen = [int(checkpoint)] if checkpoint.isdecimal() else []
    if not chosen:
        raise UserError(
            f"no checkpoint {checkpoint!r}: it must be newest, best, a step, or one of average:5, "
            f"average:best:5, average:1000-5000, average:1000-5000:500, average:1000,2000; {known}"
        )
    missing = sorted(set(chosen) - set(steps))
    if missing:
        names = ", ".join(map(str, missing))
        raise UserError(f"{checkpoints.directory}: no checkpoint {names}; {known}")
    return sorted(chosen)


def _choose_several(
    checkpoints: Checkpoints, steps: list[int], which: str, keep_newest: int
) -> list[int]:
    """Those of `average:WHICH`; none where that means nothing."""
    if which.isdecimal():
        count = int(which)
        if count > keep_newest:
            # Among more there would be old ones that are kept for their score.
            raise UserError(
                f"average:{count}: the run keeps checkpoint.keep_newest = {keep_newest}"
            )
        return _take(checkpoints, steps[::-1], count)
    if which.startswith("best:") and which[5:].isdecimal():
        return _take(checkpoints, _best(checkpoints, steps), int(which[5:]))
    if span := re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", which):
        first, last, every = (int(group or 0) for group in span.groups())
        if every:
            return list(range(first, last + 1, every))
        return [step for step in steps if first <= step <= last]
    if re.fullmatch(r"\d+(,\d+)+", which):
        chosen = sorted(set(map(int, which.split(","))))
        is_made_of_them = checkpoints.progress(steps[-1]).averaged_steps == chosen
        return steps[-1:] if is_made_of_them else chosen
    return []


def _take(checkpoints: Checkpoints, ranked: list[int], count: int) -> list[int]:
    if count > len(ranked):
        raise UserError(
            f"{checkpoints.directory}: the mean of {count} is asked for, but it has only "
            f"{', '.join(map(str, ranked))}"
        )
    return ranked[:count]


def _best(checkpoints: Checkpoints, steps: list[int]) -> list[int]:
    """The steps whose checkpoints are kept for their score, the best first."""
    progress = checkpoints.progress(steps[-1])
    if progress.best_score is None:
        raise UserError(f"{checkpoints.directory}: no checkpoint has been scored yet")
    return [int(step) for _, step in progress.best]
