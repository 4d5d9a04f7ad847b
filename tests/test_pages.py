"""The pages in Airflow's UI: what they tell, whom, and that no text of a topic gets out of its place."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from hindcast.airflow.pages import (
    VIEWS,
    changes_page,
    drawing,
    known_ats,
    ledger_page,
    table_view,
    time_machine,
)
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.errors import TableError
from hindcast.common.settings import Settings
from hindcast.contract import Join, find
from hindcast.plan import closes, journal
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Release
from hindcast.plan.runs import Abandoned, Completed, Outcome, Planned, Run, Stopped
from hindcast.query import changes, inputs_as_of, key_history, read
from hindcast.query.changes import SideLimit
from hindcast.query.explain_limits import EngineLimitError
from hindcast.query.show import format_moment
from hindcast.store import tables
from warehouses import (
    ANSWERS_OF_SHOP,
    HOSTILE,
    RUNS,
    T0,
    answer_questions,
    at,
    complete,
    place,
    plan,
    report,
    row,
    shop,
    version,
    write,
)

GUEST = """
pipeline: guest
start: 2026-01-01
topics:
  questions: {read: stream, key: {id: string}, value: {item: string}}
inputs:
  menu: {table: shop.prices, key: {item: string}, value: {price: "decimal(8,2)"}}
views:
  answers: {stream: questions, join: {table: menu, on: item}}
