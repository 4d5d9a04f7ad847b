"""The time machine in a browser: cursors, addresses, and text of topics that stays text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

import reports
from browser import chromium, shown, waited
from hindcast.airflow.pages import PREFIX
from hindcast.common.settings import read_settings
from hindcast.plan import journal
from page_server import serve_pages
from warehouses import HOSTILE, at, shop

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the pages of the warehouse `shop` are, for everybody."""
    shell = Route("/{shell}/{theme}/page", _show_in_shell)
    with shop(tmp_path_factory.mktemp("shop")), serve_pages("shop", [shell]) as address:
        yield f"{address}{PREFIX}"


def _show_in_shell(request: Request) -> HTMLResponse:
    """A page of another program on the same server, which shows ours as Airflow does."""
    source = f"{PREFIX}{request.query_params.get('page', '/quality/shop')}"
    limits = "allow-scripts allow-same-origin allow-forms allow-downloads"  # as Airflow's
    frame = f'<iframe src="{source}" sandbox="{limits}" width="600" height="400"></iframe>'
    return HTMLResponse(f'<!doctype html><html class="{request.path_params["theme"]}"><body>{frame}</body></html>')


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


def report_with_a_gate() -> dict[str, Any]:
    told = {"expectation": "expect_x", "kwargs": {}, "on_failure": "warn", "outcome": "failed", "detail": HOSTILE}
    return {"pipeline": "shop", "run": 7, "state": "completed", "tables": {"prices": {"gates": [told]}}}


def machine(url: str, **asked: str) -> str:
    return f"{url}/machine/shop?{urlencode(asked)}"


def answer(browser: WebDriver) -> list[str]:
    """The values of the first row at the crosshair."""
    return [cell.text for cell in browser.find_elements("css selector", "#answer dl:first-of-type dd.value")]


def state(browser: WebDriver) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(browser.current_url).query).items()}


def test_a_page_has_the_theme_of_what_shows_it(browser: WebDriver, url: str) -> None:
    """Whatever the system's is; also once it changes, and alone as it was chosen in Airflow last."""
    paper = "return getComputedStyle(document.body).backgroundColor"
    shades: dict[str, str] = {}
    for theme in ("dark", "light"):
        browser.get(f"{url.removesuffix(PREFIX)}/plugin/{theme}/page")
        browser.switch_to.frame(0)
        shades[theme] = browser.execute_script(paper)
    assert shades == {"dark": "rgb(19, 22, 26)", "light": "rgb(255, 255, 255)"}
    browser.switch_to.default_content()
    browser.execute_script("document.documentElement.className = 'dark'")
    browser.switch_to.frame(0)
    waited(browser, lambda b: b.execute_script(paper) == shades["dark"])
    browser.switch_to.default_content()
    for theme, shade in shades.items():
        browser.execute_script("localStorage.setItem('theme', arguments[0])", theme)
        browser.get(f"{url}/quality")
        assert browser.execute_script(paper) == shade
    browser.execute_script("localStorage.clear()")


def test_a_report_has_the_theme_of_what_shows_it(browser: WebDriver, url: str) -> None:
    """Though it is of no origin: by the tab of a run, and by a link of ours."""
    shades: dict[str, str] = {}
    for theme in ("dark", "light"):
        browser.get(f"{url.removesuffix(PREFIX)}/plugin/{theme}/page?page=/dag/shop/run/manual__2/report")
        browser.switch_to.frame(0)
        shown(browser, "//*[text()='Hindcast run report']")
        shades[theme] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert f"theme={theme}" in browser.execute_script("return location.search")
        browser.switch_to.default_content()
    assert shades == {"dark": "rgb(19, 22, 26)", "light": "rgb(255, 255, 255)"}


def test_a_link_leads_out_of_the_frame_that_airflow_shows_a_page_in(browser: WebDriver, url: str) -> None:
    """Its sandbox lets nothing within replace the page around it."""
    address = "/dag/shop__preview/run/manual__1/report"
    browser.get(f"{url.removesuffix(PREFIX)}/plugin/light/page?page={address}")
    browser.switch_to.frame(0)
    shown(browser, "//a[contains(., 'Log of the task')]").click()
    browser.switch_to.default_content()
    waited(browser, lambda b: b.current_url.endswith("/dags/shop__preview/runs/manual__1/tasks/preview"))


