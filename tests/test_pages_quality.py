"""The Quality page of a pipeline: a line for each run, and pictures of its gates, lateness, rows and freshness."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages import drawing, fresh_tables, quality, quality_pictures, run_reports
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.errors import TableError
from hindcast.common.lengths import format_age
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.plan import journal
from hindcast.plan.purposes import Release, ReleasedKeys
from hindcast.plan.runs import Completed, Run
from hindcast.store import tables
from warehouses import RUNS, at, place, plan, report, row, shop, version, write

AIR = """
pipeline: air
start: 2026-01-01
topics:
  weather: {read: table, key: {id: string}, value: {sky: string}}
"""
OUTCOMES = (("passed", "failed"), ("passed", "error", "unchecked"))
"""Of the gates of `weather` in its two runs: the third is new in the second."""


def fill_air(settings: Settings) -> None:
    """Two runs with gates, late records, changed rows and corrected answers, and the table."""
    contract = load(settings.schemas / "air.yaml")
    for run, outcomes in enumerate(OUTCOMES, 1):
        gates = [
            {
                "gate": n,
                "expectation": f"expect_{n}",
                "kwargs": {"column": "sky"},
                "outcome": it,
            }
            for n, it in enumerate(outcomes)
        ]
        ages = {"older": 2} if run == 1 else {"under an hour": 4, "older": 1}
        changed = {"opened": 10 * run, "closed": run - 1, "corrected": run, "ages": ages, "gates": gates}
        late_by = {"median": 60 * run, "p95": 3600, "largest": 7200 * run}
        topic = {"topic": "weather", "offsets": 9, "late": 3 * run, "partitions": [], "lateBy": late_by}
        calm = {"topic": "calm", "offsets": 2 - run, "late": 0, "partitions": []}
        made = report(contract, run) | {"tables": {"weather": changed}, "topics": {"calm": calm, "weather": topic}}
        journal.append_entry(settings.warehouse, Run(plan(contract, run)))
        journal.append_entry(settings.warehouse, Run(plan(contract, run), Completed(made)))
    noon = (RUNS[-1] - timedelta(minutes=74) - datetime(2026, 1, 1, tzinfo=UTC)) / timedelta(minutes=1)
    write(settings, contract, "weather", [version(1, None, start, None, id="a", sky="x") for start in (0, noon)])


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), AIR) as found:
        fill_air(found)
        yield found


@pytest.fixture(scope="module")
def web() -> TestClient:
    return TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop", "air"}))))


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


def test_a_page_says_whether_keys_wait_for_approval(web: TestClient) -> None:
    """The report of a run leads there, also when nothing waits; earlier runs do not tell."""
    assert '<p id="waiting" class="soft">Nothing waits for approval.</p>' in web.get("/quality/shop").text
    assert "waiting" not in web.get("/quality/shop?before=2").text


def test_without_the_report_of_the_last_run_nothing_is_said_of_approval(
    web: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reports, "summarize_run", Mock(side_effect=TableError("unread", where="shop", fix="")))
    assert web.get("/quality/shop.json").json()["waiting"] is None
    assert "waits for approval" not in web.get("/quality/shop").text


def read_pictures(web: TestClient, pipeline: str = "air", **asked: str) -> dict[str, Any]:
    pictures: dict[str, Any] = web.get(f"/quality/{pipeline}.json", params=asked).json()["pictures"]
    return pictures


def test_gates_are_a_grid_of_runs(web: TestClient) -> None:
    lines = read_pictures(web)["gates"]["lines"]
    assert [line["words"] for line in lines] == [
        "run 1 passed, run 2 passed",
        "run 1 failed, run 2 error",
        "run 2 unchecked",
    ]
    assert [[(cell["x"], cell["sign"]) for cell in line["cells"]] for line in lines] == [
        [(0, "✓"), (22, "✓")],
        [(0, "✗"), (22, "!")],
        [(22, "\N{EN DASH}")],
    ]
    page = web.get("/quality/air").text
    assert 'aria-label="run 1 failed, run 2 error"' in page
    assert '<g class="failed"><title>run 1: failed</title>' in page
    assert "passed in 2 of 2" in page


def test_only_the_gates_that_failed_most_often_are_drawn(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_pictures, "MAX_LINES", 1)
    gates = read_pictures(web)["gates"]
    assert [line["words"] for line in gates["lines"]] == ["run 1 failed, run 2 error"]
    assert gates["more"] == 2
    assert "2 gates more failed less often." in web.get("/quality/air").text


def test_late_records_and_rows_are_bars_and_ages_a_histogram(web: TestClient) -> None:
    pictures = read_pictures(web)
    (late, _), (rows,), (ages,) = pictures["late"], pictures["rows"], pictures["ages"]
    assert late["words"] == "Late records, oldest run first: 3, 6"
    assert [bar["height"] for bar in late["up"]] == [11, 22]
    assert rows["words"] == "Rows added, oldest run first: 10, 20; removed: 0, 1"
    assert [(bar["x"], bar["height"]) for bar in rows["down"]] == [(22, 1.1)]
    assert [(bar["age"], bar["count"], bar["width"]) for bar in ages["bars"]] == [
        ("under an hour", 4, 150),
        ("older than 30 days", 3, 112.5),
    ]
    page = web.get("/quality/air").text
    assert "<title>run 2: 6 late</title>" in page
    assert "+20 \N{MINUS SIGN}1 in the last run" in page


def test_topics_have_how_late_their_records_were(web: TestClient) -> None:
    """In the last run that read any and in all; what runs have measured each gives bounds for all of them."""
    found = {it["name"]: (it["run"], it["last"], it["all"]) for it in read_pictures(web)["late"]}
    assert found == {
        "weather": (
            2,
            "6 of 9 late: median 2 min, 95 % at most 1 h, largest 4 h",
            "9 of 18 late: median 1 min to 2 min, 95 % at most 1 h, largest 4 h",
        ),
        "calm": (1, "none late", "none late"),
    }
    assert [*found] == ["weather", "calm"], "topics with late records come first"
    page = web.get("/quality/air").text
    assert "run 2: 6 of 9 late: median 2 min" in page
    (prices,) = read_pictures(web, "shop")["late"]
    assert prices["last"] == "1 of 1 late; by how much was not measured", "an older program wrote the report"


def test_each_table_has_its_verdict_its_last_change_and_the_date_of_its_newest_row(
    web: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_tables, "datetime", Mock(now=lambda _: RUNS[-1] + timedelta(hours=2)))
    page = web.get("/quality/air").text
    (fresh,) = web.get("/quality/air.json").json()["freshTables"]
    assert fresh == {
        "name": "weather",
        "kind": "unchecked",
        "verdict": "Runs on request only, so no run is due",
        "change": "2 h ago (run 2)",
        "newest": "2026-02-01T22:46:00.654000+00:00",
    }
    assert '<h2 id="fresh-title">Which tables are fresh?</h2>' in page
    assert '<a href="/machine/air?table=weather">weather</a>' in page
    assert ">2026-02-01 22:46</time>" in page
    lines = web.get("/quality/shop.json").json()["freshTables"]
    assert [it["name"] for it in lines][:2] == ["prices", "orders"]
    assert web.get("/quality/shop.json?before=2").json()["freshTables"] == []


def test_rows_that_nobody_believes_are_not_fresh(tmp_path: Path) -> None:
    """One that was superseded, and one of a run under way."""
    with shop(tmp_path) as settings:
        contract = load(settings.schemas / "shop.yaml")
        table = tables.locate_table(settings.warehouse, contract, "orders")
        new = {"customer": "dave", "item": "", "quantity": 1}
        write(settings, contract, "orders", [row(1, 2, **new, timestamp=at(9), **place(1))])
        later = {"timestamp": at(9), "systemFrom": RUNS[1] + timedelta(days=1)}
        write(settings, contract, "orders", [{**row(2, **new), **later, **place(2)}])
        assert fresh_tables.find_newest(table, "timestamp", RUNS[1]) == at(2)
        assert fresh_tables.find_newest(table, "timestamp", RUNS[1] + timedelta(days=1)) == at(9)


def test_a_run_under_way_has_no_report_of_a_lost_one(tmp_path: Path) -> None:
    """After a restore its number is given again."""
    with shop(tmp_path) as settings:
        contract = load(settings.schemas / "shop.yaml")
        journal.append_entry(settings.warehouse, Run(replace(plan(contract, 2), run=3, run_id="manual__3")))
        (settings.reports / "shop" / "run-3").mkdir(parents=True)
        for name in ("run-3.html", "run-3/index.html"):
            (settings.reports / "shop" / name).write_text("lost")
        page = TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop"}))))
        last, former, _ = page.get("/quality/shop.json").json()["runs"]
    assert (last["run"], last["report"], last["dataDocs"]) == (3, None, None)
    assert former["report"] == "run-2.html"


def test_runs_without_a_report_have_no_pictures(web: TestClient) -> None:
    assert read_pictures(web, before="1") == {}
    assert "Over these runs" not in web.get("/quality/air", params={"before": "1"}).text


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(seconds=59), "less than 1 min"),
        (timedelta(minutes=14, seconds=59), "14 min"),
        (timedelta(hours=3), "3 h"),
        (timedelta(days=2, hours=5, minutes=7), "2 d 5 h"),
    ],
)
def test_ages_for_people(length: timedelta, words: str) -> None:
    assert format_age(length) == words


def test_bars_are_seen_unless_they_are_of_nothing() -> None:
    assert drawing.scale_lengths([0, 1, 1000], 20) == [0, 1, 20]
    assert drawing.scale_lengths([], 20) == []
    assert drawing.scale_lengths([0, 0], 20) == [0, 0]
    assert [it["text"] for it in drawing.place_labels([str(n) for n in range(10_000, 10_020)])][-1] == "10019"


def list_questions(page: str) -> list[list[str]]:
    """The links of each list of questions, as text and address."""
    lists = page.split('<ul class="questions"')[1:]
    return [re.findall(r'<a href="([^"]+)">([^<]+\?)</a>', part.split("</ul>")[0]) for part in lists]


def test_each_question_is_a_link_from_the_first_page_and_from_that_of_a_pipeline(web: TestClient) -> None:
    """What no run answers is not asked."""
    asked = [
        ("/changes/shop?knownAt=run:2", "What did run 2 change?"),
        ("/machine/shop", "Why is a value what it is?"),
        ("/quality/shop#late", "How late are records?"),
        ("/quality/shop#fresh", "Which tables are fresh?"),
    ]
    assert asked in list_questions(web.get("/quality").text)
    assert list_questions(web.get("/quality/shop").text) == [asked]
    for address, _ in asked:
        answer = web.get(address)
        assert answer.status_code == 200
        assert "#" not in address or f'id="{address.partition("#")[2]}"' in answer.text


def test_failures_and_approvals_are_asked_for_in_the_last_run_that_has_them(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        contract = load(settings.schemas / "shop.yaml")
        past = journal.read_runs(settings.warehouse, "shop")
        first, second = (quality.build_run_entry(settings, run, lambda _: False) for run in past)
        failed = replace(first, outcome=replace(first.outcome, gates={"failed": 1}))
        release = Release({"prices": ReleasedKeys(RUNS[1], ("{}",), "ann")})
        approved = replace(failed, run=replace(past[0], plan=replace(plan(contract, 1), purpose=release)))
        own = {"run": 1, "report": "run-1.html"}
        assert quality.find_answers([failed, second])["failed"] == own
        assert quality.find_answers([failed, second])["approved"] is None
        assert quality.find_answers([approved, second])["approved"] == own | {"hasReason": False}
        reasoned = replace(approved, run=replace(approved.run, plan=replace(approved.run.plan, reason="it is right")))
        assert quality.find_answers([reasoned])["approved"] == own | {"hasReason": True}
        assert quality.find_answers([replace(failed, report=None)])["failed"] is None
