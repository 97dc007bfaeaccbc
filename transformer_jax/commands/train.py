"""train EXPERIMENT: trains an experiment, or goes on with it, and evaluates it at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from transformer_jax.commands.evaluate import EvaluateOptions, System, evaluate_systems
from transformer_jax.commands.shared import parse, read_experiment, say
from transformer_jax.config import Config
from transformer_jax.run_directory import RunDirectory, flatten

if TYPE_CHECKING:
    from transformer_jax.data.sources import Given
    from transformer_jax.prepare import Prepared


def run(arguments: list[str]) -> int:
    """Trains an experiment, or goes on with it, and evaluates it at the end."""
    config, rest = read_experiment(Config, "train", arguments)
    return train(parse("train", config, rest))


def train(config: Config, given: "Given | None" = None) -> int:
    """Trains, or goes on, and evaluates; returns the exit status.

    `given` has the pairs of the sources `given:NAME`. Raises UserError for a user's mistake.
    """
    run = RunDirectory(config.run_directory)
    run.check_same_experiment(config)

    # A package that scores of the language need should be missed now, not when there are scores.
    if config.train.dev_bleu_interval or config.data.test:
        from transformer_jax.evaluate import make_metrics

        make_metrics(config.data.target_language)
    text = _prepare(config, run, given)
    tokenizers = text.tokenizers

    from transformer_jax import distributed
    from transformer_jax.checkpoint import Checkpoints
    from transformer_jax.model.transformer import Transformer
    from transformer_jax.train import StopSignal, Trainer

    model = Transformer(
        config.model, tokenizers.vocab_size, tokenizers.target.bos_id, tokenizers.shared
    )
    stop = StopSignal()
    with Checkpoints(run.checkpoints, config.checkpoint) as checkpoints:
        trainer = Trainer(config, run, model, text.train, checkpoints, text.store_of)
        trainer.resume()
        distributed.on_first(lambda: run.save_config(config))
        for line in trainer.summary():
            say(line)
        trainer.train(_make_evaluations(config, model, text, trainer, stop), stop)
    say(f"saved step {trainer.step} in {run.checkpoints}")
    if stop.number:
        say("stopped by a signal; the same command goes on from here")
        return 128 + stop.number
    say(f"trained {trainer.step} updates in {trainer.progress.seconds / 60:.1f} minutes")
    if config.data.test:
        system = System(config.run_directory, run, config)
        evaluate_systems([system], EvaluateOptions(decode=config.decode), given)
    return 0


def _prepare(config: Config, run: RunDirectory, given: "Given | None") -> "Prepared":
    """The text of the run as tokens, made by the first process, the same in all.

    One process alone does without JAX: a mistake is told at once, and Ctrl-C leaves nothing behind.
    """
    from transformer_jax.prepare import load_prepared, prepare

    if not config.distributed.enabled:
        prepare(config, run, say, given)
        return load_prepared(config, run, given)

    from transformer_jax.distributed import check_agreement, everywhere, join, on_first

    join(config.distributed)
    settings = flatten(config)
    check_agreement({n: v for n, v in settings.items() if not n.startswith("distributed.")})
    on_first(lambda: prepare(config, run, say, given))
    text = everywhere(lambda: load_prepared(config, run, given))
    check_agreement(text.fingerprints())
    return text


def _make_evaluations(config, model, text, trainer, stop) -> list:
    """The loss and BLEU of the validation set, the latter ranking checkpoints where it is asked."""
    from transformer_jax.train import Evaluation, make_dev_loss

    with_bleu = config.train.dev_bleu_interval > 0
    return [
        Evaluation(
            config.train.dev_loss_interval,
            make_dev_loss(config, model, text.dev, trainer, stop),
            score="" if with_bleu else "negative_loss",
        ),
        Evaluation(
            config.train.dev_bleu_interval,
            _make_dev_bleu(config, model, text, trainer, stop),
            score="BLEU",
        ),
    ]


def _make_dev_bleu(config, model, text, trainer, stop) -> Callable:
    """An evaluator of BLEU on the validation set, by beam search with all its pairs."""
    from transformer_jax.evaluate import make_metrics, scores
    from transformer_jax.translate import Translator

    translator = Translator((model,), text.tokenizers, config.decode, trainer.mesh)
    sources, references = zip(*text.dev_pairs, strict=True)
    metrics = make_metrics(config.data.target_language, ["BLEU"])
    if config.train.dev_bleu_interval:
        signature = scores(metrics, references[:1], {"dev": references[:1]})["BLEU"].signature
        say(f"BLEU while training: {signature}")

    def evaluate_bleu(params, step: int) -> dict[str, float]:
        translations = translator.translate((params,), sources, lambda done: stop.check())
        hypotheses = [translation.text for translation in translations]
        return {
            "BLEU": scores(metrics, hypotheses, {"dev": references})["BLEU"].score,
            "unfinished": sum(not translation.finished for translation in translations),
        }

    return evaluate_bleu
