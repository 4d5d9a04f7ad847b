"""Airflow's UI as a person works it: logging in, runs and backfills by the forms, an approval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import Up, chromium, log_in, picture, running, shown

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = [pytest.mark.browser, pytest.mark.long]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("stack"), ROOT / "schemas" / "restaurant.yaml", login=True) as started:
        yield started


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, up: Up) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        log_in(started, up)
        yield started


def test_a_dag_is_seen_by_whoever_has_logged_in(up: Up, browser: WebDriver) -> None:
    browser.get(f"{up.url}/dags/restaurant")
    shown(browser, "//*[text()='restaurant']")
    picture(browser, "dag")
