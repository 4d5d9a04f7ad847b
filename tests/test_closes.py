"""Closes: what was believed of a period is answered as long as its name is kept, however far tables are trimmed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest

from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.cli import main
from hindcast.cli.commands.shared import find_user
from hindcast.common.errors import QueryError, RequestError, TableError, UnknownError
from hindcast.ops import close_periods, journal_rebuild, retention
from hindcast.ops.upgrade import downgrade, upgrade
from hindcast.plan import closes, horizon, journal
from hindcast.query import changes, read, spark_functions
from hindcast.query.changes import ChangeQuestion
from hindcast.store import commits, store_formats, tables
from pipelines import T0, Pipeline, cloned, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SHOP = """
pipeline: shop
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    keep: {table: 2 seconds}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    keep: {table: 30 seconds}
views:
  sold:
    stream: orders
    group_by: {item: item}
    aggregate: {sum: sum(quantity)}
    window: {tumbling: 4 seconds, grace: 10 seconds}
    keep: 2 seconds
"""


def moment(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


@pytest.fixture(scope="module")
def sold(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Three runs: the second corrects what the first knew of the first eight seconds, the third goes on to 60."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("closes"), SHOP) as p:
        p.send("menu", ("tea", {"price": 1}, 0), ("tea", {"price": 2}, 3), ("rice", {"price": 7}, 4))
        p.send("orders", ("ann", {"item": "tea", "quantity": 1}, 1), ("bob", {"item": "tea", "quantity": 2}, 5))
        p.run()
        p.send("menu", ("tea", {"price": 9}, 2), ("rice", None, 6))
        p.send("orders", ("cat", {"item": "tea", "quantity": 4}, 6), ("ann", {"item": "tea", "quantity": 1}, 8))
        p.run()
        p.send("menu", ("tea", {"price": 3}, 60))
        p.send("orders", ("dan", {"item": "tea", "quantity": 5}, 60))
        p.run()
        yield p


def ask(p: Pipeline, close: closes.Close, table: str) -> list[dict[str, Any]]:
    return read.query(p.warehouse, p.contract, table, close.question).to_pylist()


TABLES = ("menu", "orders", "sold")


def restate(p: Pipeline, close: closes.Close) -> dict[str, list[dict[str, Any]]]:
    """What has changed in the period since it was closed, by key and time."""
    known = read.read_last_known_at(p.warehouse, "shop")
    asked = ChangeQuestion(close.known_at, known, order="time", period=(close.start, close.end))
    return {table: changes.read_changes(p.warehouse, p.contract, table, asked).lines.to_pylist() for table in TABLES}


def test_a_trim_leaves_what_a_close_needs_and_nothing_else(
    spark: SparkSession, sold: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two closes of one period, one before and one after a correction; then one is dropped."""
    p = cloned(sold, tmp_path)
    with p.here():
        assert (
            main.main(
                [
                    "close",
                    "shop",
                    "first",
                    "--from",
                    "2026-01-01",
                    "--to",
                    "2026-01-01T00:00:08",
                    "--known-at",
                    "run:1",
                    "--by",
                    "eva",
                ]
            )
            == 0
        )
        assert (
            main.main(
                [
                    "close",
                    "shop",
                    "second",
                    "--from",
                    "2026-01-01",
                    "--to",
                    "2026-01-01T00:00:08",
                    "--known-at",
                    "run:2",
                    "--by",
                    "eva",
                ]
            )
            == 0
        )
        first, second = closes.list_kept(p.warehouse, "shop")
        before = {(it.name, table): ask(p, it, table) for it in (first, second) for table in TABLES}
        prices = [(row["item"], row["price"]) for row in before["first", "menu"]]
        assert prices == [("tea", 1), ("tea", 2), ("rice", 7)]
        assert [row["price"] for row in before["second", "menu"] if row["item"] == "tea"] == [1, 9, 2]
        assert [row["sum"] for row in before["first", "sold"]] == [1, 2]
        assert [row["sum"] for row in before["second", "sold"]] == [1, 6]
        rows, changed = {table: len(p.raw(table)) for table in TABLES}, restate(p, first)
        assert [(it["key"]["item"], it["validFrom"], it["validTo"], it["change"]) for it in changed["menu"]] == [
            ("rice", moment(6), moment(8), "removed"),
            ("tea", moment(2), moment(3), "changed"),
        ]
        assert [(it["before"]["sum"], it["after"]["sum"]) for it in changed["sold"]] == [(2, 6)]
        assert [it["timestamp"] for it in changed["orders"]] == [moment(6)]

        assert "removed" not in capsys.readouterr().out
        trimmed = retention.trim_pipeline(spark, p.contract)
        assert trimmed.tables["menu"].horizon is not None
        assert {(it.name, table): ask(p, it, table) for it in (first, second) for table in TABLES} == before
        assert trimmed.tables["orders"].removed == 1, "the order at 8 is of no close"
        assert restate(p, first) == changed
        assert wrong(p) == []
        left = {table: len(p.raw(table)) for table in TABLES}

        for question in (
            Question(as_of=moment(9), known_at=first.known_at),
            Question(from_time=moment(-1), to_time=moment(5), known_at=first.known_at),
            Question(as_of=moment(5), known_at=moment(50)),
        ):
            with pytest.raises(QueryError, match="is not kept: the history of menu was trimmed"):
                read.query(p.warehouse, p.contract, "menu", question)
        (end,) = read.query(
            p.warehouse, p.contract, "menu", Question(key=["tea"], as_of=moment(8), known_at=first.known_at)
        ).to_pylist()
        assert end["price"] == 2
        capsys.readouterr()
        assert main.main(["query", "shop.menu", "--known-at", "close:first", "--format", "json"]) == 0
        assert [row["price"] for row in json.loads(capsys.readouterr().out)] == [1, 2, 7]
        assert main.main(["diff", "shop.sold", "--from", "close:first"]) == 0
        assert "2 -> 6" in capsys.readouterr().out
        assert main.main(["query", "shop.menu", "--from", "2026-01-01", "--to", "close:first"]) == 1
        assert "a close is a state of knowledge, no time: close:first" in capsys.readouterr().err
        spark_functions.register(spark, p.warehouse, p.contract)
        found = spark.sql("SELECT price FROM shop_menu(close => 'first') ORDER BY price").collect()
        assert [row["price"] for row in found] == [1, 2, 7]
        for name in ("first", "second"):
            sums = spark.sql(f"SELECT sum FROM shop_sold(close => '{name}') ORDER BY windowStart").collect()
            assert [row["sum"] for row in sums] == [row["sum"] for row in before[name, "sold"]]
        (row,) = spark.sql(
            "SELECT price FROM shop_menu_as_of(TIMESTAMP '2026-01-01 00:00:05 UTC', close => 'second') "
            "WHERE item = 'tea'"
        ).collect()
        assert row["price"] == 2
        for asked, refused in (
            ("shop_menu(close => 'third')", "no close third"),
            (
                f"shop_menu_as_of(TIMESTAMP '{moment(9).isoformat()}', close => 'first')",
                "not of the period of the close first",
            ),
        ):
            with pytest.raises(Exception, match=refused):
                spark.sql(f"SELECT * FROM {asked}").collect()

        assert main.main(["closes", "shop", "--drop", "first", "--reason", "wrong rate", "--by", "eva"]) == 0
        assert "dropped first: " in capsys.readouterr().out
        with pytest.raises(QueryError, match=r"the close 'first' was dropped at .* by eva: wrong rate"):
            read.moment_of(p.warehouse, "shop", "close:first")
        again = retention.trim_pipeline(spark, p.contract)
        assert {table: it.removed for table, it in again.tables.items()} == dict.fromkeys(TABLES, 0)
        assert {table: ask(p, second, table) for table in TABLES} == {
            table: before["second", table] for table in TABLES
        }
        assert wrong(p) == []
        assert rows["menu"] == left["menu"] == len(p.raw("menu")), "the other close is of the same period"
        sold.send("menu", ("tea", {"price": 4}, 7))
        p.run()
        assert {table: ask(p, second, table) for table in TABLES} == {
            table: before["second", table] for table in TABLES
        }
        assert wrong(p) == []
        closes.drop_close(p.warehouse, "shop", "second", "eva", "no more needed")
        removed = {table: it.removed for table, it in retention.trim_pipeline(spark, p.contract).tables.items()}
        assert min(removed.values()) > 0
        assert wrong(p) == []


