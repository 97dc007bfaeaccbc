"""One HTML page that needs nothing else: its text, its plots, the scripts that draw them.

Text reaches the page in two ways: escaped in `body`, or in `data` and `figures`, which are JSON in
which no script element can end. The page's policy lets its own scripts run alone, and forbids to
fetch anything.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain, repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
{data}
{scripts}
</body>
</html>
"""


def make_page(
    title: str,
    body: str,
    figures: "Mapping[str, Figure]",
    data: object = None,
    assets: Sequence[str] = (),
) -> str:
    """The page as text.

    `title` is text and `body` HTML, in which `plot` has made a place for every figure. Scripts find
    `data` by `readJson("data")`; `assets` names files of this package, scripts (.js) and styles
    (.css), beside those of every page.
    """
    from plotly.offline import get_plotlyjs

    names = ["page.css", "page.js", *assets]
    styles, scripts = (
        [_read_asset(name) for name in names if name.endswith(ending)] for ending in (".css", ".js")
    )
    if figures:
        scripts.insert(0, get_plotlyjs())
    drawn = {name: json.loads(_without_template(figure)) for name, figure in figures.items()}
    return _PAGE.format(
        title=escape(title),
        policy=_policy(scripts),
        style="\n".join(styles),
        body=body,
        data=_json_element("figures", drawn) + _json_element("data", data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def plot(name: str, title: str) -> str:
    """HTML of the place where a figure is drawn, which has a name without spaces."""
    return f'<figure><figcaption>{escape(title)}</figcaption><div id="{name}"></div></figure>'


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """HTML of a table of text, which scrolls in a box of its own; the first cell heads its row."""
    kinds = ["number" if _are_numbers(column) else "" for column in zip(*rows, strict=True)]
    head = _row(repeat('th scope="col"'), kinds, header)
    body = "\n".join(_row(chain(['th scope="row"'], repeat("td")), kinds, row) for row in rows)
    return (
        f"{open_box(caption)}<table><caption>{escape(caption)}</caption>"
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _row(tags: Iterable[str], kinds: Sequence[str], cells: Sequence[str]) -> str:
    whole = "".join(
        f'<{tag} class="{kind}">{escape(cell)}</{tag[:2]}>'
        for kind, cell, tag in zip(kinds, cells, tags, strict=False)  # the tags go on
    )
    return f"<tr>{whole}</tr>"


def _are_numbers(column: Sequence[str]) -> bool:
    """Whether most are."""
    return sum(cell.lstrip("-+")[:1].isdigit() for cell in column) > len(column) / 2


def open_box(label: str) -> str:
    """HTML that begins a box which scrolls sideways, also by keys; `</div>` ends it."""
    return f'<div class="box" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">'


def paragraph(text: str, kind: str = "") -> str:
    """HTML of a paragraph of text; `kind` is its class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def _without_template(figure: "Figure") -> str:
    """The figure as JSON; how it looks is said by page.js, which knows whether the page is dark."""
    figure.layout.template = "none"
    return figure.to_json()


def _json_element(name: str, value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _policy(scripts: Iterable[str]) -> str:
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _read_asset(name: str) -> str:
    return files("transformer_jax").joinpath(name).read_text(encoding="utf-8")