"""


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), GUEST) as found:
        yield found


def client(*readable: str) -> TestClient:
    """The pages for somebody who may read some DAGs; Airflow's own access is test_pages_access.py's."""

    def pipeline(dag_id: str) -> None:
        if not {dag_id, dag_id.partition("__")[0]} & {*readable, "nope"}:
            raise HTTPException(403)

    return TestClient(
        build_app(PageAccess(lambda: None, pipeline, lambda: frozenset(readable))), raise_server_exceptions=False
    )


@pytest.fixture
def web() -> TestClient:
    return client("shop", "guest")


class Text(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    def __str__(self) -> str:
        return " ".join(self.words)


def text(web: TestClient, address: str, status: int = 200, **asked: str) -> str:
    answer = web.get(address, params=asked)
    assert answer.status_code == status, answer.text
    return str(Text(answer.text))


def twin(web: TestClient, address: str, **asked: str) -> Any:
    answer = web.get(f"{address}.json", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


# Access


def test_every_route_asks_whether_the_user_may_see_it() -> None:
    def readable() -> frozenset[str]:
        return frozenset()

    asked = PageAccess(lambda: None, lambda: None, readable)
    for route in build_app(asked).routes:
        calls = [it.call for it in route.dependant.dependencies]  # type: ignore[attr-defined]  # there is no other kind
        assert asked.website in calls, route
        assert (asked.pipeline in calls) == ("{dag_id}" in route.path), route  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["/quality", "/changes", "/machine", "/closes", "/ledger"])
def test_lists_have_only_pipelines_that_may_be_read(address: str) -> None:
    assert "guest" in text(client("shop", "guest"), address)
    assert "guest" not in text(client("shop"), address)
    assert "guest" not in str(twin(client("shop"), address))


@pytest.mark.parametrize(
    "address",
    [
        "/quality/guest",
        "/changes/guest",
        "/closes/guest",
        "/machine/guest.json",
        "/keys/guest.json",
        "/reports/guest/x",
        "/dag/guest/quality",
    ],
)
def test_a_pipeline_that_may_not_be_read_is_refused(address: str) -> None:
    assert client("shop").get(address).status_code == 403


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view["url_route"])
def test_the_views_that_airflow_lists_lead_to_a_page(web: TestClient, view: dict[str, str]) -> None:
    address = view["href"].removeprefix("/hindcast").format(DAG_ID="shop", RUN_ID="manual__1")
    assert web.get(address).status_code == 200


@pytest.mark.parametrize("dag_id", ["shop__release", "shop__preview"])
def test_the_page_of_a_dag_beside_is_its_pipelines(web: TestClient, dag_id: str) -> None:
    answer = web.get(f"/dag/{dag_id}/quality", follow_redirects=False)
    assert answer.headers["location"] == "/quality/shop"


def test_the_dag_of_previews_tells_no_run_of_its_pipeline() -> None:
    address = "/dag/shop__preview/run/manual__1/quality"
    assert client("shop", "shop__preview").get(address).status_code == 200
    assert client("shop__preview").get(address).status_code == 404


def test_unknown_names_are_told_without_those_that_may_not_be_read() -> None:
    assert "guest" not in text(client("shop", "shap"), "/quality/shap", 404)


def test_to_load_the_plugin_imports_nothing_that_pages_need() -> None:
    probe = (
        "import sys, hindcast.airflow.pages; print(sorted({'fastapi', 'duckdb', 'pyspark', 'jinja2'} & "
        "set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n"


# Quality


def test_quality_tells_the_verdict_of_the_last_run_and_where_its_report_is(web: TestClient) -> None:
    told = text(web, "/quality")
    assert "✓ Run 2 of shop was published; it has no gates." in told
    (it,) = [p for p in twin(web, "/quality")["pipelines"] if p["pipeline"] == "shop"]
    assert (it["last"]["run"], it["last"]["report"], it["last"]["dataDocs"]) == (2, "run-2.html", None)
    assert {trend["measure"]: trend["last"] for trend in it["trends"]} == {"records": 1, "late": 1, "corrected": 1}
    assert [run["run"] for run in twin(web, "/quality/shop")["runs"]] == [2, 1]


def test_reports_and_data_docs_come_with_a_policy_of_their_own(web: TestClient, settings: Settings) -> None:
    docs = settings.reports / "shop" / "run-1" / "index.html"
    docs.parent.mkdir()
    docs.write_text("<html><head></head><script>alert(1)</script></html>")
    assert twin(web, "/quality/shop")["runs"][1]["dataDocs"] == "run-1/index.html"
    answer = web.get("/reports/shop/run-1/index.html")
    assert "script-src" not in answer.headers["content-security-policy"]  # so default-src holds: none
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r"static/([\w.]+)", answer.text) == ["page.css", "data_docs.css"]
    assert web.get("/static/data_docs.css").status_code == 200
    assert '<html data-theme="dark">' in web.get("/reports/shop/run-1/index.html?theme=dark").text
    assert (
        "sandbox allow-scripts allow-downloads"
        in web.get("/reports/shop/run-1.html").headers["content-security-policy"]
    )


@pytest.mark.parametrize(
    "name",
    [
        "../guest/x.html",
        "..%2f..%2fschemas%2fshop.yaml",
        "%2fetc%2fpasswd",
        "..",
        ".",
        "",
        "run-1",
        "a%00b",
        "x" * 5000,
        "out",
    ],
)
def test_no_page_escapes_the_reports_of_its_pipeline(web: TestClient, settings: Settings, name: str) -> None:
    link = settings.reports / "shop" / "out"
    if not link.exists():
        link.symlink_to(settings.schemas / "shop.yaml")
    assert web.get(f"/reports/shop/{name}").status_code == 404


# Time machine


def plane(web: TestClient, table: str, key: str, **asked: str) -> Any:
    return twin(web, "/machine/shop", table=table, key=key, **asked)


def values(rows: list[Any]) -> list[list[Any]]:
    return [list(row["values"].values()) for row in rows]


@pytest.mark.parametrize(
    ("minute", "run", "price"),
    [(-1, 1, []), (0, 1, ["3.00"]), (5, 1, ["3.00"]), (0.5, 2, ["3.00"]), (1, 2, ["2.50"]), (5, 2, ["2.50"])],
)
def test_the_row_at_the_crosshair(web: TestClient, minute: float, run: int, price: list[str]) -> None:
    told = plane(web, "prices", "naan", asOf=at(minute).isoformat(), knownAt=f"run:{run}")
    assert [row["values"]["price"] for row in told["answer"]["rows"]] == price


def test_each_rectangle_has_its_record_and_the_runs_that_opened_and_closed_it(web: TestClient) -> None:
    told = plane(web, "prices", "naan")
    assert [
        (row["values"]["price"], row["openedBy"], row["closedBy"], row["records"])
        for row in told["plane"]["rectangles"]
    ] == [
        ("3.00", 1, 2, [{"topic": "shop.prices", "partition": 0, "offset": 0}]),
        ("3.00", 2, None, [{"topic": "shop.prices", "partition": 0, "offset": 0}]),
        ("2.50", 2, None, [{"topic": "shop.prices", "partition": 0, "offset": 2}]),
    ]
    old, new, late = told["plane"]["rectangles"]
    assert old["x"] == new["x"] < late["x"] == new["x"] + new["width"]
    assert old["y"] + old["height"] == new["y"] == late["y"]
    assert late["x"] + late["width"] == late["y"] + late["height"] == 1  # until changed, still believed


def test_a_diff_between_two_known_ats(web: TestClient) -> None:
    told = plane(web, "bills", "dave", knownAt="run:2", comparedWith="run:1")["diff"]
    [line] = told["lines"]
    assert [(it["name"], it["before"], it["after"], it["differs"]) for it in line["cells"]] == [
        ("item", "naan", "naan", False),
        ("amount", "6.00", "5.00", True),
    ]
    assert plane(web, "bills", "dave", knownAt="run:1", comparedWith="run:2")["diff"] == told
    prices = {"table": "prices", "key": "naan", "knownAt": "run:2", "comparedWith": "run:1"}
    of_key = plane(web, **prices)["diff"]["lines"]
    of_table = [{**line, "causes": []} for line in twin(web, "/changes/shop", **prices)["lines"]]
    assert [{**line, "causes": []} for line in of_key] == of_table, "3.00 until 00:01 is no other answer"
    shown = web.get("/machine/shop", params=prices).text
    assert '<del>3.00</del> <span class="arrow-to" aria-hidden="true">→</span> <ins>2.50</ins>' in shown
    assert "1 change, from" in str(Text(shown))


def test_closes_are_offered_and_drawn_over_their_period_at_what_was_known(web: TestClient, settings: Settings) -> None:
    first = journal.read_completed_runs(settings.warehouse, "shop")[0].known_at
    kept = Close("2026-Q1", T0, at(1.5), first, at(60), "ann")
    for close in (kept, replace(kept, name="gone")):
        closes.add_close(settings.warehouse, "shop", close)
    closes.drop_close(settings.warehouse, "shop", "gone", "ann", "a mistake")
    told = plane(web, "prices", "naan", knownAt="close:2026-Q1")
    assert [row["values"]["price"] for row in told["answer"]["rows"]] == ["3.00"]
    assert (told["knownBy"], told["closedAs"]) == (1, ["2026-Q1"])
    (line,) = told["plane"]["closes"]
    (old, *_) = told["plane"]["rectangles"]
    assert (line["name"], line["x"], line["y"]) == ("2026-Q1", old["x"], old["y"])
    assert 0 < line["width"] < old["width"]
    for address in ("/machine", "/changes"):
        assert twin(web, f"{address}/shop")["knownAts"] == ["run:2", "run:1", "close:2026-Q1"]
        shown = web.get(f"{address}/shop", params={"table": "prices", "key": "naan", "comparedWith": "close:2026-Q1"})
        assert '<option value="close:2026-Q1">' in shown.text
        assert "2.50" in shown.text
    told = twin(web, "/changes/shop", table="prices", comparedWith="close:2026-Q1")
    assert [(line["validFrom"], line["validTo"]) for line in told["lines"]] == [
        (at(1).isoformat(), at(1.5).isoformat())
    ]
    assert "Of what was true from 2026-01-01 to before 2026-01-01 00:01:30" in text(
        web, "/changes/shop", table="prices", comparedWith="close:2026-Q1"
    )
    shown = web.get("/machine/shop", params={"table": "prices", "key": "naan", "asOf": at(2).isoformat()})
    (link,) = re.findall(r'<a class="close" href="([^"]*)"', shown.text)
    assert "as known at run 1, 2026-02-01 00:00 , close 2026-Q1:" in str(
        Text(web.get(html.unescape(link).removeprefix("/hindcast")).text)
    )


@pytest.mark.parametrize(("run", "price"), [(1, "3.00"), (2, "2.50")])
def test_why_a_join_gave_this_as_known_then(web: TestClient, run: int, price: str) -> None:
    told = plane(web, "bills", "dave", knownAt=f"run:{run}")["why"]
    assert told["text"].startswith(
        "One event of orders looked up prices by orders.item: item = naan, valid at 2026-01-01 00:02"
    )
    order, met = told["parts"]
    assert order["rows"][0]["records"] == [{"topic": "orders", "partition": 0, "offset": 0}]
    assert [(row["key"], row["values"]["price"]) for row in met["rows"]] == [("naan", price)]


@pytest.mark.parametrize(
    ("table", "key", "words", "parts"),
    [
        (
            "met",
            "dave",
            "One event of orders was joined with one event of visits within the window.",
            {"orders": 1, "visits": 1},
        ),
        (
            "daily",
            "dave",
            "It aggregates one event of orders with customer = dave, from 2026-01-01 to 2026-01-02.",
            {"orders": 1},
        ),
        ("cities", "Rome", "It aggregates one version of people with city = Rome, valid at 2026-01-01.", {"people": 1}),
        ("prices", "naan", "It comes from the record in shop.prices, partition 0, offset 2.", {}),
    ],
)
def test_why_of_every_kind_of_table(web: TestClient, table: str, key: str, words: str, parts: dict[str, int]) -> None:
    told = plane(web, table, key)["why"]
    assert (told["text"], {part["name"]: part["total"] for part in told["parts"]}) == (words, parts)


def test_of_a_pair_both_records_are_told(web: TestClient) -> None:
    (row,) = plane(web, "met", "dave")["plane"]["rectangles"]
    assert [(it["topic"], it["offset"]) for it in row["records"]] == [("orders", 0), ("visits", 7)]


def test_a_window_is_true_for_as_long_as_it_lasts(web: TestClient) -> None:
    for hours, rows in ((0, 1), (23, 1), (25, 0)):
        told = plane(web, "daily", "dave", asOf=(T0 + timedelta(hours=hours)).isoformat())
        assert told["answer"]["total"] == rows


def test_what_another_pipeline_hides_is_hidden_while_its_contract_does_not_load(tmp_path: Path) -> None:
    with shop(tmp_path, ANSWERS_OF_SHOP) as settings:
        answer_questions(settings)

        def ask() -> str:
            answer = client("reader", "shop").get("/machine/reader.json", params={"table": "answers", "key": "q1"})
            assert answer.status_code == 200
            return answer.text

        def ask_people() -> str:
            answer = client("reader", "shop").get("/machine/shop.json", params={"table": "people", "key": "1"})
            assert answer.status_code == 200
            return answer.text

        path = settings.schemas / "shop.yaml"
        text = path.read_text(encoding="utf-8")
        people = "value: {name: string, city: string}, sensitive: [name]"
        assert people in text
        changed = {
            "does not load": f"{text}\n  x: [",
            "has no such column": text.replace(people, "value: {city: string}"),
            "has the column under another name": text.replace(people, "value: {nick: string, city: string}"),
            "has no such table": "\n".join(it for it in text.split("\n") if "people" not in it),
            "is as it was": text,
        }
        for what, contract_text in changed.items():
            path.write_text(contract_text, encoding="utf-8")
            for said in (ask(), "" if "table" in what or "load" in what else ask_people()):
                assert "Ann" not in said, what
            assert "***" in ask(), what
        path.unlink()  # what its last run stored says what it hid
        assert "***" in ask()
        assert "Ann" not in ask()


MARKED = ANSWERS_OF_SHOP.replace(
    "value: {name: string, city: string}}", "value: {name: string, city: string}, sensitive: [name]}"
)


@pytest.mark.parametrize(
    "change", [(", sensitive: [name]", ""), ("select: {who_was: folks.name}", "select: {who_was: folks.city}")]
)
def test_a_view_hides_what_its_inputs_hide_until_a_run_has_replaced_its_rows(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    text = MARKED.replace("select: {city: city}", "select: {who_was: folks.name}")
    with shop(tmp_path, text) as settings:
        contract = find(settings.schemas, "reader")
        for run in (1, 2):
            complete(settings, contract, run)
        write(settings, contract, "answers", [row(1, id="q1", who_was="Ann Secret", timestamp=at(2), **place(0))])
        path = settings.schemas / "reader.yaml"
        for contract_text in (text, text.replace(*change)):
            path.write_text(contract_text, encoding="utf-8")
            answer = client("reader", "shop").get("/machine/reader.json", params={"table": "answers", "key": "q1"})
            assert (answer.status_code, "***" in answer.text, "Ann" in answer.text) == (200, True, False)


def test_inputs_with_very_large_values_are_not_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_as_of, "MAX_BYTES", 100)
    with shop(tmp_path):
        found = plane(client("shop"), "bills", "dave")["why"]["text"]
    assert "have more than 0 MiB, which a page does not read" in found


def test_without_a_key_the_table_is_shown_as_known_at_a_moment(web: TestClient, settings: Settings) -> None:
    closes.add_close(settings.warehouse, "shop", Close("Q1", T0, at(60), RUNS[0], RUNS[1], "eva"))
    page = web.get("/machine/shop.json", params={"table": "prices", "knownAt": "run:1"}).json()
    contract = find(settings.schemas, "shop")
    rows = read.query(settings.warehouse, contract, "prices", read.Question(known_at=RUNS[0])).to_pylist()
    assert sorted(row["values"]["item"] for row in page["sample"]["rows"]) == sorted(row["item"] for row in rows)
    assert page["sample"]["total"] == len(rows)
    assert (page["knownBy"], page["place"]) == (1, 0)
    first, *others, last = (offered for offered, _ in page["moments"])
    assert (first, "close:Q1" in others, last) == ("run:1", True, "run:2")
    naan = next(row for row in page["sample"]["rows"] if row["values"]["item"] == "naan")
    assert (naan["key"], naan["openedBy"], naan["records"][0]["offset"]) == ("naan", 1, 0)
    shown = web.get("/machine/shop", params={"table": "prices", "knownAt": "run:1"}).text
    assert "table=prices&amp;knownAt=run%3A1&amp;key=naan" in shown
    assert 'class=" fresh"' in shown
    for odd, status in (({"knownAt": "soon"}, 400), ({"asOf": "soon"}, 400), ({"knownAt": "close:Q9"}, 404)):
        answer = web.get("/machine/shop.json", params={"table": "prices", **odd})
        assert answer.status_code == status, answer.text
    people = web.get("/machine/shop", params={"table": "people"}).text
    assert ("***" in people, "Ann" in people) == (True, False)


def test_a_table_too_large_to_be_shown_offers_keys(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_long(*_: object, **__: object) -> None:
        raise EngineLimitError("this took long")

    def fill_memory(*_: object, **__: object) -> None:
        raise duckdb.OutOfMemoryException("all of it is used")

    for change in ({"MAX_BYTES": 10}, {"open_limited_engine": take_long}, {"open_limited_engine": fill_memory}):
        with monkeypatch.context() as changed:
            for name, other in change.items():
                changed.setattr(table_view, name, other)
            page = web.get("/machine/shop.json", params={"table": "prices"}).json()
            assert ("sample" in page, [key["key"] for key in page["keys"]["first"]]) == (False, [HOSTILE, "naan"])


def test_a_slider_has_moments_that_are_answered_and_names_what_is_shown(web: TestClient, settings: Settings) -> None:
    early = web.get("/machine/shop.json", params={"table": "prices", "knownAt": "2026-01-15"}).json()
    assert (early["current"], early["place"], early["sample"]["rows"]) == ("2026-01-15", 0, [])
    past, kept = journal.read_runs(settings.warehouse, "shop"), closes.list_kept(settings.warehouse, "shop")
    moments = known_ats.list_moments(past, kept, RUNS[1])
    assert "run:1" not in [it.text for it in moments]
    assert moments[-1].text == "run:2"


def test_sensitive_columns_are_hidden_and_sensitive_keys_are_not_asked_by(web: TestClient) -> None:
    for address in ("/machine/shop", "/machine/shop.json"):
        for asked in ({"table": "people", "key": "1"}, {"table": "cities", "key": "Rome"}):
            answer = web.get(address, params=asked)
            assert (answer.status_code, "***" in answer.text, "Ann" in answer.text) == (200, True, False)
    assert "the key of secrets is sensitive" in text(web, "/machine/shop", 400, table="secrets")
    assert web.get("/keys/shop.json", params={"table": "secrets", "beginning": "s"}).status_code == 400


@pytest.mark.parametrize(("name", "marked"), [("orders", ["customer"]), ("prices", ["item"]), ("orders", ["item"])])
def test_a_sensitive_key_is_not_in_the_sentence_about_a_join_on_the_key(
    settings: Settings, name: str, marked: list[str]
) -> None:
    """Of either side; a column that is not looked up by hides nothing."""
    from hindcast.query.explain import explain_row

    contract = find(settings.schemas, "shop")
    topics = {**contract.topics, name: contract.topics[name].model_copy(update={"sensitive": tuple(marked)})}
    views = {"bills": contract.views["bills"].model_copy(update={"join": Join(table="prices")})}
    other = contract.model_copy(update={"topics": topics, "views": views})
    row = {"customer": "dave", "timestamp": at(2), "_partition": 0, "_offset": 0}
    told = explain_row(settings, other, "bills", row, RUNS[1], {"shop"})["text"]
    shown = "***" if marked == [*contract.topics[name].key] else "dave"
    assert told.startswith(f"One event of orders looked up prices: item = {shown}, valid at ")


def test_what_was_looked_up_by_a_sensitive_value_does_not_show_it(settings: Settings) -> None:
    from hindcast.query.explain import explain_row

    contract = find(settings.schemas, "shop")
    topics = {**contract.topics, "orders": contract.topics["orders"].model_copy(update={"sensitive": ("item",)})}
    other = contract.model_copy(update={"topics": topics})
    row = {"customer": "dave", "timestamp": at(2), "_partition": 0, "_offset": 0}
    found = explain_row(settings, other, "bills", row, RUNS[1], {"shop"})
    (version,) = found["parts"][1]["rows"]
    assert {*version["values"].values()} == {"***"}
    assert (version["key"], version["from"], version["records"]) == (None, None, [])
    assert "naan" not in json.dumps(found)
    shown = explain_row(settings, contract, "bills", row, RUNS[1], {"shop"})["parts"][1]["rows"][0]
    assert (shown["key"], shown["values"]["item"], len(shown["records"])) == ("naan", "naan", 1)


def test_rows_of_another_pipeline_are_shown_only_to_who_may_read_it(settings: Settings) -> None:
    contract = find(settings.schemas, "guest")
    from hindcast.query.explain import explain_row

    row = {"id": "q", "item": "naan", "price": 3, "timestamp": at(2), "_partition": 0, "_offset": 0}
    told = explain_row(settings, contract, "answers", row, RUNS[1], {"guest"})
    assert told["parts"][1]["rows"] is None
    assert "you may not read that pipeline" in told["text"]
    assert explain_row(settings, contract, "answers", row, RUNS[1], {"guest", "shop"})["parts"][1]["rows"] == []


def test_a_row_whose_inputs_cannot_be_opened_is_shown_without_its_why(settings: Settings) -> None:
    """As another user's may be."""
    from hindcast.query.explain import explain_row

    contract = find(settings.schemas, "guest")
    row = {"id": "q", "item": "naan", "price": 3, "timestamp": at(2), "_partition": 0, "_offset": 0}
    damaged = TableError("is not a Delta table", where="shop/prices", fix="restore it")
    with patch("hindcast.plan.horizon.find_frozen_until", side_effect=damaged):
        told = explain_row(settings, contract, "answers", row, RUNS[1], {"guest", "shop"})
    assert (told["parts"], "cannot be explained: " in told["text"]) == ([], True)


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("upper(lower(orders.item))", "item = NAAN"),
        ("substring(orders.item, 1, 4)", "item = naan"),
        ("soundex(orders.item)", "The row cannot be explained"),
    ],
)
def test_why_evaluates_what_was_looked_up_or_says_that_it_cannot(settings: Settings, on: str, words: str) -> None:
    from hindcast.query.explain import explain_row

    contract = find(settings.schemas, "shop")
    join = contract.views["bills"].join
    assert join is not None
    view = contract.views["bills"].model_copy(update={"join": join.model_copy(update={"on": on})})
    other = contract.model_copy(update={"views": {**contract.views, "bills": view}})
    row = {"customer": "dave", "timestamp": at(2), "_partition": 0, "_offset": 0}
    told = explain_row(settings, other, "bills", row, RUNS[1], {"shop"})
    assert words in told["text"]


