"""What caused a change: the input record that became known, not the record of the row, and how late it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.likely_causes import describe_likely_cause
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import journal
from hindcast.plan.plans import TopicPlan
from hindcast.plan.purposes import Release, ReleasedKeys
from hindcast.query import change_causes
from hindcast.store import tables
from test_ledger_limits import LOG, log_row, write_rows
from warehouses import RUNS, at, place, row, shop, version, write


@pytest.fixture(name="settings", scope="module")
def fill_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Run 2 ingested a price that was an hour late, which changed a bill."""
    with shop(tmp_path_factory.mktemp("shop")) as settings:
        new = {"run": 2, "systemFrom": RUNS[1], "timestamp": at(1), "streamTime": at(61)}
        old = {"run": 1, "systemFrom": RUNS[0], "timestamp": at(0), "streamTime": None}
        log = tables.log_table(settings.warehouse, "shop", "prices")
        write_rows(log, LOG, [log_row(2, **new), *(log_row(n, **old) for n in (0, 1))])
        write_rows(tables.log_table(settings.warehouse, "shop", "orders"), LOG, [log_row(0, **old)])
        yield settings


@pytest.fixture(name="web")
def open_web(settings: Settings) -> TestClient:
    assert settings.schemas.exists()
    return TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop"}))))


def read_causes(web: TestClient, table: str, run: int = 2) -> list[tuple[Any, ...]]:
    lines = web.get(f"/changes/shop.json?table={table}&knownAt=run:{run}").json()["lines"]
    return [(it["change"], *((c["topic"], c["offset"], c["late"]) for c in it["causes"])) for it in lines]


def test_a_bill_is_changed_by_the_price_that_came_late(web: TestClient) -> None:
    """Not by its order, whose record it has."""
    assert read_causes(web, "bills") == [("changed", ("shop.prices", 2, "1 h late"))]
    page = " ".join(web.get("/changes/shop?table=bills&knownAt=run:2").text.split())
    assert '<th scope="col">Caused by</th>' in page
    assert "shop.prices, partition 0, offset 2; 1 h late" in page


@pytest.mark.parametrize(("column", "names_record"), [("", True), ("quantity", True), ("item", False)])
def test_the_time_machine_says_which_late_record_changed_a_bill(
    settings: Settings, web: TestClient, column: str, names_record: bool
) -> None:
    """What the bill was is said too; the record is not if it was looked up by a sensitive value."""
    path = settings.schemas / "shop.yaml"
    text = path.read_text(encoding="utf-8")
    marked = text.replace("quantity: int}", f"quantity: int}}, sensitive: [{column}]") if column else text
    try:
        path.write_text(marked, encoding="utf-8")
        turns = web.get("/machine/shop.json?table=bills&key=dave").json()["turns"]
        of_first = web.get("/machine/shop.json?table=bills&key=dave&knownAt=run:1").json()["turns"]
    finally:
        path.write_text(text, encoding="utf-8")
    late = "Run 2 changed it: shop.prices, partition 0, offset 2, came 1 h late."
    assert (late in turns) == names_record, turns
    assert ("amount was 6.00 until run 2." in turns) == (column != "quantity"), "a product of what is sensitive"
    assert of_first == []


