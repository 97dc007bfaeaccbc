"""What the commands share: their arguments, and what they say while they work."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.load import LoadedModel

Options = TypeVar("Options")


def split_first(arguments: list[str], usage: str) -> tuple[str, list[str]]:
    """The first argument, a path, and the options; no path where help is asked for."""
    if any(argument in ("-h", "--help") for argument in arguments[:1]):
        return "", arguments
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"usage: transformer-jax {usage} [options]; the path comes first")
    return arguments[0], arguments[1:]


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


def translate_lines(model: "LoadedModel", lines: Sequence[str]) -> list:
    """Translates with a progress bar where a person looks, and reports what was cut."""
    from tqdm.auto import tqdm

    from transformer_jax.distributed import is_first

    watched = is_first() and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    with tqdm(total=len(lines), unit="line", disable=not watched) as bar:
        translations = model.translator.translate(
            model.params, lines, lambda done: bar.update(done - bar.n) and None
        )
    for number, translation in enumerate(translations, start=1):
        if translation.parts > 1:
            say(f"line {number} is long: it was translated in {translation.parts} parts")
    cut = sum(not translation.finished for translation in translations)
    if cut:
        say(f"{cut} of {len(lines)} translations reached the longest length allowed")
    empty = sum(
        bool(line.strip()) and not translation.text.strip()
        for line, translation in zip(lines, translations, strict=True)
    )
    if empty:
        say(f"{empty} of {len(lines)} translations are empty, though their sources are not")
    return translations
