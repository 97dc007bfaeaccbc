"""What is known of runs, read from their directories: metrics, scores, translations, attention."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from transformer_jax import test_sets
from transformer_jax.config import Config
from transformer_jax.data.text import read_lines
from transformer_jax.errors import UserError
from transformer_jax.evaluate import base_language, check_lines, make_metrics
from transformer_jax.results import read_results, read_rows, steps_of
from transformer_jax.run_directory import RunDirectory
from transformer_jax.significance import Comparison, paired_test
from transformer_jax.test_sets import TestSet


class Run(NamedTuple):
    """A run, by the name that the page gives it."""

    name: str
    directory: RunDirectory
    config: Config
    metrics: list[dict]
    """Rows of `metrics.jsonl`."""
    results: list[dict]
    """Rows of `evaluations.jsonl` with signatures and fingerprint."""
    old_results: int
    """How many rows there are without."""


class System(NamedTuple):
    """A run's newest translations of a test set."""

    name: str
    """The run's."""
    checkpoint: str
    """Such as `step 1000`."""
    hypotheses: list[str]


class Evaluated(NamedTuple):
    """A test set, and what several runs made of it."""

    name: str
    fingerprint: str
    target_language: str
    test_set: TestSet | None
    """None where its text is not found any more."""
    systems: list[System]
    """In the order of the runs; the first is the baseline."""
    absent: list[str]
    """What could not be read, and why."""

    @property
    def references(self) -> list[list[str]]:
        """All references; none where the text is not found."""
        return list(self.test_set.references.values()) if self.test_set else []


class AttentionMap(NamedTuple):
    """The cross-attention with which a hypothesis is predicted, in 8 bits a weight."""

    source: list[str]
    """Pieces, with the end mark, as are those of the target."""
    target: list[str]
    layers: int
    heads: int
    weights: str
    """Base64 of bytes: [layers, heads, target, source], where 255 is a weight of 1."""


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Reads runs' directories, and names them by their folders where those differ.

    Raises UserError where one is none or given twice, or a file in it is broken.
    """
    directories = [RunDirectory(path) for path in paths]
    if len({directory.path for directory in directories}) < len(paths):
        raise UserError("a run is given twice")
    folders = [directory.path.name for directory in directories]
    names = folders if len(set(folders)) == len(folders) else paths
    return [_read_run(*named) for named in zip(names, directories, strict=True)]


def _read_run(name: str, directory: RunDirectory) -> Run:
    config = directory.load_config()
    metrics = read_rows(directory.path / "metrics.jsonl")
    rows = read_results(directory)
    results = [row for row in rows if row.get("signatures") and row.get("fingerprint")]
    return Run(name, directory, config, metrics, results, len(rows) - len(results))


def curve(run: Run, split: str, *names: str) -> dict[int, float | None]:
    """The sum of some metrics by step; of a step that was repeated, the later one."""
    points = {}
    for row in run.metrics:
        if row.get("split") == split and names[0] in row:
            values = [row[name] for name in names]
            points[row["step"]] = None if None in values else sum(values)
    return dict(sorted(points.items()))


def find_evaluated(runs: Sequence[Run], directory: str = "") -> list[Evaluated]:
    """The test sets that runs translated, as their newest results say.

    `directory` is the folder of the runs' text, where it is not the one trained with.
    """
    newest: dict[str, dict[str, dict]] = {}
    for run in runs:
        for result in run.results:
            newest.setdefault(result["fingerprint"], {})[run.name] = result
    by_name = {run.name: run for run in runs}
    return [
        _read_evaluated(fingerprint, results, by_name, directory)
        for fingerprint, results in newest.items()
    ]


def _read_evaluated(
    fingerprint: str, results: Mapping[str, dict], runs: Mapping[str, Run], directory: str
) -> Evaluated:
    test_set, absent, systems = None, [], []
    for name, result in results.items():
        try:
            test_set = _find_test_set(result, runs[name].config, directory)
            break
        except UserError as error:
            absent.append(f"The text of {result['test_set']} is not found: {error}.")
    if test_set:
        absent = []
        for name, result in results.items():
            try:
                hypotheses = _read_hypotheses(runs[name], result, test_set)
                systems.append(System(name, result["checkpoint"], hypotheses))
            except UserError as error:
                absent.append(f"The translations of {name} are not shown: {error}.")
    first = next(iter(results))
    language = runs[first].config.data.target_language
    shown = results[first]["test_set"]
    return Evaluated(shown, fingerprint, language, test_set, systems, absent)


def _find_test_set(result: dict, config: Config, directory: str) -> TestSet:
    """The test set of a result, read anew. Raises UserError where it is gone, or another now."""
    data = replace(config.data, directory=directory) if directory else config.data
    name, references = result["test_set"], result["references"]
    if result.get("sources"):
        found = test_sets.read_files(result["sources"], references)
    elif references == [data.test]:
        found = test_sets.read_own(data)
    elif name.startswith(test_sets.PREFIX):
        languages = base_language(data.source_language), base_language(data.target_language)
        found = test_sets.read_sacrebleu(name, languages, lambda text: None)
    else:
        raise UserError("its result does not name the file of the sources; evaluate again")
    if found.fingerprint != result["fingerprint"]:
        raise UserError("its text is another now, or not the run's own; evaluate again")
    return found


def _read_hypotheses(run: Run, result: dict, test_set: TestSet) -> list[str]:
    # By its name alone: the run may have been moved.
    file = run.directory.evaluations / Path(result["hypotheses"]).name
    lines = list(read_lines(file))
    check_lines(lines, test_set.references, str(file))
    return lines


def compare(evaluated: Evaluated) -> dict[str, tuple[str, dict[str, Comparison]]]:
    """Signature and comparisons of each score, by sacreBLEU's paired bootstrap with the first."""
    if len(evaluated.systems) < 2:
        return {}
    texts = {system.name: system.hypotheses for system in evaluated.systems}
    return {
        name: paired_test("bootstrap", texts, evaluated.references, metric)
        for name, metric in make_metrics(evaluated.target_language).items()
    }


def attention_maps(
    run: Run, checkpoint: str, sources: Sequence[str], hypotheses: Sequence[str]
) -> Iterator[AttentionMap | str]:
    """The map of every pair, or why there is none, by the weights that made the hypotheses.

    Raises UserError where the run does not have that checkpoint any more.
    """
    import numpy as np

    from transformer_jax.loading import Choice, load

    steps = ",".join(map(str, steps_of(checkpoint)))
    chosen = f"average:{steps}" if "," in steps else steps
    model = load([Choice(run.directory, chosen)], run.config.decode)
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        try:
            maps = model.attention(source, hypothesis)
        except UserError as error:  # of a sentence that was translated in parts
            yield str(error)
            continue
        layers, heads, *_ = maps.cross.shape
        weights = base64.b64encode(np.round(maps.cross * 255).astype(np.uint8)).decode()
        yield AttentionMap(maps.source_pieces, maps.target_pieces, layers, heads, weights)
