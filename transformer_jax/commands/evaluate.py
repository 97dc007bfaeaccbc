"""evaluate RUN [RUN ...]: translates a test set, scores it, and compares what is given."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from transformer_jax.commands.shared import (
    choose,
    parse,
    say,
    split_checkpoint,
    split_runs,
    translate_lines,
)
from transformer_jax.config import Config, DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory, differences

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

    from transformer_jax.data.sources import Given
    from transformer_jax.evaluate import Score
    from transformer_jax.test_sets import TestSet

MetricName = Literal["BLEU", "paper_BLEU", "chrF", "TER", "COMET"]


@dataclass(frozen=True)
class EvaluateOptions:
    """Scores translations of a test set, by default the one of the first run.

    What is scored is a run, a checkpoint of it as RUN@CHECKPOINT (newest, best, a step, or
    average:N), or a file of translations; several are compared. Where they are runs of one
    experiment with several seeds, that is their mean.
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
    detokenize: bool = False
    """The files of translations are tokenised by Moses: make raw text of them first."""
    metrics: tuple[MetricName, ...] = ()
    """Scores; by default all that suit the language, but COMET, which needs `comet-score`."""
    paired: Literal["none", "bootstrap", "approximate-randomization"] = "none"
    """sacreBLEU's test of whether the others differ from the first by more than chance."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


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


def run(arguments: list[str]) -> int:
    """Scores the translations of a test set; see `EvaluateOptions`."""
    names, rest = split_runs(arguments, "evaluate RUN [RUN or FILE ...]")
    systems = [_find(name) for name in names if name]
    config = _first_config(systems)
    default = EvaluateOptions(decode=config.decode if config else DecodeConfig())
    options = parse("evaluate", default, rest)

    from transformer_jax.distributed import join

    join(options.distributed)
    evaluate_systems(systems, options)
    return 0


def _find(name: str) -> System:
    path = Path(name).expanduser()
    if path.exists() and not path.is_dir():
        return System(name)
    run = RunDirectory(split_checkpoint(name)[0])
    return System(name, run, run.load_config())


def _first_config(systems: Sequence[System]) -> Config | None:
    return next((system.config for system in systems if system.config), None)


def evaluate_systems(
    systems: Sequence[System], options: EvaluateOptions, given: "Given | None" = None
) -> None:
    """Translates, scores, compares, tells, and keeps the results of each run in its directory."""
    from transformer_jax.distributed import check_agreement, is_first
    from transformer_jax.evaluate import check_lines, doubts, make_metrics

    languages = _check(systems, options)
    names = [name for name in options.metrics if name != "COMET"] if options.metrics else None
    metrics = make_metrics(languages[1], names)
    test_set = _read_test_set(systems, options, languages, given)
    if "COMET" in options.metrics and not (test_set.sources and len(test_set.references) == 1):
        raise UserError("COMET needs the sources and one reference")
    check_agreement({"the test set": test_set.fingerprint})
    outputs = [_read(system, options, languages[1]) for system in systems if not system.run]
    for output in outputs:
        check_lines(output.hypotheses, test_set.references, output.system.name)
    outputs += [_translate(system, options, test_set) for system in systems if system.run]
    outputs.sort(key=lambda output: systems.index(output.system))
    if not is_first():
        return
    if doubt := test_set.doubt(languages):
        say(f"WARNING: {doubt}")
    texts = {output.system.name: output.hypotheses for output in outputs}
    for doubt in doubts(texts, test_set.references, languages[1]):
        say(f"WARNING: {doubt}")
    _report(outputs, test_set, metrics, options)


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
    pairs = {(c.data.source_language, c.data.target_language) for c in configs} or {("", "")}
    if len(pairs) > 1:
        raise UserError(f"the runs are of different languages: {sorted(pairs)}")
    source, target = pairs.pop()
    source, target = options.source_language or source, options.target_language or target
    if not target:
        raise UserError("which language are the translations in? give --target-language")
    return source, target


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
    config = _first_config(systems)
    if config is None:
        raise UserError("files of translations need --references, or --test-set")
    data = config.data
    if options.directory:
        data = replace(data, directory=options.directory)
    return test_sets.read_own(data, given)


def _read(system: System, options: EvaluateOptions, target_language: str) -> Output:
    from transformer_jax.data.text import read_lines
    from transformer_jax.evaluate import base_language
    from transformer_jax.moses import detokenize

    lines = list(read_lines(Path(system.name).expanduser()))
    if options.detokenize:
        lines = detokenize(lines, base_language(target_language))
    return Output(system, lines, {"hypotheses": system.name, "detokenized": options.detokenize})


def _translate(system: System, options: EvaluateOptions, test_set: "TestSet") -> Output:
    from transformer_jax.data.text import write_lines
    from transformer_jax.distributed import check_agreement, on_first
    from transformer_jax.loading import load

    run, config, decode = system.run, system.config, options.decode
    assert run is not None and config is not None
    model = load(choose([system.name], options.step, options.average_last), decode)
    check_agreement({"the checkpoint": model.checkpoint})
    start = time.monotonic()
    translations = translate_lines(model, test_set.sources)
    facts = {
        "checkpoint": model.checkpoint,
        "unfinished": sum(not translation.finished for translation in translations),
        "beam_size": decode.beam_size,
        "length_penalty": decode.length_penalty,
        "max_extra_length": decode.max_extra_length,
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


def _report(
    outputs: Sequence[Output],
    test_set: "TestSet",
    metrics: dict[str, "Metric"],
    options: EvaluateOptions,
) -> None:
    """Scores the translations; a table on standard error, and results on standard output."""
    scored = [_scores(output, test_set, metrics, options) for output in outputs]
    results = [
        {
            "system": output.system.name,
            "test_set": test_set.name,
            "fingerprint": test_set.fingerprint,
            "sentences": len(output.hypotheses),
            "sources": options.sources,  # files given here; `report` reads them again
            "references": list(test_set.references),
            **{name: _rounded(name, score.score) for name, score in scores.items()},
            "signatures": {name: score.signature for name, score in scores.items()},
            **output.facts,
        }
        for output, scores in zip(outputs, scored, strict=True)
    ]
    if options.paired != "none":
        _add_paired(results, outputs, test_set, metrics, options)
    _show(results, outputs, test_set)
    for result, output in zip(results, outputs, strict=True):
        line = json.dumps(result, ensure_ascii=False)
        print(line)
        if output.system.run:
            path = output.system.run.results
            with path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")
            say(f"hypotheses in {output.facts['hypotheses']}, results in {path}")
    if options.paired == "none":
        _report_seeds(outputs, results, scored)


def _scores(
    output: Output, test_set: "TestSet", metrics: dict[str, "Metric"], options: EvaluateOptions
) -> dict[str, "Score"]:
    from transformer_jax.comet import MODEL, comet
    from transformer_jax.evaluate import Score, scores

    found = scores(metrics, output.hypotheses, test_set.references)
    if "COMET" in options.metrics:
        (reference,) = test_set.references.values()
        score = comet(test_set.sources, output.hypotheses, reference)
        found["COMET"] = Score(score, f"model:{MODEL}")
    return found


def _rounded(name: str, value: float) -> float:
    return round(value, 4 if name == "COMET" else 2)


def _add_paired(
    results: Sequence[dict],
    outputs: Sequence[Output],
    test_set: "TestSet",
    metrics: dict[str, "Metric"],
    options: EvaluateOptions,
) -> None:
    """Adds the paired test of each score to the results."""
    from transformer_jax.significance import paired_test

    assert options.paired != "none"
    systems = {output.system.name: output.hypotheses for output in outputs}
    for result in results:
        result["paired"] = {"test": options.paired, "baseline": outputs[0].system.name}
    for name, metric in metrics.items():
        say(f"paired {options.paired} of {name}")
        references = list(test_set.references.values())
        signature, comparisons = paired_test(options.paired, systems, references, metric)
        for result in results:
            comparison = comparisons[result["system"]]
            result["paired"][name] = comparison._asdict() | {"signature": signature}


def _show(results: Sequence[dict], outputs: Sequence[Output], test_set: "TestSet") -> None:
    """A few sentences, and a table: the systems below each score."""
    if test_set.sources:
        (reference, *_), hypotheses = test_set.references.values(), outputs[0].hypotheses
        for lines in list(zip(test_set.sources, reference, hypotheses, strict=True))[:3]:
            say("  source      {}\n  reference   {}\n  hypothesis  {}\n".format(*lines))
    say(f"{test_set.name}: {len(outputs[0].hypotheses)} sentences")
    for name, signature in results[0]["signatures"].items():
        say(f"{name}  {signature}")
        for result in results:
            p_value = result.get("paired", {}).get(name, {}).get("p_value")
            p = "" if p_value is None else f"p = {p_value:.4f}"
            checkpoint = result.get("checkpoint", "")
            say(f"  {result[name]:>8}  {result['system']}  {checkpoint}  {p}".rstrip())


def _report_seeds(
    outputs: Sequence[Output], results: Sequence[dict], scored: Sequence[dict[str, "Score"]]
) -> None:
    """Mean and deviation, where all are runs of one experiment that differ in their seeds."""
    from transformer_jax.significance import mean_and_deviation

    configs = [output.system.config for output in outputs if output.system.config]
    seeds = {config.train.seed for config in configs}
    if not (len(seeds) == len(outputs) > 1):
        return
    if any(differences(configs[0], config) != ["train.seed"] for config in configs[1:]):
        return
    values = [{name: score.score for name, score in scores.items()} for scores in scored]
    spread = mean_and_deviation(values)
    for name, one in spread.items():
        say(f"{name}  {one['mean']:.2f} +- {one['sd']:.2f} over {len(seeds)} seeds")
    shared = {name: results[0][name] for name in ("test_set", "fingerprint", "signatures")}
    systems = {
        output.system.name: config.train.seed
        for output, config in zip(outputs, configs, strict=True)
    }
    print(json.dumps(shared | {"seeds": systems} | spread, ensure_ascii=False))
