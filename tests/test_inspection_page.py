"""The HTML page of an inspection: self-contained, and text of the corpus is only text on it."""

import re
from pathlib import Path

import pytest
from browser import needs_browser, open_chrome, shown
from parallel_text import built_in, shift

from transformer_jax.config import DataConfig
from transformer_jax.data.findings import Inspection
from transformer_jax.data.inspection import inspect_corpus
from transformer_jax.inspection_page import make_page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def page() -> str:
    corpus = built_in("en", "de")
    pairs = [(EVIL, f"&{EVIL}"), *corpus["train"][:1_000]]
    sources = {EVIL: pairs, "shifted": shift(pairs, 1)}
    found: Inspection = inspect_corpus(sources, {"dev": corpus["dev"]}, None, DataConfig())
    return make_page(found)


def test_text_of_the_corpus_runs_nothing(page: str) -> None:
    assert "<script>alert" not in page
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_needs_no_other_file(page: str) -> None:
    assert not re.search(r"<script[^>]*\ssrc=|<link|@import", page)
    assert "Plotly.newPlot" in page
    assert len(page) > 1_000_000, "the script that draws is in it"


def test_plots_and_reasons_are_there(page: str) -> None:
    for title in ("sentences by words", "alignment (0 or less", "share of pairs lost"):
        assert title in page
    assert '<p class="stop">shifted: ' in page


@needs_browser
def test_a_browser_draws_it(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    with open_chrome() as chrome, shown(chrome, path.as_uri(), width=390):
        assert chrome.find_element("id", "plots").find_elements("class name", "trace")
