"""What the commands share: their arguments, and what they say while they work."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.config import Config
from transformer_jax.console import is_watched, progress_bar
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.loading import Choice, LoadedModel
    from transformer_jax.translate import Translation

Options = TypeVar("Options")
Experiment = TypeVar("Experiment", bound=Config)


def split_first(arguments: list[str], usage: str) -> tuple[str, list[str]]:
    """The first argument, a path, and the options; no path where help is asked for."""
    if any(argument in ("-h", "--help") for argument in arguments[:1]):
        return "", arguments
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"usage: transformer-jax {usage} [options]; the path comes first")
    return arguments[0], arguments[1:]


def read_experiment(
    cls: type[Experiment], command: str, arguments: list[str]
) -> tuple[Experiment, list[str]]:
    """The first argument's experiment, as options of a command that extend it, and the rest."""
    path, rest = split_first(arguments, f"{command} EXPERIMENT")
    config = load_experiment(path) if path else Config()
    return cls(**{one.name: getattr(config, one.name) for one in fields(config)}), rest


def split_runs(arguments: list[str], usage: str) -> tuple[list[str], list[str]]:
    """The arguments before the first option, which are runs, and the options."""
    first, rest = split_first(arguments, usage)
    end = next((i for i, text in enumerate(rest) if text.startswith("-")), len(rest))
    return [first, *rest[:end]], rest[end:]


def split_checkpoint(run: str) -> tuple[str, str]:
    """`runs/x@best` as path and checkpoint; that is empty without an @, or where all is a path."""
    path, at, checkpoint = run.rpartition("@")
    if not at or os.sep in checkpoint or os.path.exists(os.path.expanduser(run)):
        return run, ""
    return path, checkpoint


def choose(runs: Sequence[str], step: str, average_last: int) -> list["Choice"]:
    """Which weights are meant by runs, some with a checkpoint of their own, and two options."""
    from transformer_jax.loading import Choice

    if average_last < 1:
        raise UserError(f"--average-last is {average_last}: it must be 1 or more")
    if average_last > 1 and step != "newest":
        raise UserError("--average-last takes the newest checkpoints: leave out --step")
    default = step if average_last == 1 else f"average:{average_last}"
    choices = []
    for path, checkpoint in map(split_checkpoint, runs):
        if checkpoint and default != "newest":
            raise UserError(f"{path}@{checkpoint} names a checkpoint: leave out the option for it")
        choices.append(Choice(RunDirectory(path), checkpoint or default))
    return choices


def parse(command: str, default: Options, arguments: list[str]) -> Options:
    """`default` with the options given; tyro explains a wrong one and exits with status 2."""
    import tyro

    return tyro.cli(
        type(default), prog=f"transformer-jax {command}", default=default, args=arguments
    )


def open_run(path: str) -> tuple[RunDirectory, Config]:
    run = RunDirectory(path)
    return run, run.load_config() if path else Config()


def say(text: str) -> None:
    """Tells the user; of several processes, which JAX has joined, the first one does."""
    if "jax" not in sys.modules or sys.modules["jax"].process_index() == 0:
        print(text, file=sys.stderr, flush=True)


def shows_progress() -> bool:
    """Whether this process is the one of the job that a person looks at."""
    from transformer_jax.distributed import is_first

    return is_first() and is_watched()


def translate_lines(model: "LoadedModel", lines: Sequence[str]) -> list["Translation"]:
    """`translate_blocks` of all lines at once."""
    blocks = [(lines, [""] * len(lines))]
    return list(chain.from_iterable(translate_blocks(model, blocks, total=len(lines))))


def translate_blocks(
    model: "LoadedModel",
    blocks: Iterable[tuple[Sequence[str], Sequence[str]]],
    total: int | None,
    **options: object,
) -> Iterator[list["Translation"]]:
    """Translates (lines, their prefixes) block by block, and reports what was cut or is empty.

    A progress bar shows where a person looks, out of `total` lines where that is known.
    """
    first = cut = empty = 0
    with progress_bar(total=total, unit="line", disable=not shows_progress()) as bar:

        def check(done: int) -> None:
            bar.update(first + done - bar.n)

        for lines, prefixes in blocks:
            translations = model.translator.translate(
                model.params, lines, check, prefixes=prefixes, first=first, **options
            )
            for number, translation in enumerate(translations, start=first + 1):
                if len(translation.sources) > 1:
                    parts = len(translation.sources)
                    say(f"line {number} is long: it was translated in {parts} parts")
            cut += sum(not translation.finished for translation in translations)
            empty += sum(
                bool(line.strip()) and not translation.text.strip()
                for line, translation in zip(lines, translations, strict=True)
            )
            first += len(lines)
            yield translations
    if cut:
        say(f"{cut} of {first} translations reached the longest length allowed")
    if empty:
        say(f"{empty} of {first} translations are empty, though their sources are not")
