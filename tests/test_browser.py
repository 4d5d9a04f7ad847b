"""Airflow's UI as a person works it: logging in, runs and backfills by the forms, an approval; what Delta then has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from selenium.webdriver.common.keys import Keys

from browser import Up, chromium, log_in, picture, running, shown, waited
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.contract import find
from hindcast.kafka import produce
from hindcast.plan import journal
from hindcast.quality import failing_rows, held_changes
from hindcast.query import read
from hindcast_demo import restaurant
from pipelines import until
from test_airflow import DAILY, DAYS, ROOT
from test_airflow_rehearsal import ARRIVED, FARES, day, list_known_fares

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = pytest.mark.browser
BY_HAND = (
    DAILY.replace("pipeline: daily", "pipeline: by_hand").replace('schedule: "@daily"', "").replace("2099", "2026")
)
FIELD = "//input[@placeholder='YYYY/MM/DD']"
DIALOG = "//*[@role='dialog' and @data-state='open']"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("stack")
    contracts = [folder / "daily.yaml", folder / "by_hand.yaml", folder / "fares.yaml"]
    for path, text in zip(contracts, (DAILY, BY_HAND, FARES), strict=True):
        path.write_text(text)
    with running(folder, ROOT / "schemas" / "restaurant.yaml", *contracts, login=True) as started:
        first = {**restaurant.first_records(), **DAYS}
        produce.create_topics(started.now.kafka, *first, "fares")
        for topic, records in {**first, "fares": ARRIVED}.items():
            produce.send_records(started.now.kafka, topic, records)
        yield started


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, up: Up) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        log_in(started, up)
        yield started


def prices(up: Up, pipeline: str, run: int) -> list[int]:
    """The doubled prices from the first to the last, as known after a run."""
    asked = Question(from_time=FIRST_MOMENT, known_at=read.moment_of(up.now.warehouse, pipeline, f"run:{run}"))
    told: list[int] = read.query(up.now.warehouse, find(up.now.schemas, pipeline), "doubled", asked)[
        "price"
    ].to_pylist()
    return told


def states(up: Up, pipeline: str) -> list[str]:
    return [run.state for run in journal.read_runs(up.now.warehouse, pipeline)]


def form(browser: WebDriver, up: Up, dag: str) -> None:
    """Opens the form that starts runs of a DAG."""
    browser.get(f"{up.url}/dags/{dag}")
    shown(browser, "//button[contains(., 'Trigger')]").click()
    shown(browser, f"{DIALOG}//*[text()='Run Parameters']")


def moment(browser: WebDriver, place: int, text: str) -> None:
    """Puts a date into one of the form's fields for moments."""
    opener = f"({DIALOG}//*[@data-testid='datetime-input'])[{place + 1}]"
    shown(browser, opener).click()
    shown(browser, FIELD).send_keys(text.replace("-", "/"))
    shown(browser, opener).click()
    waited(
        browser,
        lambda b: not [e for e in b.find_elements("xpath", FIELD) if e.is_displayed()],
    )


@contextmanager
def tab(browser: WebDriver, name: str, heading: str) -> Iterator[None]:
    """Within the page that a tab, or the navigation bar, leads to; it has this heading."""
    shown(browser, f"//a[contains(@href, '/plugin/hindcast-') and contains(., '{name}')]").click()
    browser.switch_to.frame(shown(browser, "//iframe[contains(@src, '/hindcast/')]"))
    try:
        shown(browser, f"//h1[contains(., '{heading}')]")
        yield
    finally:
        browser.switch_to.default_content()


@pytest.mark.long
def test_a_wrong_password_opens_nothing(up: Up, tmp_path: Path) -> None:
    with chromium(tmp_path) as stranger:
        stranger.get(f"{up.url}/dags/restaurant")
        shown(stranger, "//input[@name='username']").send_keys("admin")
        shown(stranger, "//input[@name='password']").send_keys("password")
        shown(stranger, "//button[@type='submit']").click()
        shown(stranger, "//*[contains(., 'Invalid credentials')]")
        assert "/auth/login" in stranger.current_url


