"""Every page of a warehouse at its limits: none scrolls sideways, and axe finds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

import stress
from browser import chromium
from hindcast.airflow.pages import PREFIX
from page_server import serve_pages

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = [pytest.mark.browser, pytest.mark.long]
AXE = Path(__file__).resolve().parent.parent / "var" / "node" / "node_modules" / "axe-core" / "axe.min.js"
KEY = {"table": "readings", "key": stress.SENSOR}
RUN_ID = quote(f"scheduled__{stress.known_at(stress.RUNS).isoformat()}", safe="")
PAGES = (
    "/quality",
    "/quality/stress",
    "/quality/none",
    "/failing",
    f"/reports/stress/run-{stress.RUNS}.html",
    "/changes",
    "/changes/stress",
    f"/changes/stress?{urlencode({'table': 'readings', 'only': 'corrections'})}",
    "/changes/stress?knownAt=never",
    "/machine/stress",
    f"/machine/stress?{urlencode(KEY)}",
    f"/machine/stress?{urlencode(KEY | {'comparedWith': 'run:3'})}",
    f"/machine/stress?{urlencode(KEY | {'key': stress.SENSOR + 'x'})}",
    "/ledger/stress",
    "/closes/stress",
    "/dag/stress__preview/run/none/report",
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stress.stressed(tmp_path_factory.mktemp("stress")), serve_pages("stress") as address:
        yield f"{address}{PREFIX}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


def show(browser: WebDriver, width: int, theme: str = "light") -> None:
    """Sets the width of the browser's page, and the theme of the system."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_no_page_scrolls_sideways(browser: WebDriver, url: str) -> None:
    wide: list[tuple[int, str, int]] = []
    for width in (390, 1024, 1440):
        show(browser, width)
        for page in PAGES:
            browser.get(url + page)
            excess = browser.execute_script(
                "const it = document.documentElement; return it.scrollWidth - it.clientWidth"
            )
            wide += [(width, page, excess)] if excess > 0 else []
    assert wide == []


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (390, "light")])
def test_axe_finds_nothing(browser: WebDriver, url: str, width: int, theme: str) -> None:
    """By WCAG 2.2 AA, on every page and state."""
    if not AXE.exists():
        pytest.skip("axe-core is not there (make test-browser installs it)")
    show(browser, width, theme)
    browser.set_script_timeout(60)
    source, found = AXE.read_text(encoding="utf-8"), list[str]()
    for page in PAGES:
        browser.get(url + page)
        browser.execute_script(source)
        violations: list[dict[str, Any]] = browser.execute_async_script(
            "const done = arguments[0]; const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];"
            "axe.run(document, { runOnly: tags, resultTypes: ['violations'] }).then((it) => done(it.violations))"
        )
        found += [f"{page}: {it['id']}: {it['nodes'][0]['html'][:200]}" for it in violations]
    assert found == []


def test_each_row_of_a_wide_table_is_reached_by_keyboard(browser: WebDriver, url: str) -> None:
    """Regions that scroll have the focus in turn; so has each link of a row."""
    for page in (f"/reports/stress/run-{stress.RUNS}.html", "/changes/stress", f"/machine/stress?{urlencode(KEY)}"):
        browser.get(url + page)
        out_of_reach = browser.execute_script(
            "return [...document.querySelectorAll('.scrolled')].filter((it) => it.scrollWidth > it.clientWidth"
            " && it.tabIndex < 0 && !it.querySelector('[tabindex=\"0\"]')).map((it) => it.outerHTML.slice(0, 200))"
        )
        assert out_of_reach == []


def test_text_has_the_width_that_there_is(browser: WebDriver, url: str) -> None:
    """Verdicts of runs take three lines, names lie within the boxes of the graph, topics of the ledger are no column of
    syllables; on a phone the last run of a pipeline is as wide as the page.
    """
    height = "return Math.max(...[...document.querySelectorAll(arguments[0])].map((it) => it.offsetHeight))"
    show(browser, 1024)
    browser.get(f"{url}/quality/stress")
    assert browser.execute_script(height, ".runs tbody tr") < 85
    browser.get(f"{url}/ledger/stress")
    assert browser.execute_script(height, ".replayed tbody tr") < 250
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('.graph svg')].filter((it) =>"
        " [...it.querySelectorAll('text')].some((text) => text.getBBox().x + text.getBBox().width"
        " > Number(it.getAttribute('width')))).length"
    )
    assert beyond == 0
    show(browser, 390)
    browser.get(f"{url}/quality")
    assert browser.find_element("css selector", ".overview td").rect["width"] > 300
    browser.get(f"{url}/machine/stress")
    record = browser.find_element("css selector", ".rows td[data-label='Record']")
    assert browser.execute_script("return arguments[0].scrollWidth <= innerWidth", record)
