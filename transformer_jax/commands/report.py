"""report RUN [RUN ...]: one page about runs, which any browser shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.commands.shared import parse, say, split_runs
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.report import AttentionMap, Evaluated, Run
    from transformer_jax.report_page import Section


@dataclass(frozen=True)
class ReportOptions:
    """Writes one HTML page about runs, which needs no other file and no network.

    It shows how they were trained and configured, the results of `evaluate`, whether the others
    differ from the first by more than chance, and translations side by side.
    """

    output: str = "report.html"
    """File to write."""
    directory: str = ""
    """Folder of the runs' text files, where it is not the one trained with."""
    sentences: int = 200
    """Sentences shown of every test set, drawn at random; 0 shows all."""
    seed: int = 0
    """Which sentences are drawn."""
    attention_maps: int = 50
    """How many of them get an attention map, which needs the first run's checkpoint."""


def run(arguments: list[str]) -> int:
    """Writes a page about runs; see `ReportOptions`."""
    paths, rest = split_runs(arguments, "report RUN [RUN ...]")
    options = parse("report", ReportOptions(), rest)
    write_report(paths, options)
    return 0


def write_report(paths: Sequence[str], options: ReportOptions) -> None:
    """Reads the runs and writes the page, whole or not at all."""
    from transformer_jax.data.text import atomic_writer
    from transformer_jax.report import find_evaluated, read_runs
    from transformer_jax.report_page import make_report

    for name in ("sentences", "attention_maps"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}: 0 or more")
    path = Path(options.output).expanduser()
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it, or change --output")
    runs = read_runs(paths)
    evaluated = find_evaluated(runs, options.directory)
    sections = [_make_section(one, runs, options) for one in evaluated]
    text = make_report(runs, sections)
    with atomic_writer(path) as file:
        file.write(text.encode())
    say(f"report in {path}")


def _make_section(
    evaluated: "Evaluated", runs: "Sequence[Run]", options: ReportOptions
) -> "Section":
    from transformer_jax.report import compare
    from transformer_jax.report_page import Sample, Section
    from transformer_jax.sentences import by_length, count_words, draw, sentence_scores

    references, language = evaluated.references, evaluated.target_language
    systems = [system.hypotheses for system in evaluated.systems]
    if not systems:
        return Section(evaluated, {}, [], None)
    say(f"{evaluated.name}: comparing {len(systems)} runs on {len(references[0])} sentences")
    numbers = draw(len(references[0]), options.sentences, options.seed)
    shown = [[reference[number] for number in numbers] for reference in references]
    scored = [sentence_scores([lines[number] for number in numbers], shown) for lines in systems]
    maps, no_maps = _make_maps(evaluated, runs, numbers[: options.attention_maps])
    sample = Sample(
        numbers=numbers,
        words=count_words(shown[0], language),
        signature=scored[0][0],
        scores=[scores for _, scores in scored],
        maps=maps,
        no_maps=no_maps,
    )
    groups = by_length(systems, references, language)
    return Section(evaluated, compare(evaluated), groups, sample)


def _make_maps(
    evaluated: "Evaluated", runs: "Sequence[Run]", numbers: Sequence[int]
) -> "tuple[list[AttentionMap | str], str]":
    """The attention maps of sentences, or none and why there are none."""
    from transformer_jax.report import attention_maps

    if not numbers or evaluated.test_set is None:
        return [], ""
    system = evaluated.systems[0]
    (run,) = (run for run in runs if run.name == system.name)
    sources = [evaluated.test_set.sources[number] for number in numbers]
    hypotheses = [system.hypotheses[number] for number in numbers]
    try:
        return list(attention_maps(run, system.checkpoint, sources, hypotheses)), ""
    except UserError as error:
        return [], str(error)