def test_some_keys_that_begin_so(web: TestClient) -> None:
    def keys(beginning: str) -> list[str]:
        return web.get("/keys/shop.json", params={"table": "prices", "beginning": beginning}).json()["keys"]

    assert (keys(""), keys("na"), keys("x'--")) == ([HOSTILE, "naan"], ["naan"], [])


def test_of_a_huge_history_the_rectangles_near_the_crosshair_are_drawn(settings: Settings, tmp_path: Path) -> None:
    contract = find(settings.schemas, "shop")
    with shop(tmp_path) as other:
        many = [
            version(1, None, n, n + 1, item="busy", price=n % 7, note="", _partition=0, _offset=n)
            for n in range(100_000)
        ]
        write(other, contract, "prices", many)
        told = time_machine.build_page(
            other,
            contract,
            ["shop"],
            time_machine.MachineRequest("prices", "busy", at(50_000.5).isoformat(), comparedWith="run:1"),
        )
    assert (told["plane"]["total"], len(told["plane"]["rectangles"])) == (100_000, time_machine.MAX_RECTANGLES)
    assert values(told["answer"]["rows"]) == [["busy", "6.00", ""]]  # 50,000 mod 7
    offsets_drawn = [row["records"][0]["offset"] for row in told["plane"]["rectangles"]]
    assert (min(offsets_drawn), max(offsets_drawn)) == (49_850, 50_149) or abs(sum(offsets_drawn) / 300 - 50_000) < 2


