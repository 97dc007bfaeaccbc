"""The page of `report` in a real browser: what it draws, sorts and opens, wide and on a phone."""

from collections.abc import Callable, Iterator

import pytest
from browser import WIDTHS, needs_browser, open_chrome, shown
from report_runs import EVIL, Runs, make_runs
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from transformer_jax.__main__ import main

pytestmark = [pytest.mark.usefixtures("one_device"), needs_browser]


@pytest.fixture(scope="module")
def runs(one_device: None, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its address."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    arguments = [str(runs.first), str(runs.second), "--output", str(path)]
    assert main(["report", *arguments, "--attention-maps", "3"]) == 0
    return path.as_uri()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with open_chrome() as driver:
        yield driver


@pytest.fixture(params=WIDTHS)
def browser(request: pytest.FixtureRequest, chrome: Chrome, page: str) -> Iterator[Chrome]:
    with shown(chrome, page, WIDTHS[request.param]):
        yield chrome


COLUMN = """
    const [title] = arguments;
    const heads = [...document.querySelectorAll(".sample thead th")];
    const place = heads.findIndex((head) => head.textContent.startsWith(title));
    const rows = [...document.querySelectorAll(".sample tbody tr")];
    return rows.map((row) => row.cells[place].textContent);
"""


def column(browser: Chrome, title: str) -> list[str]:
    return browser.execute_script(COLUMN, title)


def header(browser: Chrome, title: str) -> WebElement:
    path = f"//*[@class='box' and @aria-label='Sentences']//th[starts-with(., '{title}')]"
    return browser.find_element(By.XPATH, path)


def test_plots_are_drawn(browser: Chrome, runs: Runs) -> None:
    for name in ("loss", "perplexity", "learning_rate", "throughput", "BLEU", "lengths-0"):
        plot = browser.find_element(By.ID, name)
        assert plot.find_elements(By.CSS_SELECTOR, ".trace"), name
        assert plot.size["width"] <= browser.execute_script("return innerWidth")
    legend = browser.find_element(By.ID, "loss").get_attribute("textContent")
    assert "first train" in legend and "second dev" in legend


def test_text_of_the_corpus_is_only_text(browser: Chrome, runs: Runs) -> None:
    assert column(browser, "source") == runs.sources[:25]
    assert column(browser, "reference") == runs.references[:25]
    assert runs.sources[0] == EVIL
    assert not browser.find_elements(By.TAG_NAME, "img")
    (marked,) = browser.find_elements(By.CSS_SELECTOR, ".sample tr:first-child td:nth-child(5) ins")
    assert marked.text == "!"


@pytest.mark.parametrize(
    ("title", "value"),
    [
        ("words", lambda sentence: sentence["words"]),
        ("chrF second", lambda sentence: sentence["scores"][1]),
        ("difference", lambda sentence: sentence["scores"][1] - sentence["scores"][0]),
    ],
)
def test_a_header_sorts_all_sentences(
    browser: Chrome, title: str, value: Callable[[dict], float]
) -> None:
    """And the buttons below turn the pages."""
    sentences = browser.execute_script("return sections[0].sentences")
    assert len({value(one) for one in sentences}) > 3 and len(sentences) > 25
    previous, following = browser.find_elements(By.CSS_SELECTOR, ".sample > .controls button")
    assert not previous.is_enabled()
    for direction, sign in (("ascending", 1), ("descending", -1)):
        header(browser, title).find_element(By.TAG_NAME, "button").click()
        assert header(browser, title).get_attribute("aria-sort") == direction
        sentences.sort(key=lambda one: (sign * value(one), one["number"]))
        expected = [str(one["number"]) for one in sentences]
        assert column(browser, "no.") == expected[:25]
        following.click()
        assert column(browser, "no.") == expected[25:] and not following.is_enabled()
    assert header(browser, "no.").get_attribute("aria-sort") == "none"
    previous.click()
    assert column(browser, "no.") == expected[:25]


def test_the_difference_is_of_two_runs_that_are_chosen(browser: Chrome) -> None:
    first, second = browser.find_elements(By.CSS_SELECTOR, ".sample select")
    before = [float(text) for text in column(browser, "difference")]
    Select(first).select_by_index(0)
    assert set(column(browser, "difference")) == {"0.0"}
    Select(second).select_by_index(1)
    after = [float(text) for text in column(browser, "difference")]
    assert any(before) and after == [-value for value in before]


def test_missing_words_are_shown_when_asked(browser: Chrome) -> None:
    missing = browser.find_elements(By.CSS_SELECTOR, ".sample del")
    assert not missing[0].is_displayed()
    browser.find_element(By.CSS_SELECTOR, ".sample input").click()
    assert missing[0].is_displayed()


def test_a_click_opens_an_attention_map(browser: Chrome) -> None:
    buttons = browser.find_elements(By.CSS_SELECTOR, ".sample td button")
    assert len(buttons) == 3
    buttons[1].click()
    (dialog,) = browser.find_elements(By.TAG_NAME, "dialog")
    sections = browser.execute_script("return sections[0].maps[1]")
    rows = dialog.find_elements(By.CSS_SELECTOR, "tbody tr")
    pieces = [row.text.split()[0] for row in rows]
    assert pieces == sections["target"]
    mean = weights(dialog)
    assert len(mean) == len(pieces) * len(sections["source"])
    assert sum(mean) == pytest.approx(len(pieces), rel=0.02)
    heads = []
    for head in (1, 2):
        Select(dialog.find_elements(By.TAG_NAME, "select")[1]).select_by_index(head)
        heads.append(weights(dialog))
    assert heads[0] != heads[1]
    both = [(one + other) / 2 for one, other in zip(*heads, strict=True)]
    assert both == pytest.approx(mean, abs=0.002)
    dialog.find_element(By.TAG_NAME, "button").click()
    WebDriverWait(browser, 5).until(lambda driver: not driver.find_elements(By.TAG_NAME, "dialog"))


def weights(dialog: WebElement) -> list[float]:
    titles = "return [...arguments[0].querySelectorAll('tbody td')].map((cell) => cell.title)"
    return [
        float(title.rpartition(": ")[2]) for title in dialog.parent.execute_script(titles, dialog)
    ]
