"""`hindcast why` shows the rows that an answer was made of, and no others: late events, held changes, nulls in keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.plan import horizon
from hindcast.quality import failing_rows
from hindcast.store import table_creation, tables
from warehouses import RUNS, at, complete, place, row, shop, version, write

CAFE = """
pipeline: cafe
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string, size: int}, value: {price: int}}
  codes: {read: stream, key: {code: string}, value: {n: int}, sensitive: [code]}
  orders: {read: stream, key: {customer: string}, value: {item: string, size: int, n: int}}
views:
  bills:
    stream: orders
    join: {table: menu, on: [item, size]}
    select: {item: orders.item, amount: n * price}
  events:
    stream: orders
    select: {n: n}
    hold: row
    expect: [{expect_column_values_to_be_between: {column: n, max_value: 9}, on_failure: quarantine}]
  by_minute: {stream: orders, window: {tumbling: 1 minute, grace: 0 seconds}, aggregate: {n: sum(n)}}
  by_hops: {stream: orders, window: {hopping: 2 minutes, advance: 1 minute}, aggregate: {n: sum(n)}}
  visits: {stream: orders, window: {session: 1 minute}, aggregate: {n: sum(n)}}
  guessed: {stream: orders, window: {tumbling: 1 minute}, aggregate: {n: sum(soundex(item))}}
  seen: {stream: codes, select: {n: n}}
  sums: {table: menu, group_by: {item: item}, aggregate: {price: sum(price)}}
  plain: {table: menu, select: {price: price}}
  twice: {table: menu, join: {table: plain}, select: {price: menu.price, again: plain.price}}
