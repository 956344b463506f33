"""The published site in a real browser, opened from disk as a reader would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from weighbridge.cases.catalogue import MECHANISMS
from weighbridge.cases.entry import load_entry
from weighbridge.cases.publish.site import publish_site
from weighbridge.cases.publish.tiers import Tier

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = pytest.mark.browser

NAMES = ["mean-of-rank-means", "mean-of-microbatch-means", "cp-label-boundary", "padding-duplicates", "uneven-steps"]
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = [load_entry(MECHANISMS / name) for name in NAMES]
    out = tmp_path_factory.mktemp("site") / "open"
    publish_site(entries, tier=Tier.OPEN, out=out)
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        if os.environ.get("CI"):
            pytest.fail("chromium and chromedriver are not installed. Run: apt-get install chromium chromium-driver")
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def at_width(browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The browser on a phone's width, and back to a desk's afterwards."""
    metrics = {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def go(browser: webdriver.Chrome, page: Path) -> None:
    browser.get(page.as_uri())


def visible(browser: webdriver.Chrome, selector: str) -> list[WebElement]:
    return [element for element in browser.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()]


def cards(browser: webdriver.Chrome) -> list[str | None]:
    return [element.get_attribute("data-entry") for element in visible(browser, "[data-entry]")]


def no_console_errors(browser: webdriver.Chrome) -> None:
    assert [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


def test_search_and_filters(browser: webdriver.Chrome, site: Path) -> None:
    go(browser, site / "index.html")
    assert cards(browser) == NAMES
    box = browser.find_element(By.NAME, "search")
    box.send_keys("sampler drop")
    assert cards(browser) == ["padding-duplicates"]
    assert browser.find_element(By.ID, "count").text == "1 of 5 entries"
    box.clear()
    box.send_keys("zzz")
    assert cards(browser) == []
    assert browser.find_element(By.ID, "nothing").is_displayed()
    visible(browser, "button[type=reset]")[0].click()
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    assert cards(browser) == NAMES
    Select(browser.find_element(By.NAME, "family")).select_by_visible_text("Gradient accumulation")
    assert cards(browser) == ["mean-of-microbatch-means"]
    Select(browser.find_element(By.NAME, "family")).select_by_index(0)
    Select(browser.find_element(By.NAME, "mechanism")).select_by_visible_text("Labels lost at the cuts")
    assert cards(browser) == ["cp-label-boundary"]
    Select(browser.find_element(By.NAME, "tier")).select_by_visible_text("member")
    assert [row.text for row in visible(browser, "[data-tier]")] == ["repair: held member"]
    no_console_errors(browser)


def test_from_the_index_to_an_entry_and_its_table(browser: webdriver.Chrome, site: Path) -> None:
    go(browser, site / "index.html")
    browser.find_element(By.LINK_TEXT, "Mean of rank means").click()
    rows = [row.text.split() for row in visible(browser, "#failing table tbody tr")]
    assert rows[0] == ["unequal", "tokens", "2.0", "2.5", "FAIL"]
    assert len(rows) == 6
    more = visible(browser, "#failing details summary")
    more[0].click()
    assert len(visible(browser, "#failing table tbody tr")) == 18
    assert "Held for members" in browser.find_element(By.ID, "repair").text
    no_console_errors(browser)


def test_a_code_block_can_be_copied(browser: webdriver.Chrome, site: Path) -> None:
    page = site / "entries" / "mean-of-rank-means.html"
    go(browser, page)
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    button = visible(browser, "#failing button.copy")[0]
    button.click()
    browser.execute_async_script("setTimeout(arguments[0], 200)")
    assert button.text == "Copied"
    copied = browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied.strip() == load_entry(MECHANISMS / "mean-of-rank-means").sources["failing"].strip()  # type: ignore[index]
    no_console_errors(browser)


@pytest.mark.parametrize("page", ["index.html", "entries/cp-label-boundary.html", "entries/mean-of-rank-means.html"])
def test_it_reads_on_a_phone(at_width: webdriver.Chrome, site: Path, page: str) -> None:
    go(at_width, site / page)
    for details in at_width.find_elements(By.CSS_SELECTOR, "details"):
        at_width.execute_script("arguments[0].open = true", details)
    assert at_width.execute_script("return document.documentElement.scrollWidth") <= 375
    size = at_width.execute_script("return parseFloat(getComputedStyle(document.querySelector('main p')).fontSize)")
    assert size >= 14
    no_console_errors(at_width)


def test_it_reads_without_scripts(browser: webdriver.Chrome, site: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        go(browser, site / "index.html")
        assert len(visible(browser, "[data-entry]")) == len(NAMES)
        assert visible(browser, "#filters") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
