"""A real browser without a screen, which tests show pages in."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("CI"),
    reason="no browser: apt-get install chromium chromium-driver",
)

WIDTHS = {"desktop": 1280, "phone": 390}


@contextmanager
def open_chrome() -> Iterator[Chrome]:
    assert CHROMIUM and DRIVER, "apt-get install chromium chromium-driver"
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with Chrome(options, ChromeService(DRIVER)) as driver:
        yield driver


@contextmanager
def shown(chrome: Chrome, address: str, width: int) -> Iterator[None]:
    """Shows a page, which must leave no error, fit the width and ask the network for nothing."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        chrome.get_log(log)  # of the page before
    chrome.get(address)
    yield
    assert chrome.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    sent = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in sent if not url.startswith(("data:", "blob:"))] == [address]
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