@pytest.mark.long
def test_a_run_is_triggered_by_the_form_up_to_a_moment_and_for_a_reason(up: Up, browser: WebDriver) -> None:
    form(browser, up, "by_hand")
    moment(browser, 1, "2026-01-03")
    shown(browser, "//input[@name='element_reason']").send_keys("the till was wrong")
    picture(browser, "form")
    shown(browser, "//button[@data-testid='trigger-dag-submit']").click()
    until(lambda: states(up, "by_hand") == ["completed"], 120)
    assert prices(up, "by_hand", 1) == [16, 18]
    (run,) = journal.read_runs(up.now.warehouse, "by_hand")
    assert (run.plan.interval_end, run.plan.reason) == (datetime(2026, 1, 3, tzinfo=UTC), "the till was wrong")


@pytest.mark.long
def test_a_preview_by_the_form_writes_nothing(up: Up, browser: WebDriver) -> None:
    form(browser, up, "by_hand")
    shown(browser, f"{DIALOG}//label[.//input[@name='element_preview']]").click()
    shown(browser, "//button[@data-testid='trigger-dag-submit']").click()
    waited(browser, lambda _: len(up.web.read_run_states("by_hand")) == 2)
    run = up.web.wait("by_hand", list(up.web.read_run_states("by_hand"))[-1])
    preview = up.web.wait("by_hand__preview", f"preview__{run}")
    browser.get(f"{up.url}/dags/by_hand__preview/runs/{quote(preview, safe=':')}/tasks/preview")
    shown(browser, "//*[contains(., 'doubled: 2 rows to open, 1 to close')]")
    assert states(up, "by_hand") == ["completed"]


@pytest.mark.long
def test_three_days_are_backfilled_by_the_form(up: Up, browser: WebDriver) -> None:
    form(browser, up, "daily")
    shown(browser, f"{DIALOG}//*[text()='Backfill']").click()
    shown(browser, f"{DIALOG}//*[text()='Date Range']")
    moment(browser, 0, "2026-01-01")
    moment(browser, 1, "2026-01-03")
    shown(browser, f"{DIALOG}//*[contains(text(), '3 runs') or contains(text(), '3 Runs')]")
    picture(browser, "backfill")
    shown(browser, f"{DIALOG}//button[text()='Run Backfill']").click()
    until(lambda: states(up, "daily") == ["completed"] * 3, 300)
    assert [prices(up, "daily", run) for run in (1, 2, 3)] == [[16], [16, 18], [16, 18, 20]]
    browser.get(f"{up.url}/dags/daily")
    shown(browser, "//*[text()='report']")


@pytest.mark.long
def test_three_days_are_rehearsed_by_the_form(up: Up, browser: WebDriver) -> None:
    form(browser, up, "fares")
    shown(browser, f"{DIALOG}//*[text()='Backfill']").click()
    shown(browser, f"{DIALOG}//*[text()='Date Range']")
    moment(browser, 0, "2026-01-01")
    moment(browser, 1, "2026-01-03")
    shown(browser, f"{DIALOG}//*[@id='element_replay']//input").send_keys("rehearse", Keys.ENTER)
    shown(browser, f"{DIALOG}//*[@id='element_replay']//*[contains(text(), 'known at its end')]")
    shown(browser, f"{DIALOG}//label[contains(., 'Override parameters')]").click()  # else Airflow leaves them out
    picture(browser, "rehearse")
    shown(browser, f"{DIALOG}//button[text()='Run Backfill']").click()
    until(lambda: states(up, "fares") == ["completed"] * 3, 300)
    assert [list_known_fares(up.now, day(n)) for n in (2, 3, 4)] == [[10], [10, 12], [10, 8, 12]]


