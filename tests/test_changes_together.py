"""The page of a run that changed few rows has the changes of all tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages import changes_page
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.contract import load
from hindcast.plan import journal
from hindcast.plan.runs import Completed, Run
from warehouses import place, plan, report, shop, version, write

AIR = """
pipeline: air
start: 2026-01-01
topics:
  hush: {read: table, key: {id: string}, value: {sky: string}, sensitive: true}
  calm: {read: table, key: {id: string}, value: {sky: string}}
  weather: {read: table, key: {id: string}, value: {sky: string}}
  wind: {read: table, key: {id: string}, value: {sky: string}}
"""


@pytest.fixture(name="web")
def open_web(tmp_path: Path) -> Iterator[TestClient]:
    """Run 2 wrote a row of `calm` again, with the same answers, and changed `weather` and `wind`."""
    with shop(tmp_path, AIR) as settings:
        contract = load(settings.schemas / "air.yaml")
        for run in (1, 2):
            changed = {it: {"opened": 1, "closed": run - 1, "gates": []} for it in contract.topics}
            made = report(contract, run) | {"tables": changed, "topics": {}}
            journal.append_entry(settings.warehouse, Run(plan(contract, run)))
            journal.append_entry(settings.warehouse, Run(plan(contract, run), Completed(made)))
        for name in ("calm", "weather", "wind"):
            skies = ("grey", "grey" if name == "calm" else "blue")
            rows = [version(n, 2 if n == 1 else None, 0, None, id="a", sky=skies[n - 1], **place(n)) for n in (1, 2)]
            write(settings, contract, name, rows)
        yield TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"air"}))))


def test_other_tables_are_shown_though_the_first_has_no_change(web: TestClient) -> None:
    """That is not the one with a sensitive key, which no page shows."""
    found = web.get("/changes/air.json").json()
    assert (found["table"], found["lines"]) == ("calm", [])
    assert [it["table"] for it in found["others"]] == ["weather", "wind"]
    page = web.get("/changes/air").text
    assert ">weather</h2>" in page
    assert ">wind</h2>" in page


def test_tables_for_which_there_is_no_time_have_links(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_page, "TOGETHER_SECONDS", -1.0)
    assert web.get("/changes/air.json").json()["others"] == []
    page = " ".join(web.get("/changes/air").text.split())
    assert "table=weather" in page[page.index('id="other-tables"') :]
