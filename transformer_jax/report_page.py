"""A report about runs as one HTML page: curves, configurations, scores, sentences."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax import page
from transformer_jax.report import AttentionMap, Evaluated, Run, curve
from transformer_jax.results import decimals
from transformer_jax.run_directory import differences, flatten
from transformer_jax.sentences import Group, mark_differences
from transformer_jax.significance import Comparison

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by the colour-blind too."""

_CURVES = {
    "loss": ("Loss", "loss"),
    "perplexity": ("Perplexity", "perplexity"),
    "learning_rate": ("Learning rate", "learning_rate"),
    "throughput": (
        "Tokens a second, source and target",
        "source_tokens_per_second",
        "target_tokens_per_second",
    ),
    "BLEU": ("BLEU", "BLEU"),
}
"""Title, and the metrics of `metrics.jsonl` whose sum is drawn, by the name of the figure."""

_DECODING = {
    "beam_size": "beam",
    "length_penalty": "penalty",
    "max_extra_length": "extra length",
}


class Sample(NamedTuple):
    """The sentences of a test set that are shown."""

    numbers: list[int]
    """Their places in the test set, from 0 on."""
    words: list[int]
    """Of their first references."""
    signature: str
    """Of `scores`."""
    scores: list[list[float]]
    """Of every system, for every sentence shown."""
    maps: list[AttentionMap | str]
    """Of the first of these sentences, with the first system's translation."""
    no_maps: str
    """Why there are none; empty where there are some, or none were asked for."""


class Section(NamedTuple):
    """What the page tells about a test set."""

    evaluated: Evaluated
    comparisons: Mapping[str, tuple[str, dict[str, Comparison]]]
    """Signature and comparisons by the name of the score."""
    groups: Sequence[Group]
    sample: Sample | None
    """None where there are no sentences to show."""


