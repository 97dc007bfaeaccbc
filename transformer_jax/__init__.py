"""A trainer, translator and evaluator for the Transformer of "Attention Is All You Need"."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_jax.loading import LoadedModel


def load(run: str, *others: str, checkpoint: str | int = "newest") -> "LoadedModel":
    """The model of a run's directory, on all devices; with `others` an ensemble of all.

    `checkpoint` is `newest`, `best`, a step, or `average:5` for the mean of the 5 newest, and what
    else `loading.Choice` takes. Raises `transformer_jax.errors.UserError` where a run has no such
    checkpoint, or is none.
    """
    from transformer_jax import loading
    from transformer_jax.run_directory import RunDirectory

    runs = [RunDirectory(path) for path in (run, *others)]
    choices = [loading.Choice(one, str(checkpoint)) for one in runs]
    return loading.load(choices, choices[0].run.load_config().decode)