def test_a_page_beside_the_tabs_of_a_dag_does_not_repeat_them(browser: WebDriver, url: str) -> None:
    shown_links: dict[str, list[str]] = {}
    for shell in ("plugin/dags", "dags/light"):
        browser.get(f"{url.removesuffix(PREFIX)}/{shell}/page")
        browser.switch_to.frame(0)
        links = browser.find_elements("css selector", "nav.site a")
        shown_links[shell] = [link.text for link in links if link.is_displayed()]
        assert shown(browser, "//h1").text == "Quality of shop"
    names = ["Quality", "Changes", "Time machine", "Closes", "Ledger", "all pipelines", "JSON"]
    assert shown_links == {"plugin/dags": names, "dags/light": ["JSON"]}


def test_a_list_of_tables_is_as_wide_as_their_names(browser: WebDriver, url: str) -> None:
    browser.get(machine(url))
    name = "departures_weather_kafka_of_the_last_quarter"
    widths = browser.execute_script(
        "const list = document.querySelector('select[name=table]'); list.options[0].text = arguments[0];"
        "const free = list.cloneNode(true); free.style.maxWidth = 'none'; document.body.append(free);"
        "return [list.offsetWidth, free.offsetWidth]",
        name,
    )
    assert widths[0] > 250
    assert widths[0] >= widths[1] - 20


def test_a_click_puts_the_crosshair_there_and_the_address_keeps_it(browser: WebDriver, url: str) -> None:
    from selenium.webdriver import ActionChains

    browser.get(machine(url, table="prices", key="naan"))
    assert answer(browser) == ["naan", "2.50", "late"]
    old = shown(browser, "//*[name()='rect'][contains(@class, 'superseded')]")
    ActionChains(browser).move_to_element_with_offset(old, -150, 20).click().perform()  # beside the cursor
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])
    kept = browser.current_url
    assert state(browser)["key"] == "naan"
    browser.get("about:blank")
    browser.get(kept)
    assert answer(browser) == ["naan", "3.00", ""]
    for _ in range(3):
        browser.back()
    waited(browser, lambda b: answer(b) == ["naan", "2.50", "late"])


def test_cursors_move_by_keys_from_bound_to_bound(browser: WebDriver, url: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(machine(url, table="prices", key="naan", asOf=at(1).isoformat()))
    shown(browser, "//*[@id='knownAt']").send_keys(Keys.ARROW_DOWN)
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])
    assert state(browser)["knownAt"] == "run:1"
    assert browser.find_element("css selector", "#knownAt .flag").text == "run 1 · 1 Feb"
    assert browser.switch_to.active_element.get_attribute("id") == "knownAt"
    browser.switch_to.active_element.send_keys(Keys.ARROW_UP)
    waited(browser, lambda b: answer(b) == ["naan", "2.50", "late"])


def label_focused(browser: WebDriver) -> str:
    """The name of the link that has the focus, on one line."""
    return " ".join(browser.switch_to.active_element.accessible_name.split())


def test_rectangles_are_one_stop_of_tab_and_keys_lead_to_their_neighbours(browser: WebDriver, url: str) -> None:
    """In valid and in system time, and to each in turn; a key asks at the corner of one."""
    from selenium.webdriver.common.keys import Keys

    browser.get(machine(url, table="prices", key="naan", asOf=at(1).isoformat()))
    stops = browser.find_elements("css selector", "#plane a[tabindex='0']")
    assert [it.get_attribute("data-row") for it in stops] == ["2"], "the answer's"
    browser.execute_script("arguments[0].focus()", stops[0])
    browser.switch_to.active_element.send_keys(Keys.END)
    ring = browser.find_element("css selector", "#plane .ring")
    assert (ring.is_displayed(), ring.rect["width"] > stops[0].rect["width"]) == (True, True)
    browser.execute_script("document.getElementById('plane').classList.add('dense')")
    assert ring.value_of_css_property("stroke-width") == "3px"
    assert label_focused(browser).startswith("item naan price 2.50 note late valid from 2026-01-01 00:01 current from")
    places: list[str] = []
    for key in (Keys.LEFT, Keys.DOWN, Keys.UP, Keys.RIGHT, Keys.PAGE_UP, Keys.HOME, Keys.END):
        browser.switch_to.active_element.send_keys(key)
        places.append(browser.switch_to.active_element.get_attribute("data-row"))
    assert places == ["1", "0", "1", "2", "1", "0", "2"]
    assert len(browser.find_elements("css selector", "#plane a[tabindex='0']")) == 1
    browser.switch_to.active_element.send_keys(Keys.HOME)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])
    assert state(browser)["asOf"] == at(0).isoformat()
    waited(browser, lambda b: b.switch_to.active_element.get_attribute("data-row") == "0")
    assert "3.00" in browser.find_element("css selector", "[role=status]").get_attribute("textContent")