def test_the_command_names_the_records(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text, and with their places as numbers; however long it takes."""
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(settings.schemas))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", settings.warehouse)
    monkeypatch.setattr(change_causes, "SECONDS", 0.0)
    assert main.main(["diff", "shop.bills", "--run", "2", "--causes", "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    hour = 3_600_000
    assert line["causes"] == [{"topic": "shop.prices", "partition": 0, "offset": 2, "lateMs": hour}]
    assert main.main(["diff", "shop.bills", "--run", "2", "--causes"]) == 0
    assert "  shop.prices, partition 0, offset 2 (1 h late)\n" in capsys.readouterr().out
    assert main.main(["diff", "shop", "--run", "2", "--causes"]) == 1
    assert "name a table" in capsys.readouterr().err


@pytest.mark.parametrize(("column", "found"), [("quantity", 1), ("item", 0)])
def test_causes_are_hidden_of_what_is_looked_up_by_a_sensitive_value(
    settings: Settings, web: TestClient, column: str, found: int
) -> None:
    path = settings.schemas / "shop.yaml"
    text = path.read_text(encoding="utf-8")
    marked = text.replace("quantity: int}", f"quantity: int}}, sensitive: [{column}]")
    try:
        path.write_text(marked, encoding="utf-8")
        (line,) = read_causes(web, "bills")
    finally:
        path.write_text(text, encoding="utf-8")
    assert len(line) - 1 == found


def test_a_row_of_a_topic_is_caused_by_its_own_record(web: TestClient) -> None:
    assert read_causes(web, "prices") == [("changed", ("shop.prices", 2, "1 h late"))]


def test_a_new_row_of_a_join_is_caused_by_its_event_and_what_it_looked_up(web: TestClient) -> None:
    (line,) = read_causes(web, "bills", 1)
    assert line == ("added", ("orders", 0, "not late"), ("shop.prices", 0, "not late"))


def test_nothing_is_named_that_is_not_known(web: TestClient, settings: Settings) -> None:
    """A version that is new again though its record is old: another one has moved its end."""
    contract = load(settings.schemas / "shop.yaml")
    again = version(2, None, 5, 9, item="soup", price=1, note="", **place(1))
    write(settings, contract, "prices", [again])
    assert ("added",) in read_causes(web, "prices")
    page = web.get("/changes/shop?table=prices&knownAt=run:2").text
    assert "one of shop.prices, partition 0, offsets 0 to 1" in page, "the run read two records"


def test_a_group_is_caused_by_its_new_members(web: TestClient) -> None:
    """By how much a record was late is not known without its log."""
    assert read_causes(web, "cities", 1) == [("added", ("people", 0, None))]


def test_a_page_does_without_causes_that_take_too_long(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_causes, "SECONDS", 0.0)
    monkeypatch.setattr(change_causes, "LINE_SECONDS", 0.0)
    assert read_causes(web, "bills") == [("changed",)]


def test_a_pair_of_events_is_caused_by_those_that_are_new(web: TestClient, settings: Settings) -> None:
    own = {"customer": "dave", "page": "menu", "timestamp": at(1), **place(8)}
    contract = load(settings.schemas / "shop.yaml")
    write(settings, contract, "visits", [row(2, **own)])
    pair = {"customer": "dave", "item": "naan", "page": "menu", "timestamp": at(2), **place(0)}
    write(settings, contract, "met", [row(2, **pair) | {"_rightPartition": 0, "_rightOffset": 8}])
    assert read_causes(web, "met") == [("added", ("visits", 8, None))]


def test_a_cause_that_is_not_known_is_among_the_few_records_of_the_run(settings: Settings) -> None:
    contract = load(settings.schemas / "shop.yaml")
    (_, second) = journal.read_runs(settings.warehouse, "shop")
    plans = {
        name: TopicPlan("", 0, 0, {}, {0: OffsetRange(1, 1 + count)}, {})
        for name, count in {"orders": 2, "people": 9}.items()
    }
    run = replace(second, plan=replace(second.plan, topics=plans))
    assert describe_likely_cause(settings, contract, "bills", [run]) == "one of orders, partition 0, offsets 1 to 2"
    assert describe_likely_cause(settings, contract, "cities", [run]) is None, "they are many"
    other = replace(run, plan=replace(run.plan, contract="other"))
    assert describe_likely_cause(settings, contract, "bills", [other]) is None, "it may be the contract"
    release = Release({"prices": ReleasedKeys(RUNS[1], ("{}",), "ann")})
    released = replace(run, plan=replace(run.plan, purpose=release))
    assert describe_likely_cause(settings, contract, "prices", [released]) == "released by ann"


def test_a_late_record_is_named_first_though_its_group_is_large(settings: Settings, web: TestClient) -> None:
    """Its row is older than those of 30 others; some of these are new only because another record has ended them."""
    contract, log = load(settings.schemas / "shop.yaml"), tables.log_table(settings.warehouse, "shop", "people")
    own = {"name": "x", "city": "Oslo"}
    others = [version(1 if n > 9 else 2, None, 10, 60, id=n, **own, **place(n)) for n in range(2, 32)]
    new = [version(2, None, start, None, id=n, **own, **place(n)) for start, n in ((5, 99), (10.5, 98))]
    write(settings, contract, "people", [*others, *new])
    old = {"run": 1, "systemFrom": RUNS[0], "timestamp": at(10), "streamTime": None}
    second = {"run": 2, "systemFrom": RUNS[1], "timestamp": at(10.5), "streamTime": None}
    late = {**second, "timestamp": at(5), "streamTime": at(65)}
    write_rows(log, LOG, [log_row(99, **late), log_row(98, **second), *(log_row(n, **old) for n in range(2, 32))])
    counts = [version(run, None if run == 2 else 2, 11, None, city="Oslo", n=n) for run, n in ((1, 30), (2, 32))]
    write(settings, contract, "cities", counts)
    assert read_causes(web, "cities") == [("changed", ("people", 99, "1 h late"), ("people", 98, "not late"))]


def test_no_old_record_is_named_when_there_is_no_time_for_the_log(
    web: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = version(2, None, 5, 9, item="salt", price=1, note="", **place(1))
    write(settings, load(settings.schemas / "shop.yaml"), "prices", [again])
    monkeypatch.setattr(change_causes, "SECONDS", 0.0)
    assert {line[1:] for line in read_causes(web, "prices")} == {()}


def test_the_command_says_that_a_log_is_damaged(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(settings.schemas))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", settings.warehouse)
    for file in Path(tables.log_table(settings.warehouse, "shop", "prices").path).glob("**/*.parquet"):
        file.write_bytes(b"damaged")
    assert main.main(["diff", "shop.prices", "--run", "2", "--causes"]) == 1
    assert "logs/prices: a data file cannot be read" in capsys.readouterr().err