def test_what_a_trim_removes_is_what_no_question_from_the_horizon_on_and_of_no_close_finds() -> None:
    """On both axes, of random rectangles: against each of the questions at whole seconds."""
    chance = random.Random(7)  # noqa: S311  # any will do
    rows = []
    for n in range(3_000):
        start, known = chance.randrange(12), chance.randrange(12)
        end, ended = (chance.choice([None, it + chance.randrange(1, 8)]) for it in (start, known))
        rows.append((n, start, end, known, ended))
    at, kept = 8, [(1, 4, 3), (2, 3, 6), (5, 9, 1)]
    names = [closes.Close(str(n), moment(a), moment(b), moment(k), T0, "eva") for n, (a, b, k) in enumerate(kept)]
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    values = [[n, *(None if second is None else moment(second) for second in row)] for n, *row in rows]
    types = pa.schema([("n", pa.int64()), *((name, pa.timestamp("us", "UTC")) for name in AXES)])
    engine.register("held", pa.Table.from_pylist([dict(zip(types.names, row, strict=True)) for row in values], types))
    condition = horizon.trimmed_condition("versions", moment(at), names)
    removed = {n for (n,) in engine.execute(f"SELECT n FROM held WHERE {condition}").fetchall()}

    def answers(row: tuple[int, int, int | None, int, int | None], valid: float, known: int) -> bool:
        _, start, end, since, ended = row
        return start <= valid and (end is None or end > valid) and since <= known and (ended is None or ended > known)

    asked = [(valid, known) for valid in range(at, 30) for known in range(at, 30)]
    asked += [
        (valid, known) for start, end, own in kept for valid in range(start, end + 1) for known in (own, *range(at, 30))
    ]
    needed = {row[0] for row in rows if any(answers(row, *question) for question in asked)}
    assert removed == {row[0] for row in rows} - needed


