"""Scores of what systems translated, one beside the other: told, printed, and kept by each run."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from transformer_jax.commands.shared import say
from transformer_jax.commands.systems import Output
from transformer_jax.results import Result, add_result, decimals
from transformer_jax.run_directory import differences

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

    from transformer_jax.evaluate import Score
    from transformer_jax.test_sets import TestSet


class Question(NamedTuple):
    """What is asked of translations."""

    metrics: dict[str, "Metric"]
    comet: bool
    paired: Literal["none", "bootstrap", "approximate-randomization"]

    @property
    def names(self) -> set[str]:
        """Of the scores."""
        return {*self.metrics, *(["COMET"] if self.comet else [])}


def compare(outputs: Sequence[Output], test_set: "TestSet", question: Question) -> None:
    """Scores translations; a table on standard error, and results on standard output."""
    scored = [_scores(output, test_set, question) for output in outputs]
    results = [
        {
            "system": output.system.name,
            "test_set": test_set.name,
            "fingerprint": test_set.fingerprint,
            "sentences": len(output.hypotheses),
            "sources": test_set.source_file,
            "references": list(test_set.references),
            **{name: round(score.score, decimals(name)) for name, score in scores.items()},
            "signatures": {name: score.signature for name, score in scores.items()},
            **output.facts,
        }
        for output, scores in zip(outputs, scored, strict=True)
    ]
    if question.paired != "none":
        _add_paired(results, outputs, test_set, question)
    _show(results, outputs, test_set)
    for result, output in zip(results, outputs, strict=True):
        print(json.dumps(result, ensure_ascii=False), flush=True)
        if run := output.system.run:
            add_result(run, result)
            say(f"hypotheses in {output.facts['hypotheses']}, results in {run.results}")
    if question.paired == "none":
        _report_seeds(outputs, results, scored)


def _scores(output: Output, test_set: "TestSet", question: Question) -> dict[str, "Score"]:
    from transformer_jax.comet import MODEL, comet
    from transformer_jax.evaluate import Score, scores

    found = scores(question.metrics, output.hypotheses, test_set.references)
    if question.comet:
        (reference,) = test_set.references.values()
        score = comet(test_set.sources, output.hypotheses, reference)
        found["COMET"] = Score(score, f"model:{MODEL}")
    return found


def _add_paired(
    results: Sequence[Result], outputs: Sequence[Output], test_set: "TestSet", question: Question
) -> None:
    """Adds the paired test of each score to the results."""
    from transformer_jax.significance import paired_test

    assert question.paired != "none"
    systems = {output.system.name: output.hypotheses for output in outputs}
    paired = [{"test": question.paired, "baseline": outputs[0].system.name} for result in results]
    for name, metric in question.metrics.items():
        say(f"paired {question.paired} of {name}")
        references = list(test_set.references.values())
        signature, comparisons = paired_test(question.paired, systems, references, metric)
        for one, system in zip(paired, systems, strict=True):
            one[name] = comparisons[system]._asdict() | {"signature": signature}
    for result, one in zip(results, paired, strict=True):
        result["paired"] = one


def _show(results: Sequence[Result], outputs: Sequence[Output], test_set: "TestSet") -> None:
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
            score = f"{result[name]:>8.{decimals(name)}f}"
            say(f"  {score}  {result['system']}  {checkpoint}  {p}".rstrip())


def _report_seeds(
    outputs: Sequence[Output], results: Sequence[Result], scored: Sequence[dict[str, "Score"]]
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
        digits = decimals(name)
        spoken = f"{one['mean']:.{digits}f} +- {one['sd']:.{digits}f}"
        say(f"{name}  {spoken} over {len(seeds)} seeds")
    shared = {name: results[0][name] for name in ("test_set", "fingerprint", "signatures")}
    systems = {
        output.system.name: config.train.seed
        for output, config in zip(outputs, configs, strict=True)
    }
    print(json.dumps(shared | {"seeds": systems} | spread, ensure_ascii=False))