def test_a_history_is_read_once_for_each_version_of_its_table(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = find(settings.schemas, "shop")
    table = tables.locate_table(settings.warehouse, contract, "visits")
    first = key_history.read_history(table, ["dave"])
    monkeypatch.setattr(key_history.read, "read_key_rows", None)
    assert key_history.read_history(table, ["dave"]).rows is first.rows


# Ledger


def test_the_ledger_has_the_offsets_and_fates_of_each_run(web: TestClient) -> None:
    told = twin(web, "/ledger/shop")
    (row,) = told["topics"][0]["rows"]
    assert [(cell["ranges"], cell["fates"], cell["gap"]) for cell in row["cells"]] == [
        ([[0, 2]], {"accepted": 2}, None),
        ([[2, 3]], {"accepted": 1}, None),
    ]
    assert [late["share"] for late in told["topics"][0]["late"]] == [0, 1]
    drawn = web.get("/ledger/shop").text
    assert re.findall(r'<text x="(\d+)" y="14" class="name">run (\d)', drawn) == [("332", "1"), ("212", "2")]
    assert re.findall(r'x="(\d+)"[^>]* class="over">(\d+)<', drawn) == [("380", "2"), ("260", "1")]
    legend = drawn.partition('class="legend"')[2].partition("</ul>")[0]
    assert re.findall(r"</svg> ([\w ,]+)", legend) == ["accepted"], "only what occurs"
    assert "2 run 2 topic" not in text(web, "/ledger/shop")
    assert "2 shop.prices 0 2 to 2 1 accepted" in text(web, "/ledger/shop")


def pieces(*told: tuple[int, int] | None) -> list[list[ledger_page.RunOffsets]]:
    return [[] if it is None else [ledger_page.RunOffsets(0, *it, {"accepted": it[1] - it[0]})] for it in told]


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ([(0, 5), (5, 9)], [{}, {}]),
        ([(0, 5), None, (7, 9)], [{}, {}, {0: (5, 7)}]),
        ([(10, 20), (5, 10), (20, 25)], [{}, {}, {}]),  # an anchor moved back
        ([(10, 20), (0, 5)], [{}, {0: (5, 10)}]),
    ],
)
def test_offsets_that_no_run_replayed_are_a_gap(told: list[Any], missing: list[Any]) -> None:
    assert ledger_page.find_gaps(pieces(*told)) == missing