@pytest.mark.long
def test_what_a_gate_holds_back_is_approved_under_required_actions(up: Up, browser: WebDriver) -> None:
    up.web.unpause("restaurant")
    first = up.web.wait("restaurant")
    browser.get(f"{up.url}/dags/restaurant/runs/{quote(first, safe=':')}")
    shown(browser, "//a[contains(@href, '/tasks/build.bills')]")
    picture(browser, "run")
    until(
        lambda: (
            "awaiting_input"
            in (
                t["state"]
                for run in up.web.read_run_states("restaurant__release")
                for t in up.web.tasks("restaurant__release", run)
            )
        ),
        60,
    )
    browser.get(f"{up.url}/required_actions")
    shown(browser, "//a[contains(@href, '/tasks/approve/required_actions')]").click()
    shown(browser, "//td[contains(., 'lassi')]")
    picture(browser, "approve")
    shown(browser, "//button[text()='Approve']").click()
    up.web.wait("restaurant__release")
    assert not held_changes.read_held_rows(up.now.warehouse, "restaurant").num_rows
    lassi = read.history(up.now.warehouse, find(up.now.schemas, "restaurant"), "menu", key=("lassi",)).to_pylist()
    last = journal.read_runs(up.now.warehouse, "restaurant")[-1]
    assert [(row["price"], row["systemFrom"]) for row in lassi] == [(0, last.known_at)]
    by = failing_rows.list_entries(up.now.warehouse, "restaurant").to_pylist()
    assert [row["by"] for row in by if row["entry"] == "released"] == ["admin"]


@pytest.mark.long
def test_the_pages_are_where_people_look_for_them(up: Up, browser: WebDriver) -> None:
    run = journal.read_runs(up.now.warehouse, "restaurant")[0].run_id
    for topic, records in restaurant.late_records().items():
        produce.send_records(up.now.kafka, topic, records)
    late = up.web.wait("restaurant", up.web.trigger("restaurant"))
    browser.get(up.url)
    with tab(browser, "Hindcast", "Quality"):
        link = shown(browser, "//a[text()='restaurant']")
        browser.execute_script("arguments[0].click()", link)  # it is below what the frame shows at first
        shown(browser, "//h1[text()='Quality of restaurant']")
    browser.get(f"{up.url}/dags/restaurant")
    shown(browser, "//*[text()='report']")
    picture(browser, "grid")
    with tab(browser, "Time machine", "restaurant.menu"):
        link = shown(browser, "//a[text()='naan']")
        browser.execute_script("arguments[0].click()", link)  # it is below what the frame shows at first
        heading = shown(browser, "//h1[normalize-space()='naan in restaurant.menu']")
        shown(browser, "//*[local-name()='svg']//*[local-name()='rect']")
        browser.execute_script("arguments[0].scrollIntoView()", heading)
        picture(browser, "key")
    browser.set_window_size(1800, 900)  # the last tab is far to the right
    with tab(browser, "Ledger", "Ledger of restaurant"):
        shown(browser, "//*[local-name()='text' and contains(., 'run 1')]")
    browser.get(f"{up.url}/dags/restaurant/runs/{quote(run, safe=':')}")
    with tab(browser, "Report", "Run 1 of restaurant"):
        shown(browser, "//h2[contains(., 'Offsets')]")
    browser.get(f"{up.url}/dags/restaurant/runs/{quote(late, safe=':')}")
    with tab(browser, "Report", "of restaurant"):
        picture(browser, "report")
    browser.get(f"{up.url}/dags/restaurant/runs/{quote(run, safe=':')}/tasks/build.bills")
    with tab(browser, "Report", "Run 1 of restaurant"):
        shown(browser, "//h2[contains(., 'Offsets')]")
    shown(browser, "//a[contains(., 'Details')]").click()
    shown(browser, "//a[contains(@href, '/hindcast/dag/restaurant/run/') and contains(., 'Report')]")
