"""A trainer, translator and evaluator for the Transformer of "Attention Is All You Need"."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_jax.loading import LoadedModel


def load(run: str, *others: str, checkpoint: str | int = "newest") -> "LoadedModel":
    """The model of a run's directory, on all devices; with `others` an ensemble of all.

    `checkpoint` is `newest`, `best`, a step, or `average:5` for the mean of the 5 newest. Raises
    `transformer_jax.errors.UserError` where a run has no such checkpoint, or is none.
    """
    from transformer_jax import loading

    choices = [loading.Choice.of(path, checkpoint) for path in (run, *others)]
    return loading.load(choices, choices[0].run.load_config().decode)
