"""An inspection as one HTML page: its plots, its text."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax import page
from transformer_jax.data.findings import Distribution, Inspection
from transformer_jax.data.inspection_report import describe, find_reasons
from transformer_jax.data.text import atomic_writer

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def write_page(path: Path, found: Inspection) -> None:
    """Writes the page, whole or not at all. Raises UserError when it cannot."""
    text = make_page(found)
    with atomic_writer(path) as file:
        file.write(text.encode())


def make_page(found: Inspection) -> str:
    """The page as text. What comes from the corpus is shown as text, whatever it holds."""
    reasons = "".join(page.paragraph(reason, "stop") for reason in find_reasons(found))
    table = escape("\n".join(describe(found)))
    return page.make_page(
        title=f"{found.source_language} -> {found.target_language}",
        body=f"{reasons}{page.plot('plots', 'Sentences and pairs')}<pre>{table}</pre>",
        figures={"plots": _plot(found)},
    )


def _plot(found: Inspection) -> "Figure":
    from plotly.subplots import make_subplots

    titles = {
        "sentences by words": "words",
        "sentences by tokens": "tokens",
        "pairs by target / source characters": "ratio",
        "share of pairs lost, by filter": "lost",
        "alignment (0 or less: not aligned)": "alignment",
        "language (1: as in dev, -1: as the other side)": "language",
    }
    figure = make_subplots(rows=3, cols=2, subplot_titles=list(titles))
    sides = {
        escape(found.source_language): found.overall.source,
        escape(found.target_language): found.overall.target,
    }
    for name, side in sides.items():
        _add_bars(figure, 1, 1, name, _bins(side.words))
        _add_bars(figure, 1, 2, name, _bins(side.tokens))
    _add_bars(figure, 2, 1, "ratio", _bins(found.overall.ratio))
    parts = {escape(name): part for name, part in found.parts.items()}
    for reason in found.overall.dropped:
        lost = {name: part.dropped[reason] for name, part in parts.items() if part.dropped}
        _add_bars(figure, 2, 2, reason, lost)
    _add_bars(figure, 3, 1, "alignment", {name: part.alignment for name, part in parts.items()})
    for name, side in zip(sides, ("source", "target"), strict=True):
        likeness = {one: getattr(part, side).language for one, part in parts.items()}
        _add_bars(figure, 3, 2, name, likeness)
    figure.update_xaxes(type="category")
    figure.update_layout(height=1_000, margin={"t": 40})
    return figure


def _add_bars(
    figure: "Figure", row: int, column: int, name: str, heights: dict[str, float | None]
) -> None:
    from plotly.graph_objects import Bar

    bars = Bar(name=name, x=list(heights), y=list(heights.values()), showlegend=False)
    figure.add_trace(bars, row=row, col=column)


def _bins(found: Distribution | None) -> dict[str, float | None]:
    if found is None:
        return {}
    used = max((index for index, count in enumerate(found.counts) if count), default=0)
    edges = [f"{edge:g}" for edge in found.edges]
    names = [f"{a} - {b}" for a, b in zip(edges, [*edges[1:], ""], strict=True)]
    return dict(list(zip(names, found.counts, strict=True))[: used + 1])
