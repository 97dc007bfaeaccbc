"""evaluate RUN [RUN ...]: translates a test set, scores it, and compares what is given."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from transformer_jax.commands.comparison import Question, compare
from transformer_jax.commands.shared import choose, parse, say, split_checkpoint, split_runs
from transformer_jax.commands.sweep import sweep
from transformer_jax.commands.systems import (
    Output,
    System,
    find_system,
    first_config,
    read_output,
    translate_set,
)
from transformer_jax.config import DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.data.sources import Given
    from transformer_jax.test_sets import TestSet

MetricName = Literal["BLEU", "paper_BLEU", "chrF", "TER", "COMET"]


@dataclass(frozen=True)
class EvaluateOptions:
    """Scores translations of a test set, by default the one of the first run.

    What is scored is a run, a checkpoint of it as RUN@CHECKPOINT (newest, best, a step, or
    average:N and the like, see `average --help`), or a file of translations; several are compared.
    Where they are runs of one experiment with several seeds, that is their mean. A run keeps its
    results in a table: a line for each checkpoint, test set and search.
    """

    test_set: str = ""
    """One of sacreBLEU's, such as `sacrebleu:wmt14/full`."""
    sources: str = ""
    """File of source sentences."""
    references: tuple[str, ...] = ()
    """Files of reference translations, one or several."""
    source_language: str = ""
    """Language translated from; empty is that of the run."""
    target_language: str = ""
    """Language translated into; empty is that of the run."""
    directory: str = ""
    """Folder of the run's text files, where it is not the one trained with."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    all: bool = False
    """Score every checkpoint of the runs, but those with a result in the table already."""
    watch: bool = False
    """The same, and then each new one, until the training has come to its end."""
    detokenize: bool = False
    """The files of translations are tokenised by Moses: make raw text of them first."""
    metrics: tuple[MetricName, ...] = ()
    """Scores; by default all that suit the language, but COMET, which needs `comet-score`."""
    paired: Literal["none", "bootstrap", "approximate-randomization"] = "none"
    """sacreBLEU's test of whether the others differ from the first by more than chance."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def run(arguments: list[str]) -> int:
    """Scores the translations of a test set; see `EvaluateOptions`."""
    names, rest = split_runs(arguments, "evaluate RUN [RUN or FILE ...]")
    systems = [find_system(name) for name in names if name]
    config = first_config(systems)
    default = EvaluateOptions(decode=config.decode if config else DecodeConfig())
    options = parse("evaluate", default, rest)

    from transformer_jax.distributed import join

    join(options.distributed)
    evaluate_systems(systems, options)
    return 0


def evaluate_systems(
    systems: Sequence[System], options: EvaluateOptions, given: "Given | None" = None
) -> None:
    """Translates, scores, compares, tells, and keeps the results of each run in its directory."""
    from transformer_jax.distributed import check_agreement
    from transformer_jax.evaluate import make_metrics

    languages = _check(systems, options)
    names = [name for name in options.metrics if name != "COMET"] if options.metrics else None
    question = Question(
        make_metrics(languages[1], names), "COMET" in options.metrics, options.paired
    )
    test_set = _read_test_set(systems, options, languages, given)
    if question.comet and not (test_set.sources and len(test_set.references) == 1):
        raise UserError("COMET needs the sources and one reference")
    check_agreement({"the test set": test_set.fingerprint})
    if doubt := test_set.doubt(languages):
        say(f"WARNING: {doubt}")

    def tell(outputs: Sequence[Output]) -> None:
        _tell(outputs, test_set, question, languages[1])

    if options.all or options.watch:
        sweep(systems, options.decode, test_set, tell, question.names, options.watch)
    else:
        tell(_outputs(systems, options, test_set, languages[1]))


def _tell(
    outputs: Sequence[Output], test_set: "TestSet", question: Question, target_language: str
) -> None:
    """Compares outputs, in the first process of the job."""
    from transformer_jax.distributed import is_first
    from transformer_jax.evaluate import doubts

    if not is_first():
        return
    texts = {output.system.name: output.hypotheses for output in outputs}
    for doubt in doubts(texts, test_set.references, target_language):
        say(f"WARNING: {doubt}")
    compare(outputs, test_set, question)