def test_the_graph_leads_from_topics_to_views_and_to_who_reads_them(web: TestClient) -> None:
    boxes = {box["name"]: box for box in twin(web, "/ledger/shop")["graph"]["boxes"]}
    assert {box["label"] == name for name, box in boxes.items()} == {True}
    assert boxes["shop.prices"]["x"] < boxes["prices"]["x"] < boxes["bills"]["x"] < boxes["guest"]["x"]
    other = {box["name"]: box for box in twin(web, "/ledger/guest")["graph"]["boxes"]}
    assert (other["shop.prices"]["other"], other["shop.prices"]["pipeline"]) == (True, "shop")


def test_what_pages_link_for_their_look_is_there(web: TestClient) -> None:
    pages = [web.get(address, params={"table": "prices", "key": "naan"}) for address in ("/quality", "/machine/shop")]
    linked = {name for page in pages for name in re.findall(r"static/([\w.]+)", page.text)}
    assert {name: web.get(f"/static/{name}").status_code for name in linked} == {
        "page.css": 200,
        "pages.css": 200,
        "machine.js": 200,
        "rectangle_keys.js": 200,
        "shell.js": 200,
    }


def test_the_report_of_a_preview_without_an_answer_leads_to_its_log(web: TestClient) -> None:
    answer = web.get("/dag/shop__preview/run/manual__2026-01-01T00:00:00+00:00/report")
    assert answer.status_code == 200
    assert "This preview has no answer to show" in answer.text
    link = "/dags/shop__preview/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/preview"
    assert f'<a href="{link}" target="_top">' in answer.text
    assert "attention" not in answer.text, "it is no alarm"
    assert "Quality of shop" in text(web, "/dag/shop__preview/run/manual__1/quality")
    assert web.get("/dag/other__preview/run/manual__1/report").status_code == 403


def test_a_tab_of_a_dag_is_the_page_asked_the_same(web: TestClient) -> None:
    asked = {"table": "prices", "key": "naan"}
    assert text(web, "/dag/shop/machine", **asked) == text(web, "/machine/shop", **asked)
    assert twin(web, "/dag/shop/machine", **asked) == twin(web, "/machine/shop", **asked)


def test_a_dag_has_a_page_of_each_name_that_is_one_and_only_runs_have_reports(web: TestClient) -> None:
    for twin_ in ("", ".json"):
        pages = ("quality", "machine", "changes", "ledger")
        assert {web.get(f"/dag/shop/{page}{twin_}").status_code for page in pages} == {200}
        assert web.get(f"/dag/shop/report{twin_}").status_code == 400, "it led to a page that is none"


def test_a_run_is_found_by_its_dag_though_another_has_its_id(tmp_path: Path) -> None:
    with shop(tmp_path) as found:
        contract = find(found.schemas, "shop")
        last = replace(plan(contract, 2), run=3, known_at=at(90_000), purpose=Release({}))
        for outcome in (Planned(), Completed({})):
            journal.append_entry(found.warehouse, Run(last, outcome))
        web = client("shop")
        for dag, run in (("shop", 2), ("shop__preview", 2), ("shop__release", 3)):
            answer = web.get(f"/dag/{dag}/run/manual__2/machine", follow_redirects=False)
            assert f"run:{run}" in answer.headers["location"], dag