def test_a_row_of_the_table_leads_to_its_rectangle_by_keys(browser: WebDriver, url: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(machine(url, table="prices", key="naan", asOf=at(1).isoformat()))
    (stop,) = browser.find_elements("css selector", "#rectangles a[tabindex='0']")
    assert stop.get_attribute("href").endswith("#row-2")
    stop.send_keys(Keys.UP)
    assert browser.find_elements("css selector", "#plane .lit")[0].get_attribute("data-row") == "1"
    browser.switch_to.active_element.send_keys(Keys.HOME)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])
    waited(browser, lambda b: (b.switch_to.active_element.get_attribute("href") or "").endswith("#row-0"))


def test_a_cursor_is_dragged(browser: WebDriver, url: str) -> None:
    from selenium.webdriver import ActionChains

    browser.get(machine(url, table="prices", key="naan"))
    flag = shown(browser, "//*[@id='knownAt']//*[@class='flag']")
    grip = browser.find_element("css selector", "#knownAt .grip")
    assert flag.text == "run 2 · 2 Feb"
    ActionChains(browser).click_and_hold(grip).move_by_offset(0, 80).perform()
    assert flag.text.startswith("2026-02-01 "), "it says where it is"
    ActionChains(browser).release().perform()
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])


def test_the_answer_is_beside_the_plane_where_there_is_room(browser: WebDriver, url: str) -> None:
    places: dict[int, tuple[bool, bool]] = {}
    size = browser.get_window_size()
    for width in (1440, 1024):
        browser.set_window_size(width, 900)
        browser.get(machine(url, table="prices", key="naan"))
        drawing, card = (shown(browser, f"//*[@id='{name}']").rect for name in ("plane", "answer"))
        places[width] = card["x"] >= drawing["x"] + drawing["width"], card["y"] + card["height"] < 760
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    browser.set_window_size(size["width"], size["height"])
    assert places[1440] == (True, True)
    assert not places[1024][0]


def test_a_rectangle_and_its_row_are_lit_together(browser: WebDriver, url: str) -> None:
    from selenium.webdriver import ActionChains

    browser.get(machine(url, table="prices", key="naan"))

    def list_lit() -> list[str]:
        lit = browser.find_elements("css selector", ".lit")
        return sorted(f"{it.tag_name} {it.get_attribute('data-row')}" for it in lit)

    row = browser.find_element("css selector", "#rectangles tr[data-row='0'] td")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", row)
    ActionChains(browser).move_to_element(row).perform()
    waited(browser, lambda _: list_lit() == ["a 0", "tr 0"])
    rectangle = browser.find_element("css selector", "#plane a[data-row='2'] rect")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", rectangle)
    ActionChains(browser).move_to_element_with_offset(rectangle, 40, 30).perform()
    waited(browser, lambda _: list_lit() == ["a 2", "dl 2", "tr 2"])


def test_the_runs_are_played_to_the_last(browser: WebDriver, url: str) -> None:
    browser.get(machine(url, table="prices", key="naan", asOf=at(1).isoformat()))
    button = shown(browser, "//button[@id='play']")
    button.click()
    waited(browser, lambda b: answer(b) == ["naan", "3.00", ""])
    assert shown(browser, "//button[@id='play']").text == "■ Stop"
    waited(browser, lambda b: answer(b) == ["naan", "2.50", "late"])
    waited(browser, lambda b: shown(b, "//button[@id='play']").text == "▶ Play the runs")