AXES = ("validFrom", "validTo", "systemFrom", "systemTo")


def test_a_close_that_cannot_be_is_refused(spark: SparkSession, sold: Pipeline, tmp_path: Path) -> None:
    p = cloned(sold, tmp_path)
    start, end = moment(0), moment(8)

    def close(
        name: str = "q", start: datetime | None = start, end: datetime = end, known: datetime | None = None
    ) -> closes.Close:
        return close_periods.close_period(p.contract, name, start, end, known, "eva")

    for given, refused in (
        ({"name": "a b"}, "'a b' is no name of a close"),
        ({"name": ""}, "'' is no name of a close"),
        ({"name": "x" * 101}, "is no name of a close"),
        ({"start": end, "end": start}, "the times are reversed: from 2026-01-01T00:00:08"),
        ({"start": None}, "has no close yet"),
    ):
        with pytest.raises(RequestError, match=refused):
            close(**given)
    with pytest.raises(QueryError, match="is not known yet"):
        close(known=moment(10**9))
    assert closes.read_closes(p.warehouse, "shop") == []
    with pytest.raises(UnknownError, match="no close 'q'"):
        closes.find_close(p.warehouse, "shop", "q")

    first = close()
    assert first.known_at == read.read_last_known_at(p.warehouse, "shop")
    with p.here():
        p.run()
    assert close() == first, "to close once more changes nothing, also after another run"
    assert close("next", None, moment(16)).start == end
    with pytest.raises(RequestError, match="the name 'q' is used: 2026-01-01T00:00:00"):
        close(end=moment(9))
    closes.drop_close(p.warehouse, "shop", "next", "eva", "no")
    with pytest.raises(RequestError, match=r"the name 'next' is used: .*dropped by eva: no"):
        close("next", None, moment(16))
    with pytest.raises(RequestError, match="the reason has 1,001 characters"):
        closes.drop_close(p.warehouse, "shop", "q", "eva", "x" * 1_001)
    with pytest.raises(RequestError, match="the name of who drops it has 201 characters"):
        closes.drop_close(p.warehouse, "shop", "q", "e" * 201, "no")
    with pytest.raises(RequestError, match="the name of who closes it has 201 characters"):
        closes.add_close(p.warehouse, "shop", replace(first, name="z", by="e" * 201))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(closes, "_MOST_BYTES", 600)
        with pytest.raises(RequestError, match="all closes together would have"):
            closes.add_close(p.warehouse, "shop", replace(first, name="z"))
    with pytest.raises(QueryError, match="was dropped"):
        closes.drop_close(p.warehouse, "shop", "next", "eva", "no")

    with p.here():
        asked = ["close", "shop,nobody", "both", "--to", "2026-02-01", "--by", "eva"]
        assert main.main(asked) == 1, "nothing is closed if one of the pipelines is not there"
    assert [it.name for it in closes.read_closes(p.warehouse, "shop")] == ["q", "next"]
    journal_rebuild.rebuild_journal(p.warehouse, p.contract)
    assert [it.name for it in closes.read_closes(p.warehouse, "shop")] == ["q", "next"]

    retention.trim_pipeline(spark, p.contract)
    for begin in (moment(1), datetime(2025, 1, 1, tzinfo=UTC), FIRST_MOMENT, datetime(1969, 1, 1, tzinfo=UTC)):
        with pytest.raises(QueryError, match="is not kept"):
            close("late", begin)
    with pytest.raises(QueryError, match=r"what was known at .* is not kept"):
        close("late", moment(70), moment(80), moment(50))
    for error in (QueryError("trimmed meanwhile"), TableError("the store is gone"), KeyboardInterrupt("Ctrl-C")):
        with (
            patch.object(close_periods, "_refuse_trimmed_close", side_effect=[None, error]),
            pytest.raises(type(error), match=str(error)),
        ):
            close("late", moment(1))
        assert [it.name for it in closes.read_closes(p.warehouse, "shop")] == ["q", "next"]
    assert close() == first, "its rows were kept"


