"""The pages behind the real login: Airflow's own API server, with users of its own."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from selenium.webdriver.common.keys import Keys

from browser import chromium, picture, shown, waited
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings, read_settings
from hindcast_local import airflow, ports, process
from hindcast_local.api import AirflowClient
from warehouses import shop


class Up(NamedTuple):
    now: Settings
    token: str


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """An API server alone, in front of the warehouse `shop`; nobody has told it of a DAG."""
    with shop(tmp_path_factory.mktemp("shop")) as there:
        wanted = {"HINDCAST_AIRFLOW_PORT": str(ports.find_free_port()), "HINDCAST_USERS": "admin:admin"}
        settings = read_settings({**there.environment, **wanted})
        airflow.migrate_database(settings)
        since, started = datetime.now(UTC), airflow.start_part(settings, "airflow-api-server")
        try:
            airflow.wait_for_part(started, since)
            web = airflow.api(settings)
            yield Up(settings, token(web))
        finally:
            process.stop_processes([started])


def token(web: AirflowClient) -> str:
    return web._token


def asked(up: Up, address: str, *, token: str | None = None, cookie: str | None = None) -> int:
    """The status of the answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {"Cookie": f"_token={cookie}"} if cookie else {}
    request = urllib.request.Request(f"{airflow.base_url(up.now)}/hindcast{address}", headers=headers)  # noqa: S310  # ours
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def addresses() -> list[str]:
    """An address of every route that there is."""

    def readable() -> frozenset[str]:
        return frozenset()

    routes = build_app(PageAccess(lambda: None, lambda: None, readable)).routes
    words = {"dag_id": "shop", "run_id": "manual__1", "name:path": "run-1.html", "name": "page.css", "page": "quality"}
    paths = [route.path for route in routes]  # type: ignore[attr-defined]  # there is no other kind
    return [re.sub(r"{([a-z_:]+)}", lambda found: words[found[1]], path) for path in paths]


@pytest.mark.long
def test_no_page_is_read_without_a_login_and_every_page_with_one(up: Up) -> None:
    assert len(addresses()) > 12
    assert {a: asked(up, a) for a in addresses() if asked(up, a) not in (401, 403)} == {}
    assert {a: asked(up, a, token="forged") for a in addresses() if asked(up, a, token="x.y.z") not in (401, 403)} == {}  # noqa: S106
    found = {a: asked(up, a, token=up.token) for a in addresses()}
    found["/keys/shop.json"] = asked(up, "/keys/shop.json?table=prices", token=up.token)
    assert found.pop("/dag/shop/run/manual__1/quality") == 404, "Airflow has no such DAG, so nobody may read its runs"
    assert {a: status for a, status in found.items() if status != 200} == {}
    assert asked(up, "/machine/shop.json?table=prices&key=naan", cookie=up.token) == 200


@pytest.mark.long
def test_airflow_lists_the_views_and_loads_the_plugin_without_an_error(up: Up) -> None:
    web = AirflowClient(airflow.base_url(up.now), ("admin", airflow.ensure_passwords(up.now)["admin"]))
    plugins = {it["name"]: it for it in web._call("GET", "/api/v2/plugins")["plugins"]}
    assert {view["destination"] for view in plugins["hindcast_pages"]["external_views"]} == {
        *("nav", "dag", "dag_run", "task_instance")
    }
    assert web._call("GET", "/api/v2/plugins/importErrors")["import_errors"] == []


@pytest.mark.browser
@pytest.mark.long
def test_the_pages_are_shown_in_airflows_ui(up: Up, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.get(airflow.base_url(up.now))
        shown(browser, "//input[@name='username']").send_keys("admin")
        shown(browser, "//input[@name='password']").send_keys(airflow.ensure_passwords(up.now)["admin"])
        shown(browser, "//button[@type='submit']").click()
        waited(browser, lambda b: "/auth/login" not in b.current_url)
        browser.get(f"{airflow.base_url(up.now)}/plugin/hindcast-quality")
        browser.switch_to.frame(shown(browser, "//iframe"))
        assert shown(browser, "//h1").text == "Quality"
        browser.execute_script("location.pathname = '/hindcast/machine/shop'")
        shown(browser, "//a[text()='naan']").click()
        shown(browser, "//h1[normalize-space()='naan in shop.prices']")
        shown(browser, "//*[@id='knownAt']").send_keys(Keys.ARROW_DOWN)
        shown(browser, "//*[@id='answer']//dd[normalize-space()='3.00']")
        browser.switch_to.default_content()
        picture(browser, "machine")
        told = [it["message"] for it in browser.get_log("browser") if it["level"] == "SEVERE"]
        assert not [message for message in told if "hindcast" in message]
