"""The Quality page of a pipeline: a line for each run, and pictures of its gates, lateness, rows and freshness."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from warehouses import shop


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture(scope="module")
def web() -> TestClient:
    return TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop"}))))


def list_lines(page: str) -> list[str]:
    """The lines of the table of runs, as text."""
    table = page.split('<table class="runs">')[1].split("</table>", maxsplit=1)[0]
    return [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in table.split("<tr>")[2:]]


def test_a_run_is_a_line_of_what_is_new_in_it(web: TestClient) -> None:
    page = web.get("/quality/shop").text
    assert list_lines(page) == [
        "Run 2 2026-02-02 00:00 ✓ published 1 (1 late) +2 \N{MINUS SIGN}1 1 none Report Time machine",
        "Run 1 2026-02-01 00:00 ✓ published 2 +2 \N{MINUS SIGN}1 0 none Report Time machine",
    ]
    assert 'title="2026-02-02 00:00:00.654321 UTC"' in page
    assert 'title="Run 2 of shop was published; it has no gates. manual__2"' in page
    assert '<a href="/changes/shop?knownAt=run:2" title="2 rows added, 1 removed">' in page
    assert '<a href="/changes/shop?knownAt=run:2&amp;only=corrections">1</a>' in page