# Bad input


@pytest.mark.parametrize(
    ("address", "asked", "status", "words"),
    [
        ("/quality/nope", {}, 404, "no pipeline 'nope'"),
        ("/quality/shop", {"before": "x"}, 400, "before: Input should be a valid integer"),
        ("/machine/shop", {"table": "price"}, 404, "did you mean 'prices'?"),
        ("/machine/shop", {"table": "../secrets"}, 404, "no table"),
        ("/machine/shop", {"table": "prices", "key": "curry"}, 404, "the table never had a row of this key"),
        ("/machine/shop", {"table": "people", "key": "x"}, 400, "'x' is no value of the key column id"),
        ("/machine/shop", {"table": "prices", "key": "naan", "asOf": "soon"}, 400, "'soon' is not a valid timestamp"),
        ("/machine/shop", {"table": "prices", "key": "naan", "knownAt": "run:9"}, 404, "no run '9'"),
        ("/machine/shop", {"table": "prices", "key": "naan", "knownAt": "2999-01-01"}, 400, "is not known yet"),
        ("/machine/shop", {"table": "prices", "key": "naan", "scale": "x"}, 400, "scale"),
        ("/machine/guest", {"key": "q"}, 400, "no run has been completed yet"),
        ("/dag/shop/run/none/report", {}, 404, "'none' has no plan yet"),
        ("/static/app.py", {}, 404, "no file"),
        (f"/dag/shop/run/{'r' * 5_000}/report", {}, 404, "has no plan yet"),
        (f"/static/{'s' * 5_000}", {}, 404, "no file"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_told_as_a_page(
    web: TestClient, address: str, asked: dict[str, str], status: int, words: str
) -> None:
    assert words.lower() in text(web, address, status, **asked).lower()


@pytest.mark.parametrize(
    ("asked", "odd"),
    [
        ({"key": "curry", "asOf": "2026-01-01"}, "key"),
        ({"key": "naan", "asOf": "soon"}, "asOf"),
        ({"key": "naan", "knownAt": "run:9", "asOf": "2026-01-01"}, "knownAt"),
        ({"key": "naan", "comparedWith": "<b>"}, "comparedWith"),
    ],
)
def test_what_was_asked_stays_in_the_form_beside_what_is_wrong_with_it(
    web: TestClient, asked: dict[str, str], odd: str
) -> None:
    page = web.get("/machine/shop", params={"table": "prices", **asked}).text
    assert [*re.findall('<input name="([a-zA-Z]+)"[^>]* aria-invalid="true"', page)] == [odd]
    for name, value in asked.items():
        assert re.search(f'<input name="{name}"[^>]* value="{re.escape(html.escape(value))}"', page), name
    assert '<option value="prices" selected>' in page
    assert 'role="alert"' in page
    assert "/warehouse" not in page, "a path of the server"


def test_a_known_at_compared_with_itself_differs_in_nothing(web: TestClient) -> None:
    asked = {"table": "prices", "key": "naan", "comparedWith": "run:2"}
    assert "(run 2): nothing differs." in text(web, "/machine/shop", **asked)
    diff = web.get("/machine/shop.json", params=asked).json()["diff"]
    assert (diff["lines"], diff["total"]) == ([], 0)


# Changes


def test_what_a_run_changed_is_a_line_for_each_key_and_period(web: TestClient) -> None:
    page = text(web, "/changes/shop")
    assert "What run 2 changed in shop.prices Previous run (1) 1 change" in page
    assert "1 change of 1 key (2 rows added, 1 removed); no correction among them." in page
    assert "naan 3.00 → 2.50" in " ".join(page.split())
    assert "shop.prices, partition 0, offset 2" in page
    [line] = twin(web, "/changes/shop", knownAt="run:2")["lines"]
    assert [(it["name"], it["before"], it["after"], it["differs"]) for it in line["cells"]] == [
        ("price", "3.00", "2.50", True),
        ("note", "", "late", True),
    ]
    assert twin(web, "/changes/shop", comparedWith="run:1")["lines"] == [line]
    assert twin(web, "/changes/shop", knownAt="run:1", comparedWith="run:2")["lines"] == [line], "in either order"
    assert "What run 1 changed" in text(web, "/changes/shop", knownAt="run:1")
    assert "Next run (2)" in text(web, "/changes/shop", knownAt="run:1")
    assert "No correction." in text(web, "/changes/shop", only="corrections")
    assert "abandoned" not in page
    assert "1 correction" in text(web, "/changes/shop", table="bills")
    assert "No run has been completed yet." in text(web, "/changes/guest")


def test_what_an_abandoned_run_changed_is_told_with_the_next_run(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        contract = find(settings.schemas, "shop")
        for number in (3, 4):
            known_at = RUNS[1] + timedelta(days=number)
            run = Run(replace(plan(contract, 2), run=number, run_id=f"manual__{number}", known_at=known_at))
            made = report(contract, 2) | {"run": number, "runId": run.run_id, "knownAt": known_at.isoformat()}
            outcome = Abandoned("by hand", ("prices",)) if number == 3 else Completed(made)
            journal.append_entry(settings.warehouse, run)
            journal.append_entry(settings.warehouse, replace(run, outcome=outcome))
        web = client("shop")
        assert "Run 3 was abandoned after it had published this table" in text(web, "/changes/shop", table="prices")
        for asked in ({"table": "orders"}, {"table": "prices", "comparedWith": "run:1"}, {"knownAt": "run:2"}):
            assert twin(web, "/changes/shop", **asked)["abandoned"] == []


def append_third_run(settings: Settings, outcome: Outcome) -> None:
    """Append a run of `shop` with this outcome to the journal."""
    contract = find(settings.schemas, "shop")
    known_at = RUNS[1] + timedelta(days=1)
    run = Run(replace(plan(contract, 2), run=3, run_id="manual__3", known_at=known_at))
    journal.append_entry(settings.warehouse, run)
    journal.append_entry(settings.warehouse, replace(run, outcome=outcome))


def test_changes_open_a_table_that_has_them_and_lead_to_the_others(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        changed = {
            "prices": {"opened": 4, "closed": 0, "corrected": 0},
            "bills": {"opened": 1, "closed": 1, "corrected": 1},
            "daily": {"opened": 2, "closed": 2, "corrected": 1},
        }
        made = report(find(settings.schemas, "shop"), 2) | {"run": 3, "runId": "manual__3", "tables": changed}
        append_third_run(settings, Completed(made))
        web = client("shop")
        assert twin(web, "/changes/shop", knownAt="run:3")["table"] == "prices"
        assert twin(web, "/changes/shop", knownAt="run:3", only="corrections")["table"] == "bills"
        assert twin(web, "/changes/shop", knownAt="run:1", only="corrections")["table"] == "prices", "none has any"
        counts = {
            it["name"]: (it["added"], it["removed"], it["corrections"]) for it in twin(web, "/changes/shop")["tables"]
        }
        assert (counts["prices"], counts["bills"], counts["met"]) == ((4, 0, 0), (1, 1, 1), (0, 0, 0))
        asked = {"knownAt": "run:3", "table": "prices"}
        assert "Nothing changed." in (page := text(web, "/changes/shop", **asked))
        assert "Rows changed in bills (1 row added, 1 removed), daily (2 rows added, 2 removed)." in page
        only = web.get("/changes/shop", params={**asked, "only": "corrections"}).text
        assert "No correction." in only
        assert "Corrections in bills (1 corrected row), daily (1 corrected row)." in " ".join(Text(only).words)
        assert '<a href="/changes/shop?table=daily&amp;knownAt=run%3A3&amp;only=corrections">daily</a>' in only
        both = {"comparedWith": "run:1", "table": "prices", "only": ""}
        assert "Rows also changed in bills (1 row added, 1 removed), daily (2 rows added, 2 removed)." in text(
            web, "/changes/shop", **both
        )
        assert twin(web, "/changes/shop", **both)["others"] == [], "one table was asked for"
        together = twin(web, "/changes/shop", comparedWith="run:1")
        (bills,) = together["others"]
        assert (together["table"], bills["table"], bills["total"]) == ("prices", "bills", 1)
        assert bills["lines"] == twin(web, "/changes/shop", comparedWith="run:1", table="bills")["lines"]
        assert "What changed in shop prices 1 change" in text(web, "/changes/shop", comparedWith="run:1")


def test_what_a_stopped_run_would_know_is_refused_with_a_link_to_what_was_known_before(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        append_third_run(settings, Stopped("bills", "a gate failed"))
        web = client("shop")
        for asked in ({}, {"key": "naan"}):
            page = web.get("/machine/shop", params={"knownAt": "run:3", **asked})
            words = " ".join(Text(page.text).words)
            assert page.status_code == 400
            assert "Run 3 (manual__3) was stopped at bills and did not publish it" in words
            assert "Use run:2 for what was known before it; the next run settles it: hindcast run shop" in words
            assert "has not ended" not in words
            link = re.search(r'<p id="answered"><a href="([^"]*)">What was known at run 2</a>', page.text)
            assert link
            assert web.get(html.unescape(link[1])).status_code == 200
        runs = web.get("/quality/shop").text
        assert "/machine/shop?knownAt=run:2" in runs
        assert "/machine/shop?knownAt=run:3" not in runs


def test_the_panel_begins_with_why_and_with_what_the_value_was_and_became(web: TestClient) -> None:
    """Naan costs 3 from 0:00 and, as the second run found out, 2.50 from 0:01."""
    asked = {"table": "prices", "key": "naan"}
    assert twin(web, "/machine/shop", **asked)["turns"] == [
        "price was 3.00 until run 2.",
        "note was empty until run 2.",
    ]
    earlier = {"asOf": "2026-01-01T00:00:30Z", "knownAt": "run:2"}
    turns = twin(web, "/machine/shop", **asked, **earlier)["turns"]
    assert turns[0] == "price became 2.50 at 2026-01-01 00:01."
    panel = web.get("/machine/shop", params=asked).text.partition('id="answer"')[2].partition("</section>")[0]
    assert 0 < panel.index("was 3.00 until run 2") < panel.index("<h3>Why?") < panel.index("<dl")


def test_changes_say_that_the_last_run_was_stopped(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        append_third_run(settings, Stopped("bills", "a gate failed"))
        web = client("shop")
        assert "Run 3 was stopped and changed nothing; run 2 changed this." in text(web, "/changes/shop")
        assert "was stopped" not in text(web, "/changes/shop", knownAt="run:2"), "it was asked for"


def test_lines_are_shown_page_by_page(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_page, "LINES_PER_PAGE", 1)
    pages = [twin(web, "/changes/shop", knownAt="run:1", page=page) for page in ("1", "2", "3")]
    assert [[line["key"] for line in page["lines"]] for page in pages] == [["naan"], [HOSTILE], []]
    assert [page["more"] for page in pages] == [True, False, False]
    assert 'rel="next"' in web.get("/changes/shop?knownAt=run:1").text
    assert "page=1" in web.get("/changes/shop?knownAt=run:1&page=3").text


def test_changes_can_be_saved_as_csv_without_what_is_sensitive(
    web: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = web.get("/changes/shop.csv?knownAt=run:2")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="changes-of-shop.csv"'
    assert answer.text.splitlines() == [
        "item,validFrom,validTo,change,price_before,price_after,note_before,note_after",
        'naan,2026-01-01T00:01:00+00:00,,changed,3.00,2.50,"",late',
    ]
    link = re.search(r'<a href="/changes/shop[.]csv[?][^>]*>', web.get("/changes/shop").text)
    assert link is not None
    assert " download" not in link[0], "a browser would save an error's page instead of showing it"
    assert "Long values are cut; hindcast diff shop.prices --format csv has them whole." in link[0]
    people = web.get("/changes/shop.csv?knownAt=run:1&table=people").text
    assert "***" in people
    assert "Secret" not in people
    monkeypatch.setattr(changes_page, "MAX_EXPORTED", 1)
    refused = web.get("/changes/shop.csv?knownAt=run:1")
    assert (refused.status_code, "hindcast diff" in refused.text) == (400, True)


def test_changes_as_csv_have_no_formulas(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pa.table({"text": ["=cmd|calc!A0", "naan"], "price": [-5, -6]})
    monkeypatch.setattr(changes, "flatten_lines", Mock(return_value=lines))
    assert web.get("/changes/shop.csv?knownAt=run:2").text == "text,price\n'=cmd|calc!A0,-5\nnaan,-6\n"


def test_there_is_no_csv_before_the_first_run(web: TestClient) -> None:
    answer = web.get("/changes/guest.csv")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "content-disposition" not in answer.headers
    assert "no run has been completed yet" in answer.text.lower()


def test_changes_hide_what_is_sensitive(web: TestClient) -> None:
    answer = web.get("/changes/shop", params={"table": "people", "knownAt": "run:1"})
    assert (answer.status_code, "***" in answer.text, "Ann" in answer.text) == (200, True, False)
    assert "the key of secrets is sensitive" in text(web, "/changes/shop", 400, table="secrets").lower()


def test_too_many_changes_are_left_to_the_command_line(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (SideLimit(1, 1 << 20, 1 << 20), SideLimit(10, 10, 1 << 20), SideLimit(10, 1 << 20, 10)):
        monkeypatch.setattr(changes_page, "LIMIT", limit)
        assert "hindcast diff shop.prices" in text(web, "/changes/shop", 400, knownAt="run:1")
    monkeypatch.setattr(changes_page, "LIMIT", SideLimit(10, 1 << 20, 1 << 20))
    for error, words in ((EngineLimitError, "took longer than 8 s"), (duckdb.OutOfMemoryException, "more memory")):
        monkeypatch.setattr(changes, "read_changes", Mock(side_effect=error))
        assert words in text(web, "/changes/shop", 400, knownAt="run:1")
    monkeypatch.undo()
    monkeypatch.setattr(changes_page, "MEMORY", 1)
    assert "more memory than a page may use" in text(web, "/changes/shop", 400, knownAt="run:1")
    monkeypatch.undo()
    assert "1 change of" in text(web, "/changes/shop"), "the next one has its turn"
    monkeypatch.setattr(changes_page, "WAIT_SECONDS", 0.01)
    with changes_page._TURNS.take("other", 0):
        assert "1 change of" in text(web, "/changes/shop"), "another pipeline leaves a turn"
    with changes_page._TURNS.take("shop", 0):
        assert "other changes are being read at this moment" in text(web, "/changes/shop", 400).lower()


def test_a_moment_that_is_none_stays_in_the_form_of_changes(web: TestClient) -> None:
    page = web.get("/changes/shop", params={"table": "prices", "comparedWith": "<b>"}).text
    assert re.findall('<input name="([a-zA-Z]+)" value="([^"]*)"[^>]* aria-invalid="true"', page) == [
        ("comparedWith", "&lt;b&gt;")
    ]
    assert '<option value="prices" selected>' in page


@pytest.mark.parametrize("dag_id", ["d" * 5_000, "\0", "other"], ids=["long", "unprintable", "of no pipeline"])
@pytest.mark.parametrize("address", ["/quality/{}", "/dag/{}/quality", "/dag/{}/run/none/report", "/reports/{}/x"])
def test_a_dag_that_is_not_a_pipeline_has_no_page(address: str, dag_id: str) -> None:
    assert "no pipeline" in text(client("shop", dag_id), address.format(quote(dag_id)), 404)


def test_an_error_has_a_twin_too(web: TestClient) -> None:
    answer = web.get("/machine/shop.json", params={"table": "prices", "key": "curry"})
    assert (answer.status_code, answer.json()["error"]["found"]) == (404, "the table never had a row of this key")


def test_text_of_topics_stays_text(web: TestClient) -> None:
    for asked in ({"table": "prices"}, {"table": "prices", "key": HOSTILE}, {"table": "met", "key": "dave"}):
        answer = web.get("/machine/shop", params=asked)
        assert HOSTILE not in answer.text
        assert HOSTILE not in web.get("/changes/shop", params={"knownAt": "run:1"}).text
        assert "taken" in str(Text(answer.text))
        assert Text(answer.text).elements.count("script") == 3  # machine.js, rectangle_keys.js, shell.js
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert HOSTILE not in web.get("/machine/shop", params={"table": HOSTILE}).text


# Drawing


def test_a_small_plot_has_its_last_value_on_the_right() -> None:
    assert drawing.sparkline([1, 3]) == {"path": "M4.0 22.0L116.0 4.0", "x": 116.0, "y": 4.0, "last": 3}
    assert drawing.sparkline([5])["path"].endswith("h0")
    assert drawing.sparkline([1e308, -1e308])["y"] == 22
    assert drawing.sparkline([5e-324, 0.0])["y"] == 22


@pytest.mark.parametrize("even", [True, False])
def test_moments_keep_their_order_on_an_axis(even: bool) -> None:
    moments = [at(0), at(1), at(100), at(10_000)]
    axis = drawing.build_axis(moments, even=even)
    places = [axis.place(moment) for moment in (at(-10_000_000), *moments, at(10_000_000), None)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == 1
    assert drawing.build_axis([at(0)], even=even).place(at(0)) == pytest.approx(drawing.SIDE_ROOM)


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (T0, "2026-01-01"),
        (at(3), "2026-01-01 00:03"),
        (at(0.5), "2026-01-01 00:00:30"),
        (RUNS[0], "2026-02-01 00:00:00.123456"),
    ],
)
def test_a_moment_is_as_short_as_it_can_be(moment: Any, words: str) -> None:
    assert format_moment(moment) == words


def test_two_known_ats_show_both_answers_side_by_side(web: TestClient) -> None:
    told = plane(web, "bills", "dave", knownAt="run:2", comparedWith="run:1")
    assert [(it["knownBy"], it["total"], it["row"]["values"]["amount"]) for it in told["sides"]] == [
        (1, 1, "6.00"),
        (2, 1, "5.00"),
    ]
    asked = {"table": "bills", "key": "dave", "knownAt": "run:2", "comparedWith": "run:1"}
    page = " ".join(web.get("/machine/shop", params=asked).text.split())
    assert '<tr class="differs"><th scope="row">amount</th>' in page
    assert '<tr><th scope="row">item</th>' in page
    assert plane(web, "bills", "dave")["sides"] is None


def test_before_there_was_a_row_the_side_says_so(web: TestClient) -> None:
    asked = {"table": "prices", "key": "naan", "asOf": "2025-12-31", "comparedWith": "run:1"}
    assert 'id="both"' not in web.get("/machine/shop", params=asked).text