"""


def order(offset: int, customer: str, minute: float, n: int | None, run: int = 1) -> dict[str, Any]:
    return row(run, customer=customer, item="curry", size=1, n=n, timestamp=at(minute), **place(offset))


def window(customer: str, n: int, start: float, end: float) -> dict[str, Any]:
    return row(1, customer=customer, n=n, windowStart=at(start), windowEnd=at(end))


BILL = {"item": "curry", "amount": 8, "timestamp": at(2)}
NULLS = [
    version(1, None, 0, None, item="curry", size=None, price=7),
    version(1, None, 0, None, item=None, size=1, price=3),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "menu": [
        version(1, 2, 0, None, item="curry", size=1, price=8) | place(0),
        version(2, None, 0, None, item="curry", size=1, price=60) | place(4),
        *(it | place(1 + n) for n, it in enumerate(NULLS)),
        version(1, None, 0, None, item="curry", size=2, price=None) | place(3),
    ],
    "orders": [
        order(0, "anna", 0.1, 2),
        order(1, "bob", 5, 1),
        order(2, "anna", 0.2, 100),
        order(3, "dora", 6, None),
        order(4, "anna", 5.5, 3),
        order(5, "anna", 4.9, 4),
        order(6, "nina", 2, 1) | {"size": None},
    ],
    "bills": [row(1, customer=name, **BILL, **place(n)) for name, n in (("anna", 0), ("dora", 3), ("nina", 6))],
    "codes": [row(1, code="s3cret", n=1, timestamp=at(2), **place(0))],
    "seen": [row(1, code="s3cret", n=1, timestamp=at(2), **place(0))],
    "events": [row(1, customer="anna", n=n, timestamp=at(2), **place(n)) for n in (7, 8)],
    "by_minute": [window("anna", 2, 0, 1), window("anna", 3, 5, 6)],
    "by_hops": [window("anna", 2, -1, 1), window("anna", 7, 4, 6)],
    "visits": [window("anna", 2, 0.1, 0.1), window("anna", 7, 4.9, 5.5)],
    "guessed": [window("anna", 2, 0, 1)],
    "sums": [version(1, None, 0, None, item="curry", price=7)],
    "plain": NULLS,
    "twice": [{**it, "again": it["price"]} for it in NULLS],
}


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("cafe"), CAFE) as found:
        contract = load(found.schemas / "cafe.yaml")
        for run in (1, 2):
            complete(found, contract, run)
        for name, rows in ROWS.items():
            write(found, contract, name, [_in_order(it) for it in rows])
        _hold(found, "bills", '{"customer":"dora"}', change="close", row=_as_json("dora"), offset=3)
        _hold(found, "bills", '{"customer":"eve"}', change="open", row=_as_json("eve"), offset=9)
        _hold(found, "seen", '{"code":"s3cret"}', change="open", row='{"n":2}', offset=0)
        closed = '{"customer":"anna","n":7,"timestamp":"2026-01-01T00:02:00.000000Z"}'
        unit = '{"_partition":0,"_offset":7}'
        _hold(found, "events", '{"customer":"anna"}', change="close", row=closed, offset=7, unit=unit)
        yield found


def _in_order(values: dict[str, Any]) -> dict[str, Any]:
    """A row with its lineage at the end, and types that hold also where all values are null."""
    return {c: v for c, v in values.items() if c[0] != "_"} | {c: v for c, v in values.items() if c[0] == "_"}


def _as_json(customer: str) -> str:
    return f'{{"customer":"{customer}","item":"curry","amount":8,"timestamp":"2026-01-01T00:02:00.000000Z"}}'


def _hold(settings: Settings, name: str, key: str, **values: Any) -> None:
    """Enter a row that run 2 holds back, as it would."""
    schema = table_creation.arrow_schema(failing_rows.SCHEMA)
    base = dict.fromkeys(schema.names) | {
        "run": 2, "at": RUNS[1], "table": name, "gate": 0, "entry": "held", "key": key, "topic": "orders",
        "partition": 0, "since": 1, "digest": 1,
    }  # fmt: skip
    table = table_creation.ensure_table(failing_rows.failing_table(settings.warehouse, "cafe"), failing_rows.SCHEMA)
    write_deltalake(table, pa.Table.from_pylist([base | values], schema=schema), mode="append")


def why(capsys: pytest.CaptureFixture[str], name: str, key: str, *words: str) -> tuple[str, list[str]]:
    """The sentence of the first answer, and the lines of its inputs; or the error."""
    capsys.readouterr()
    code = main.main(["why", f"cafe.{name}", "--key", key, *words])
    shown = capsys.readouterr()
    if code:
        return shown.err, []
    _, text, *parts = shown.out.split("\n\n")[0].splitlines()
    return text.strip(), [part.strip() for part in parts]


@pytest.mark.parametrize(
    ("name", "minute", "values", "late"),
    [
        ("by_minute", 0.5, [2], 1),
        ("by_minute", 5.5, [3], 0),
        ("by_hops", 0.5, [2], 1),
        ("by_hops", 5.5, [3, 4], 0),
        ("visits", 0.1, [2], 0),
        ("visits", 5, [3, 4], 0),
    ],
)
def test_a_window_is_not_made_of_events_that_came_too_late(
    capsys: pytest.CaptureFixture[str], name: str, minute: float, values: list[int], late: int
) -> None:
    """Nor is stream time moved by an event without a value to aggregate (at 6)."""
    text, parts = why(capsys, name, "anna", "--as-of", at(minute).isoformat())
    assert [f" n {n}, " in part for n, part in zip(values, parts, strict=True)] == [True] * len(values)
    count = "one event" if len(values) == 1 else f"{len(values)} events"
    assert text.startswith(f"It aggregates {count} of orders with customer = anna, from ")
    assert text.endswith(", and leaves out one that came too late.") == bool(late)


def test_where_lateness_cannot_be_judged_the_explanation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text, parts = why(capsys, "guessed", "anna", "--as-of", at(0.5).isoformat())
    assert text.startswith("It aggregates 2 events of orders ")
    assert text.endswith("Some of these may not count: those without a value to aggregate or that came too late.")
    assert len(parts) == 2


def test_an_aggregate_is_not_made_of_rows_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    text, parts = why(capsys, "sums", "curry", "--known-at", "run:1")
    assert text.startswith("It aggregates 2 versions of menu with item = curry, ")
    assert [" price 8.00, " in part or " price 7.00, " in part for part in parts] == [True, True]


def test_a_row_whose_change_is_held_back_is_made_of_what_was_known_before(capsys: pytest.CaptureFixture[str]) -> None:
    text, parts = why(capsys, "bills", "dora")
    assert text.endswith("A change of this key has been held back since run 2: these are the inputs as known at run 1.")
    assert " price 8.00, " in parts[-1]
    before, _ = why(capsys, "bills", "dora", "--known-at", "run:1")
    assert "held back" not in before, "it was not yet"
    other, parts = why(capsys, "bills", "anna")
    assert ("held back" in other, " price 60.00, " in parts[-1]) == (False, True)


def test_with_hold_row_only_the_held_row_is_explained_so(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main.main(["why", "cafe.events", "--key", "anna", "--as-of", at(2).isoformat()]) == 0
    answers = capsys.readouterr().out.split("\n\n")
    assert {(" n 7, " in answer, "held back since run 2" in answer) for answer in answers} == {
        (True, True),
        (False, False),
    }


def test_a_hold_shows_nothing_sensitive(capsys: pytest.CaptureFixture[str]) -> None:
    text, parts = why(capsys, "seen", "s3cret")
    assert text.endswith("held back since run 2: these are the inputs as known at run 1.")
    assert ("code ***, " in parts[0], "s3cret" in " ".join([text, *parts])) == (True, False)


def test_a_key_of_which_all_is_held_back_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    error, _ = why(capsys, "bills", "eve")
    assert "the table never had a row of this key: its rows have been held back since run 2" in error
    assert "hindcast failing cafe --held" in error
    error, _ = why(capsys, "bills", "dora", "--as-of", at(1).isoformat())
    assert "nothing was true of the key at " in error
    assert "; a change of it has been held back since run 2" in error
    web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["cafe"]))))  # noqa: ARG005
    page = web.get("/machine/cafe", params={"table": "bills", "key": "eve"}).text
    assert "its rows have been held back since run 2" in page
    told = web.get("/machine/cafe.json", params={"table": "bills", "key": "dora"}).json()["why"]["text"]
    assert "has been held back since run 2" in told


@pytest.mark.parametrize("key", ['{"item": "curry", "size": null}', '{"item": null, "size": 1}'])
def test_a_null_in_a_key_is_a_value_like_any_other(capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert why(capsys, "plain", key)[0] == "It comes from one version of menu."
    text, parts = why(capsys, "twice", key)
    assert text.startswith("One version of menu looked up plain: ")
    assert text.endswith("It found one version of plain.")
    assert len(parts) == 2


def test_what_is_looked_up_by_a_null_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    text, parts = why(capsys, "bills", "nina")
    assert "looked up menu by item, size: item = curry, size = -, " in text
    assert (text.endswith("It found no version of menu."), len(parts)) == (True, 1)


def test_a_view_that_was_defined_otherwise_is_said_to_be(
    capsys: pytest.CaptureFixture[str], settings: Settings
) -> None:
    """A new description, or a gate, changes no answer."""
    path = settings.schemas / "cafe.yaml"
    described = CAFE.replace("start:", "description: Serves.\nstart:")
    for text, is_said in ((described, False), (described.replace("n: sum(n)", "n: max(n)"), True)):
        path.write_text(text, encoding="utf-8")
        said, _ = why(capsys, "by_minute", "anna", "--as-of", at(0.5).isoformat())
        assert ("by today's definition of by_minute, which has changed since run 2" in said) == is_said
    path.write_text(CAFE, encoding="utf-8")


def test_what_is_not_kept_or_not_known_yet_is_refused(capsys: pytest.CaptureFixture[str], settings: Settings) -> None:
    table = tables.open_table(tables.locate_table(settings.warehouse, load(settings.schemas / "cafe.yaml"), "codes"))
    assert table is not None
    text = horizon.Horizon(at(1)).text
    table.alter.set_table_properties({horizon.PROPERTY: text}, raise_if_not_exists=False)
    error, _ = why(capsys, "codes", "s3cret", "--as-of", at(0).isoformat())
    assert "is not kept: the history of codes was trimmed up to 2026-01-01T00:01:00+00:00" in error
    error, _ = why(capsys, "codes", "s3cret", "--known-at", "2999-01-01")
    assert "what will be known at 2999-01-01T00:00:00+00:00 is not known yet" in error
