"""The folder of a run: all that is needed to go on with it, and to translate with it.

| name | content |
|---|---|
| `config.json` | the resolved configuration |
| `tokenizer.model` | the SentencePiece model, or `tokenizer.source.model` and `.target.model` |
| `checkpoints/` | see `checkpoint.py` |
| `tokens.json` | where the training and validation pairs lie as tokens |
| `metrics.jsonl`, `tensorboard/` | what training reported |
| `profile/` | the trace that `profile.steps` asked for |
| `evaluations/`, `evaluations.jsonl` | translations of test sets, and their scores |
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_jax.config import Config
from transformer_jax.data.text import atomic_writer
from transformer_jax.errors import UserError
from transformer_jax.experiment import from_json, to_json

FREE_TO_CHANGE = (
    "run_directory",
    "data.directory",
    "data.test",
    "data.token_directory",
    "data.inspection",
    "data.prefetch_batches",
    "mesh.",
    "distributed.",
    "profile.",
    "model.remat",
    "model.attention",
    "loss.num_chunks",
    "train.num_steps",
    "train.log_interval",
    "train.dev_",
    "train.patience",
    "train.max_skipped_updates",
    "checkpoint.",
    "decode.",
)
"""Fields that may differ when a run goes on: they do not change what an update computes.

A name that ends in a dot or an underscore stands for all that begin with it.
"""


class RunDirectory:
    """The paths of a run."""

    def __init__(self, path: str):
        self.path = _expanded(path)
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.tokens = self.path / "tokens.json"
        self.profile = self.path / "profile"
        self.evaluations = self.path / "evaluations"
        self.results = self.path / "evaluations.jsonl"

    def tokenizers(self, shared: bool) -> tuple[Path, ...]:
        """The model file of both sides, or those of source and target."""
        names = ("tokenizer",) if shared else ("tokenizer.source", "tokenizer.target")
        return tuple(self.path / f"{name}.model" for name in names)

    @contextmanager
    def creating(self, *others: Path) -> Iterator[None]:
        """Makes the folder and tries to write in it; where the block fails, all is as before.

        What is in `others` and was not there goes, too.

        Raises UserError where the folder cannot be written to.
        """
        wanted = (*others, self.path, *self.path.parents)
        new = [path for path in wanted if not path.exists()]
        self._create()
        try:
            yield
        except BaseException:
            for path in new:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written to ({error.strerror}); change --run-directory"
            ) from None

    def load_config(self) -> Config:
        """The configuration of a run that exists."""
        if not self.config.is_file():
            raise UserError(f"{self.path}: not a run's directory (it holds no config.json)")
        try:
            text = self.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.config}: cannot be read ({error})") from None
        return from_json(text, str(self.config))

    def check_same_experiment(self, config: Config) -> None:
        """Raises UserError where the run was begun with settings that make it another one."""
        if not self.config.is_file():
            return
        before = self.load_config()
        for name in differences(before, config):
            raise UserError(
                f"{self.path} was begun with {name} = {flatten(before)[name]!r}, not "
                f"{flatten(config)[name]!r}: go on with the same value, or give another "
                "--run-directory"
            )

    def save_config(self, config: Config) -> None:
        """Writes the resolved configuration, whole or not at all."""
        with atomic_writer(self.config) as file:
            file.write(to_json(config).encode())


def differences(one: Config, other: Config) -> list[str]:
    """The paths of the fields, but those that are `FREE_TO_CHANGE`, whose values differ."""
    values = flatten(other)
    return [
        name for name, value in flatten(one).items() if value != values[name] and not _is_free(name)
    ]


def _is_free(name: str) -> bool:
    return name.startswith(tuple(free for free in FREE_TO_CHANGE if free[-1] in "._")) or (
        name in FREE_TO_CHANGE
    )


def _expanded(path: str) -> Path:
    if "://" in path:
        raise UserError(f"{path}: a run's directory must be on a disk, local or shared; mount one")
    expanded = os.path.expanduser(os.path.expandvars(path))
    if expanded.startswith("~") or "$" in expanded:
        raise UserError(f"{path}: no such user or environment variable")
    return Path(os.path.abspath(expanded))


def flatten(config: Config) -> dict[str, object]:
    """Every field of a configuration by its path, such as `model.d_model`."""
    flat: dict[str, object] = {}
    for section, values in dataclasses.asdict(config).items():
        if isinstance(values, dict):
            flat |= {f"{section}.{name}": value for name, value in values.items()}
        else:
            flat[section] = values
    return flat