TIMES = ("from", "to", "knownAt", "at")
NAIVE = {"name": "q", "by": "eva", **dict.fromkeys(TIMES, "2026-01-01T00:00:00")}


def test_a_damaged_list_of_closes_is_an_error_and_not_an_empty_one(sold: Pipeline, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    p = cloned(sold, tmp_path)
    for text in (
        "{",
        "[1]",
        '[{"name": "q"}]',
        '[{"name": "q", "from": "x", "to": "x", "knownAt": "x", "at": "x"}]',
        '{"a": 1}',
        "null",
        json.dumps([NAIVE]),
        json.dumps([{**NAIVE, **dict.fromkeys(TIMES, "2026-01-01T00:00:00Z"), "name": "x' OR '1"}]),
        json.dumps([{**NAIVE, **dict.fromkeys(TIMES, "9999-12-31T23:59:59-14:00")}]),
        "[" * 100_000,
    ):
        found = DeltaTable(journal.runs_table(p.warehouse, "shop").path)
        found.alter.set_table_properties({closes.PROPERTY: text}, raise_if_not_exists=False)
        with pytest.raises(TableError, match=r"its property hindcast.closes cannot be read"):
            closes.read_closes(p.warehouse, "shop")


def test_a_damaged_property_of_a_table_is_an_error_that_names_it(sold: Pipeline, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    p = cloned(sold, tmp_path)
    kept = {"at": "2026-01-01T00:00:00Z", "refused": None, "validTime": None, "closes": []}
    odd = {
        horizon.PROPERTY: ["null", "5", "x", "[" * 100_000, json.dumps({**kept, "closes": [{"name": "x"}]})],
        tables.EVOLUTION: ["[]", '{"dropped": 5}', '{"dropped": {"a": 5}}', "{" * 100_000],
        store_formats.DOWNGRADE_PROPERTY: ["x", "9999-12-31T23:59:59.999999+00:00"],
    }
    found = DeltaTable(tables.locate_table(p.warehouse, p.contract, "menu").path)
    before = found.metadata().configuration
    for name, texts in odd.items():
        for text in texts:
            found.alter.set_table_properties({name: text}, raise_if_not_exists=False)
            with pytest.raises(TableError, match=f"its property {name} cannot be read"):
                read.query(p.warehouse, p.contract, "menu", Question())
        fine = {horizon.PROPERTY: json.dumps(kept), tables.EVOLUTION: "{}"}.get(name, SINCE)
        fine = before.get(name, fine)
        found.alter.set_table_properties({name: fine}, raise_if_not_exists=False)
    for text in ("x", "2026-01-01T00:00:00"):
        found.alter.set_table_properties({tables.CREATED: text}, raise_if_not_exists=False)
        with pytest.raises(TableError, match=f"its property {tables.CREATED} cannot be read"):
            tables.read_beginning(found)


SINCE = "2020-01-01T00:00:00+00:00"
BY = "  by: {table: menu, group_by: {price: price}, aggregate: {n: count(*)}, keep: 2 seconds}\n"
JOINED = "  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}, keep: 30 seconds}\n"


def test_a_view_that_begins_after_a_trim_does_not_break_a_close(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is new, and one that had no rows until then."""
    with pipeline(spark, broker, tmp_path, SHOP.replace("views:\n", f"views:\n{JOINED}")) as p:
        p.send("menu", ("tea", {"price": 1}, 0), ("tea", {"price": 2}, 3), ("rice", {"price": 7}, 60))
        p.send("orders", ("ann", {"item": "cake", "quantity": 1}, 1), ("dan", {"item": "cake", "quantity": 5}, 60))
        p.run()
        times = ["--from", "2026-01-01", "--to", "2026-01-01T00:00:08", "--known-at", "run:1"]
        assert main.main(["close", p.name, "q", *times]) == 0
        retention.trim_pipeline(spark, p.contract)
        p.send("orders", ("eve", {"item": "rice", "quantity": 2}, 61))
        p.write(SHOP.replace("views:\n", f"views:\n{JOINED}{BY}"))
        p.run()
        close = closes.find_close(p.warehouse, p.name, "q").question
        for view, rows in (("by", 2), ("bills", 1)):
            assert read.query(p.warehouse, p.contract, view, close).num_rows == 0
            assert read.query(p.warehouse, p.contract, view, Question()).num_rows == rows
        capsys.readouterr()
        assert main.main(["restate", p.name, "q"]) == 0
        assert main.main(["close", p.name, "q", *times]) == 0
        assert wrong(p) == []


def test_a_close_whose_trim_was_killed_is_made_again_and_a_reason_stays_on_its_line(
    sold: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    p = cloned(sold, tmp_path)
    with p.here():
        times = ["--from", "2026-01-01", "--to", "2026-01-01T00:00:08", "--known-at", "run:1", "--by", "eva"]
        assert main.main(["close", "shop", "q", *times]) == 0
        left, set_properties = [5], commits.set_properties

        def fail(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise TableError("killed")
            return set_properties(*given)

        with patch.object(commits, "set_properties", fail), pytest.raises(TableError, match="killed"):
            retention.trim_pipeline(p.spark, p.contract)  # type: ignore[arg-type]
        assert main.main(["close", "shop", "q", *times]) == 0, "nothing was removed yet"
        capsys.readouterr()
        assert main.main(["closes", "shop", "--drop", "q", "--reason", "x\ny"]) == 0
        assert r"by root: x\ny" in capsys.readouterr().out.replace(find_user(), "root")


def test_what_a_downgrade_dropped_is_refused_also_of_a_close(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Of the last run before it too: once the table is upgraded, its rows say less than they did then."""
    lasting = "\n".join(line for line in SHOP.splitlines() if "keep:" not in line)
    with pipeline(spark, broker, tmp_path, lasting) as p:
        p.send("menu", ("tea", {"price": 1}, 0), ("tea", {"price": 2}, 3), ("rice", {"price": 7}, 4))
        p.send("orders", ("ann", {"item": "tea", "quantity": 1}, 1))
        p.run()
        close = close_periods.close_period(p.contract, "q", moment(0), moment(8), None, "eva")
        assert len(ask(p, close, "menu")) == 3
        downgrade.downgrade_table(spark, p.contract, "menu", "latest", lose=True)
        upgrade.upgrade_table(spark, p.contract, "menu", "offline")
        with pytest.raises(QueryError, match="a downgrade dropped what was known before"):
            ask(p, close, "menu")
        with pytest.raises(QueryError, match="a downgrade dropped what was known before"):
            close_periods.close_period(p.contract, "r", moment(0), moment(8), close.known_at, "eva")
        assert [found for found in wrong(p) if "the close 'q' cannot be answered: a downgrade" in found]
        assert ask(p, close, "orders"), "other tables have all"
