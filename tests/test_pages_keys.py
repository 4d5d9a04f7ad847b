"""Keys as users write them on the page of the time machine, and what it offers in place of one that is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.query import near_keys
from hindcast.query.explain_limits import EngineLimitError
from hindcast.query.read import locate_table
from warehouses import RUNS, fill, shop, version

AIR = """
pipeline: air
start: 2026-01-01
topics:
  weather: {read: table, key: {id: int, station: string}, value: {sky: string}}
"""


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), AIR) as found:
        names = ("north", "south", "a, b")
        rows = [version(1, None, 0, None, id=n, station=name, sky="grey") for n in (7, 8) for name in names]
        fill(found, "air", "weather", rows)
        yield found


@pytest.fixture(scope="module")
def web() -> TestClient:
    return TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"air"}))))


@pytest.mark.parametrize("written", ["7 · north", "7,north", " 7 , north ", "7·north", '{"station": "north", "id": 7}'])
def test_a_key_is_found_as_the_page_writes_it(web: TestClient, written: str) -> None:
    page = web.get("/machine/air", params={"key": written})
    assert page.status_code == 200, page.text
    assert "<h1>7 · north <small>in air.weather</small></h1>" in page.text


def test_a_comma_in_a_value_is_not_in_the_way_of_the_page_s_own_form(web: TestClient) -> None:
    assert "<h1>8 · a, b <small>" in web.get("/machine/air", params={"key": "8 · a, b"}).text


@pytest.mark.parametrize(
    ("written", "status"),
    [
        ("7 · nrth", 404),
        ("7 nort", 400),
        ('{"id": 7, "station": "Nort"}', 404),
        ('{"id": 7, "station": north', 400),
        ("x, north", 400),
    ],
)
def test_keys_near_a_typo_are_offered_below_it(web: TestClient, written: str, status: int) -> None:
    page = web.get("/machine/air", params={"key": written})
    assert page.status_code == status
    _, _, rest = page.text.partition('role="alert"')
    near = rest.split('<p id="near">')[1].split("</p>")[0]
    assert "7 · north</a>" in near
    assert "key=%7B%22id%22%3A+7%2C+%22station%22%3A+%22north%22%7D" in near
    lists = rest.partition('<div class="key-lists">')[2]
    assert "First keys" in lists


def test_what_is_like_no_key_has_none_near(web: TestClient) -> None:
    page = web.get("/machine/air", params={"key": "zzzzzzzz"}).text
    assert 'id="near"' not in page
    assert "First keys" in page


def test_keys_that_are_not_found_in_time_are_not_offered(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = locate_table(settings.warehouse, load(settings.schemas / "air.yaml"), "weather")
    assert near_keys.find_near_keys(table, "7 nort", RUNS[1])[0] == (7, "north")

    def refuse(*_: object) -> None:
        raise EngineLimitError("too long")

    monkeypatch.setattr(near_keys, "open_limited_engine", refuse)
    assert near_keys.find_near_keys(table, "7 nort", RUNS[1]) == []
