"""What `evaluate` scores: runs, and files of translations."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.commands.shared import split_checkpoint, translate_lines
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.loading import LoadedModel
    from transformer_jax.test_sets import TestSet


class System(NamedTuple):
    """Something that translates, as it was named on the command line."""

    name: str
    run: RunDirectory | None = None
    """None for a file of translations."""
    config: Config | None = None


class Output(NamedTuple):
    """The translations of a system, and what is known of how it made them."""

    system: System
    hypotheses: list[str]
    facts: dict[str, object]


def find_system(name: str) -> System:
    """The run or file of a name; UserError where it is neither."""
    path = Path(name).expanduser()
    if path.exists() and not path.is_dir():
        return System(name)
    run = RunDirectory(split_checkpoint(name)[0])
    return System(name, run, run.load_config())


def first_config(systems: Sequence[System]) -> Config | None:
    """The configuration of the first run, where there is one."""
    return next((system.config for system in systems if system.config), None)


def read_output(system: System, detokenize: bool, target_language: str) -> Output:
    """The lines of a file of translations."""
    from transformer_jax import moses
    from transformer_jax.data.text import read_lines
    from transformer_jax.evaluate import base_language

    lines = list(read_lines(Path(system.name).expanduser()))
    if detokenize:
        lines = moses.detokenize(lines, base_language(target_language))
    return Output(system, lines, {"hypotheses": system.name, "detokenized": detokenize})


def translate_set(
    system: System, model: "LoadedModel", decode: DecodeConfig, test_set: "TestSet"
) -> Output:
    """A model's translations of a test set, which a file in its run's directory keeps."""
    from transformer_jax.data.text import write_lines
    from transformer_jax.distributed import check_agreement, on_first

    run, config = system.run, system.config
    assert run is not None and config is not None
    check_agreement({"the checkpoint": model.checkpoint})
    start = time.monotonic()
    translations = translate_lines(model, test_set.sources)
    facts = search_facts(decode) | {
        "checkpoint": model.checkpoint,
        "unfinished": sum(not translation.finished for translation in translations),
        "minutes_trained": round(model.minutes_trained, 1),
        "seconds": round(time.monotonic() - start, 1),
    }
    hypotheses = [translation.text for translation in translations]
    name = test_set.name.replace("/", "-").replace(":", "-")
    stem = model.checkpoint.replace(" ", "-").replace(",", "")
    search = f"beam{decode.beam_size}-alpha{decode.length_penalty:g}"
    # Two test sets may have the same name.
    which = f"{name}-{test_set.fingerprint[:8]}"
    file = run.evaluations / f"{which}.{stem}.{search}.{config.data.target_language}"

    def write() -> None:
        run.evaluations.mkdir(exist_ok=True)
        write_lines(file, hypotheses)

    on_first(write)
    return Output(system, hypotheses, facts | {"hypotheses": str(file)})


def search_facts(decode: DecodeConfig) -> dict[str, object]:
    """The options of the search that change what it finds."""
    names = ("beam_size", "length_penalty", "max_extra_length", "min_length", "max_source_length")
    return {name: getattr(decode, name) for name in names}