def make_report(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    """The page as text. What comes from the corpus is shown as text, whatever it holds."""
    figures = _draw_curves(runs)
    curves = "".join(page.plot(name, _CURVES[name][0]) for name in figures)
    body = [
        "<h2>Training</h2>",
        *map(page.paragraph, _without_metrics(runs, figures)),
        f'<div class="plots">{curves}</div>',
        "<h2>Configuration</h2>",
        *_show_configurations(runs),
        "<h2>Scores</h2>",
        *_show_results(runs),
    ]
    for number, section in enumerate(sections):
        body += _show_section(number, section)
        if section.groups:
            figures[f"lengths-{number}"] = _draw_groups(section)
    return page.make_page(
        title=f"Report: {', '.join(run.name for run in runs)}",
        body="\n".join(body),
        figures=figures,
        data=[_sample_data(section) for section in sections],
        assets=["report_page.css", "report_page.js"],
    )


# --- Training ------------------------------------------------------------------------------------


def _draw_curves(runs: Sequence[Run]) -> "dict[str, Figure]":
    from plotly.graph_objects import Figure

    figures = {}
    for figure_name, (_, *names) in _CURVES.items():
        lines = []
        for index, run in enumerate(runs):
            for split, dash in (("train", "solid"), ("dev", "dot")):
                lines.append(_line(f"{run.name} {split}", index, curve(run, split, *names), dash))
        if figure_name == "BLEU":
            lines += _score_points(runs)
        figure = Figure([line for line in lines if line.x])
        if not figure.data:
            continue
        figure.update_layout(xaxis_title="step", showlegend=True, height=340, hovermode="x unified")
        figure.update_layout(legend={"orientation": "h", "y": -0.25}, margin={"t": 30, "r": 10})
        if figure_name == "perplexity":
            figure.update_yaxes(type="log")
        figures[figure_name] = figure
    return figures


def _line(name: str, index: int, points: Mapping[int, float | None], dash: str):
    from plotly.graph_objects import Scatter

    color = _COLORS[index % len(_COLORS)]
    marker = "lines" if dash == "solid" else "lines+markers"
    return Scatter(
        name=escape(name),
        x=list(points),
        y=list(points.values()),
        mode=marker,
        line={"color": color, "dash": dash},
    )


def _score_points(runs: Sequence[Run]) -> list:
    """BLEU of test sets by the step of the checkpoint; of averages there is none."""
    lines = []
    for index, run in enumerate(runs):
        points: dict[tuple[str, str], dict[int, float]] = {}
        for result in run.results:
            kind, _, step = result["checkpoint"].partition(" ")
            if kind == "step" and "BLEU" in result:
                test_set = result["test_set"], result["fingerprint"]
                points.setdefault(test_set, {})[int(step)] = result["BLEU"]
        for (test_set, _), scores in points.items():
            found = dict(sorted(scores.items()))
            lines.append(_line(f"{run.name} {test_set}", index, found, "dash"))
    return lines


def _without_metrics(runs: Sequence[Run], figures: "Mapping[str, Figure]") -> list[str]:
    absent = [title for name, (title, *_) in _CURVES.items() if name not in figures]
    return [
        *(f"{run.name} has no metrics (yet)." for run in runs if not run.metrics),
        *([f"Not recorded: {'; '.join(absent)}."] if absent and figures else []),
    ]


# --- Configuration -------------------------------------------------------------------------------


def _show_configurations(runs: Sequence[Run]) -> list[str]:
    names = [run.name for run in runs]
    flat = [flatten(run.config) for run in runs]
    rows = [[name, *(str(values[name]) for values in flat)] for name in flat[0]]
    parts = []
    if len(runs) > 1:
        differ = {row[0]: row for row in rows if len(set(row[1:])) > 1}
        differ.pop("run_directory", None)
        weighty = {name for run in runs[1:] for name in differences(runs[0].config, run.config)}
        heavy = [row for name, row in differ.items() if name in weighty]
        light = [row for name, row in differ.items() if name not in weighty]
        for caption, chosen in (
            ("Differences that change what an update computes", heavy),
            ("Other differences", light),
        ):
            parts.append(
                page.table(caption, ["field", *names], chosen)
                if chosen
                else page.paragraph(f"{caption}: none.")
            )
    whole = page.table("All fields", ["field", *names], rows)
    return [*parts, f"<details><summary>All fields</summary>{whole}</details>"]


# --- Scores --------------------------------------------------------------------------------------


def _show_results(runs: Sequence[Run]) -> list[str]:
    parts = []
    for run in runs:
        if run.old_results:
            parts.append(
                page.paragraph(
                    f"{run.old_results} older results of {run.name} lack signatures or checksum "
                    "and are left out: evaluate again."
                )
            )
        elif not run.results:
            parts.append(page.paragraph(f"{run.name} has not been evaluated (yet)."))
    results = [(run.name, result) for run in runs for result in run.results]
    if not results:
        return parts
    scores = list(dict.fromkeys(name for _, result in results for name in result["signatures"]))
    notes: dict[tuple[str, str], str] = {}
    rows = []
    for name, result in results:
        decoding = [f"{word} {result[key]}" for key, word in _DECODING.items() if key in result]
        cells = [_score_cell(score, result, notes) for score in scores]
        about = [", ".join(decoding), str(result.get("unfinished", "")), str(result["sentences"])]
        rows.append([name, result["checkpoint"], result["test_set"], *cells, *about])
    header = ["run", "checkpoint", "test set", *scores, "decoding", "unfinished", "sentences"]
    parts.append(page.table("Results", header, rows))
    signatures = [[note, score, signature] for (score, signature), note in notes.items()]
    parts.append(page.table("Signatures", ["", "score", "signature"], signatures))
    return parts


def _score_cell(score: str, result: dict, notes: dict[tuple[str, str], str]) -> str:
    """The score with the mark of its signature, which is noted."""
    signature = result["signatures"].get(score)
    if signature is None:
        return ""
    mark = notes.setdefault((score, signature), f"[{len(notes) + 1}]")
    return f"{result[score]:.{decimals(score)}f} {mark}"


def _show_section(number: int, section: Section) -> list[str]:
    evaluated, sample = section.evaluated, section.sample
    parts = [
        f"<h2>Test set {escape(evaluated.name)}</h2>",
        page.paragraph(f"The checksum of its text begins with {evaluated.fingerprint[:8]}."),
        *map(page.paragraph, evaluated.absent),
    ]
    parts += _show_comparisons(section.comparisons)
    if section.groups:
        parts += _show_groups(number, section)
    if sample:
        parts += _show_sample(number, evaluated, sample)
    return parts


def _show_comparisons(
    comparisons: Mapping[str, tuple[str, dict[str, Comparison]]],
) -> list[str]:
    if not comparisons:
        return []
    rows = [
        [score, *map(_comparison_cell, systems.values()), signature]
        for score, (signature, systems) in comparisons.items()
    ]
    first, *others = next(iter(comparisons.values()))[1]
    caption = f"Paired bootstrap against {first}"
    note = "± is half of the 95 % interval; p is how likely a difference this large is by chance."
    header = ["score", first, *others, "signature"]
    return [page.table(caption, header, rows), page.paragraph(note)]


def _comparison_cell(one: Comparison) -> str:
    spread = f"{one.mean:.2f} ± {one.interval:.2f}"
    return spread if one.p_value is None else f"{spread}, p = {one.p_value:.4f}"


def _show_groups(number: int, section: Section) -> list[str]:
    names = [system.name for system in section.evaluated.systems]
    rows = [
        [group.name, str(group.sentences), *(f"{score:.2f}" for score in group.scores)]
        for group in section.groups
    ]
    header = ["words of the reference", "sentences", *names]
    return [
        page.table("Corpus BLEU by sentence length", header, rows),
        page.plot(f"lengths-{number}", "Corpus BLEU"),
    ]


def _draw_groups(section: Section) -> "Figure":
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    names = [group.name for group in section.groups]
    for index, system in enumerate(section.evaluated.systems):
        figure.add_trace(
            Bar(
                name=escape(system.name),
                x=names,
                y=[group.scores[index] for group in section.groups],
                customdata=[group.sentences for group in section.groups],
                hovertemplate="BLEU %{y:.2f}, %{customdata} sentences",
                marker={"color": _COLORS[index % len(_COLORS)]},
            )
        )
    figure.update_layout(height=320, margin={"t": 20, "r": 10}, yaxis_title="BLEU", showlegend=True)
    figure.update_layout(xaxis={"title": "words of the reference", "type": "category"})
    return figure.update_layout(legend={"orientation": "h", "y": 1.15})


# --- Sentences -----------------------------------------------------------------------------------


def _show_sample(number: int, evaluated: Evaluated, sample: Sample) -> list[str]:
    total = len(evaluated.references[0])
    words = (
        f"{len(sample.numbers)} of {total} sentences. Words that the first reference lacks are "
        "marked. Scores are sacreBLEU's chrF of the sentence: "
    )
    made_by = "; ".join(f"{one.name} by {one.checkpoint}" for one in evaluated.systems)
    parts = [
        "<h3>Sentences</h3>",
        f"<p>{escape(words)}<code>{escape(sample.signature)}</code></p>",
        page.paragraph(f"Translations: {made_by}."),
    ]
    if sample.no_maps:
        parts.append(page.paragraph(f"There are no attention maps: {sample.no_maps}."))
    elif sample.maps:
        first = evaluated.systems[0]
        parts.append(
            page.paragraph(
                f"The number of a sentence opens the cross-attention of {first.name}, for the "
                f"first {len(sample.maps)} of these sentences in their order."
            )
        )
    return [*parts, f'<div class="sample" data-section="{number}"></div>']


def _sample_data(section: Section) -> dict | None:
    """What report_page.js shows of a test set; None where it has no sentences."""
    evaluated, sample = section.evaluated, section.sample
    if sample is None or evaluated.test_set is None:
        return None
    return {
        "systems": [system.name for system in evaluated.systems],
        "sentences": [
            {
                "number": number + 1,
                "words": sample.words[index],
                "source": evaluated.test_set.sources[number],
                "references": [reference[number] for reference in evaluated.references],
                "hypotheses": [
                    mark_differences(
                        evaluated.references[0][number],
                        system.hypotheses[number],
                        evaluated.target_language,
                    )
                    for system in evaluated.systems
                ],
                "scores": [round(scores[index], 2) for scores in sample.scores],
            }
            for index, number in enumerate(sample.numbers)
        ],
        "maps": [one if isinstance(one, str) else one._asdict() for one in sample.maps],
    }