@pytest.mark.parametrize("scale", ["even", "time"])
def test_labels_lie_within_their_rectangles(browser: WebDriver, url: str, scale: str) -> None:
    browser.get(machine(url, table="prices", key="naan", scale=scale))
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('#plane a svg')].filter((it) => { const text = it.querySelector('text');"
        "return text && text.getBBox().x + text.getBBox().width > Number(it.getAttribute('width')) }).length"
    )
    labels = browser.find_elements("css selector", "#plane a text")
    last = "2.50 · late" if scale == "even" else "2.50 · …"
    assert (beyond, [label.text for label in labels]) == (0, ["3.00", "3.00", last])


def test_the_names_of_the_axes_lie_within_the_plane(browser: WebDriver, url: str) -> None:
    """Runs and records of one day have it in the name of the axis, which is then long."""
    browser.get(machine(url, table="orders", key="dave", knownAt="run:1"))
    names, starts = browser.execute_script(
        "const names = [...document.querySelectorAll('#plane .axis .name')];"
        "return [names.map((it) => it.textContent), names.map((it) => it.getBBox().x)]"
    )
    assert any("system time, 2026-02-01" in name for name in names), names
    assert min(starts) >= 0


def test_a_slider_moves_the_moment_of_knowledge_and_the_table_follows(browser: WebDriver, url: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(machine(url, table="prices"))
    slider = shown(browser, "//*[@id='moment']")
    assert "2.50" in shown(browser, "//*[@id='table-rows']").text
    slider.send_keys(Keys.HOME)
    waited(browser, lambda b: "run 1" in b.find_element("css selector", "#table-rows h2").text)
    table = shown(browser, "//*[@id='table-rows']").text
    assert ("3.00" in table, "2.50" in table) == (True, False)
    assert browser.switch_to.active_element.get_attribute("id") == "moment", "it can be moved on"
    assert slider.get_attribute("aria-valuetext").startswith("run 1, ")
    assert "knownAt=run%3A1" in browser.current_url


def test_keys_are_suggested_as_one_types(browser: WebDriver, url: str) -> None:
    browser.get(machine(url, table="prices"))
    shown(browser, "//input[@name='key']").send_keys("na")
    options = waited(browser, lambda b: b.find_elements("css selector", "#keys option"))
    assert [option.get_attribute("value") for option in options] == ["naan"]


@pytest.mark.long
@pytest.mark.parametrize("table", ["prices", "met"])
def test_text_of_topics_stays_text(browser: WebDriver, url: str, table: str) -> None:
    key = HOSTILE if table == "prices" else "dave"
    for asked in (
        {"table": table},
        {"table": table, "key": key},
        {"table": HOSTILE},
        {"table": table, "key": f"{HOSTILE}x"},
    ):
        browser.get(machine(url, **asked))
        shown(browser, "//h1")
        assert browser.title != "taken"
    browser.get(machine(url, table=table, key=key))
    assert "<script>" in browser.find_element("css selector", "#answer").text
    assert browser.execute_script("return document.scripts.length") == 3, "ours alone"


def test_nothing_is_written_to_the_console(browser: WebDriver, url: str) -> None:
    (run,) = (it for it in journal.read_runs(read_settings().warehouse, "shop") if it.number == 2)
    reports.write_page(read_settings().reports, report_with_a_gate() | {"run": 2, "runId": run.run_id})
    browser.get_log("browser")
    for address in (
        "/quality",
        "/quality/shop",
        "/ledger/shop",
        "/changes/shop?knownAt=run:1",
        "/reports/shop/run-2.html#outcome=failed",
        "/machine/shop?key=naan",
    ):
        browser.get(f"{url}{address}")
        shown(browser, "//h1")
        if "reports" in address:  # it works though it is of no origin
            assert shown(browser, "//*[@id='save']").get_attribute("href").startswith("blob:")
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_a_run_is_one_line_of_the_quality_page(browser: WebDriver, url: str) -> None:
    size = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{url}/quality/shop")
    heights = [row.size["height"] for row in browser.find_elements("css selector", ".runs tbody tr")]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(heights) == 2
    assert max(heights) < 40


@pytest.mark.parametrize("width", [1024, 1440])
def test_a_long_verdict_is_shown_whole(browser: WebDriver, url: str, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{url}/quality/shop")
    sizes = browser.execute_script(
        "const verdict = document.querySelector('.runs .brief > p'); verdict.textContent = 'a held key '.repeat(40);"
        "return ['scroll', 'client'].map((it) => [verdict[`${it}Width`], verdict[`${it}Height`]])"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_quality_page_begins_with_what_ran_last_and_how_it_ended(browser: WebDriver, url: str, width: int) -> None:
    """Then come the runs, and how fresh the tables are."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{url}/quality/shop")
    words = shown(browser, "//*[@id='last-run']").text
    tops = [shown(browser, f"//*[@id='{name}']").rect["y"] for name in ("last-run", "runs-title", "fresh")]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert "Run 2 of shop was published" in words
    assert tops == sorted(tops)