def _outputs(
    systems: Sequence[System], options: EvaluateOptions, test_set: "TestSet", target_language: str
) -> list[Output]:
    """What is given, in its order; the files are looked at before anything is translated."""
    from transformer_jax.evaluate import check_lines

    found = {}
    for system in systems:
        if not system.run:
            output = read_output(system, options.detokenize, target_language)
            check_lines(output.hypotheses, test_set.references, system.name)
            found[system.name] = output
    for system in systems:
        if system.run:
            from transformer_jax.loading import load

            model = load(choose([system.name], options.step, options.average_last), options.decode)
            found[system.name] = translate_set(system, model, options.decode, test_set)
    return [found[system.name] for system in systems]


def _check(systems: Sequence[System], options: EvaluateOptions) -> tuple[str, str]:
    """The languages, source and target, of all systems; UserError for what does not go together."""
    from transformer_jax.comet import find_program

    if len({system.name for system in systems}) < len(systems):
        raise UserError("a run or file is given twice")
    if options.paired != "none" and len(systems) < 2:
        raise UserError("--paired compares with the first: give two runs or files, or more")
    if options.test_set and (options.sources or options.references):
        raise UserError("give --test-set, or --sources and --references, not both")
    if options.sources and not options.references:
        raise UserError("give both --sources and --references, or neither for the run's test set")
    if "COMET" in options.metrics:
        find_program()
        if options.paired != "none":
            raise UserError("COMET has no paired test here: leave out one of them")
    configs = [system.config for system in systems if system.config]
    if configs and options.references and not options.sources:
        raise UserError("give both --sources and --references: a run translates the sources")
    choose([system.name for system in systems if system.run], options.step, options.average_last)
    if options.all or options.watch:
        _check_sweep(systems, options)
    pairs = {(c.data.source_language, c.data.target_language) for c in configs} or {("", "")}
    if len(pairs) > 1:
        raise UserError(f"the runs are of different languages: {sorted(pairs)}")
    source, target = pairs.pop()
    source, target = options.source_language or source, options.target_language or target
    if not target:
        raise UserError("which language are the translations in? give --target-language")
    return source, target


def _check_sweep(systems: Sequence[System], options: EvaluateOptions) -> None:
    name = "--watch" if options.watch else "--all"
    for system in systems:
        if not system.run or split_checkpoint(system.name)[1]:
            raise UserError(f"{name} takes all checkpoints of a run: {system.name} is not a run")
    if (options.step, options.average_last) != ("newest", 1):
        raise UserError(f"{name} takes all checkpoints: leave out --step and --average-last")
    if options.paired != "none":
        raise UserError(f"{name} scores one checkpoint at a time: leave out --paired")


def _read_test_set(
    systems: Sequence[System],
    options: EvaluateOptions,
    languages: tuple[str, str],
    given: "Given | None",
) -> "TestSet":
    from transformer_jax import test_sets
    from transformer_jax.distributed import on_first
    from transformer_jax.evaluate import base_language

    if options.test_set:
        if not options.test_set.startswith(test_sets.PREFIX):
            raise UserError(f"--test-set is {options.test_set!r}: it must be sacrebleu:NAME")
        if not languages[0]:
            raise UserError(f"{options.test_set}: give --source-language, the test set's")
        base = base_language(languages[0]), base_language(languages[1])
        on_first(lambda: test_sets.read_sacrebleu(options.test_set, base, say))  # the download
        return test_sets.read_sacrebleu(options.test_set, base, say)
    if options.references:
        return test_sets.read_files(options.sources, options.references)
    config = first_config(systems)
    if config is None:
        raise UserError("files of translations need --references, or --test-set")
    data = config.data
    if options.directory:
        data = replace(data, directory=options.directory)
    return test_sets.read_own(data, given)
