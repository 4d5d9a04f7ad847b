"""Reading back: what was true then, and what was believed then; with our code and without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import OUTCOMES, bare_run
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question, key_conditions
from hindcast.common.errors import QueryError, TableError, UnknownError
from hindcast.contract import load
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.query import read
from hindcast.store.tables import Table
from pipelines import T0, Pipeline, at, tuples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def known(p: Pipeline, run: int) -> datetime:
    return journal.read_runs(p.warehouse, p.name)[run - 1].known_at


def ask(p: Pipeline, name: str, question: Question) -> pa.Table:
    return read.query(p.warehouse, p.contract, name, question)


@pytest.mark.parametrize(
    ("as_of", "run", "price"),
    [
        (-1, 1, None),
        (0, 1, 8),
        (1, 1, 8),
        (2, 1, 8),
        (3, 1, 8),
        (3.999999, 1, 8),
        (4, 1, 10),
        (0, 2, 8),
        (1.999999, 2, 8),
        (2, 2, 9),
        (3, 2, 9),
        (4, 2, 10),
        (None, 1, 10),
        (3, None, 9),
    ],
)
def test_a_price_as_of_a_moment_as_known_at_a_run(
    restaurant: Pipeline, as_of: float | None, run: int | None, price: int | None
) -> None:
    moments = (None if as_of is None else at(as_of), known(restaurant, run) if run else None)
    rows = ask(restaurant, "menu", Question(["curry"], as_of=moments[0], known_at=moments[1])).to_pylist()
    assert [row["price"] for row in rows] == ([] if price is None else [Decimal(price)])


def test_before_the_first_run_nothing_was_known(restaurant: Pipeline) -> None:
    early = known(restaurant, 1).replace(year=2025)
    assert ask(restaurant, "menu", Question(as_of=at(3), known_at=early)).num_rows == 0


def test_a_data_file_that_is_broken_is_named_with_what_to_do(restaurant: Pipeline, tmp_path: Path) -> None:
    warehouse = str(shutil.copytree(restaurant.warehouse, tmp_path / "warehouse"))
    for name in ("menu", "runs"):
        for file in Path(warehouse, restaurant.name, name).rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                whole = file.read_bytes()
                file.write_bytes(whole[: len(whole) // 2])
        journal._PARSED.clear()  # of an unchanged journal a process does not read the files again
        with pytest.raises(TableError, match=r"a data file cannot be read: .*\.parquet") as refused:
            read.query(warehouse, restaurant.contract, "menu", Question(as_of=at(3)))
        assert refused.value.where.endswith(f"/{restaurant.name}/{name}")
        assert f"hindcast verify {restaurant.name} --quick" in refused.value.fix


def test_what_will_be_known_or_is_not_settled_is_refused(restaurant: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="is not known yet") as caught:
        ask(restaurant, "menu", Question(known_at=datetime.now(UTC) + timedelta(hours=1)))
    assert f"the last completed run is known at {known(restaurant, 3).isoformat()}" in caught.value.fix
    shutil.copytree(restaurant.warehouse, tmp_path / "warehouse")
    warehouse, last = str(tmp_path / "warehouse"), journal.read_runs(restaurant.warehouse, restaurant.name)[-1]
    under_way = Run(replace(last.plan, run=4, run_id="fourth", known_at=datetime.now(UTC)))
    journal.append_entry(warehouse, under_way)
    with pytest.raises(QueryError, match=r"run 4 \(fourth\) has not ended") as caught:
        read.query(warehouse, restaurant.contract, "menu", Question(known_at=datetime.now(UTC)))
    assert caught.value.fix.startswith(f"use a known-at before {under_way.known_at.isoformat()}")
    # left out, it is the last completed run; and what was known before the one under way is settled
    for moment in (None, under_way.known_at - timedelta(microseconds=1)):
        assert read.query(warehouse, restaurant.contract, "menu", Question(known_at=moment)).num_rows == 2


def span(row: dict[str, Any]) -> tuple[str, int, int, int | None]:
    ended = None if row["validTo"] is None else (row["validTo"] - T0).seconds
    return row["item"], int(row["price"]), (row["validFrom"] - T0).seconds, ended


CURRY = [("curry", 8, 0, 2), ("curry", 9, 2, 4), ("curry", 10, 4, None)]
SOUP = ("soup", 5, 0, None)


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        # KIP-968: both ends included; a version is answered if it is valid at some moment between them
        (Question(["curry"], from_time=FIRST_MOMENT), CURRY),
        (Question(["curry"], from_time=at(2)), CURRY[1:]),
        (Question(["curry"], to_time=at(1.999)), CURRY[:1]),
        (Question(["curry"], to_time=at(2)), CURRY[:2]),
        (Question(["curry"], from_time=at(3), to_time=at(3)), CURRY[1:2]),
        (Question(["curry"], from_time=at(1), to_time=at(4), order=["time-desc"]), CURRY[::-1]),
        # KIP-969: ranges of keys, both ends included
        (Question(from_key=["d"], from_time=FIRST_MOMENT), [SOUP]),
        (Question(to_key=["curry"], as_of=at(0)), CURRY[:1]),
        (Question(from_key=["curry"], to_key=["soup"], as_of=at(2)), [SOUP, CURRY[1]]),
        (Question(as_of=at(0), order=["key-desc"]), [SOUP, CURRY[0]]),
        (Question(from_time=FIRST_MOMENT, order=["key", "time-desc"]), [*CURRY[::-1], SOUP]),
        (Question(from_time=FIRST_MOMENT, order=["key-desc", "time"]), [SOUP, *CURRY]),
    ],
)
def test_versions_between_times_and_ranges_of_keys(
    restaurant: Pipeline, spark: SparkSession, question: Question, rows: list[Any]
) -> None:
    found = [span(row) for row in ask(restaurant, "menu", question).to_pylist()]
    assert found == rows
    frame = read.frame(spark, restaurant.warehouse, restaurant.contract, "menu", question)
    told = [
        span({k: v.replace(tzinfo=UTC) if isinstance(v, datetime) else v for k, v in r.asDict().items()})
        for r in frame.collect()
    ]
    assert told == rows if question.order else sorted(map(str, told)) == sorted(map(str, rows))
    assert frame.columns == ["item", "price", "validFrom", "validTo", "systemFrom", "systemTo"]


@pytest.mark.parametrize(
    ("as_of", "run", "paid"),
    [
        (None, 1, [("anna", 8), ("bob", 20), ("candace", 24)]),
        (None, 2, [("anna", 8), ("bob", 20), ("candace", 27)]),
        (3, 1, [("anna", 8), ("candace", 24)]),
        (2, 2, [("anna", 8)]),
    ],
)
def test_events_are_those_up_to_a_moment(
    restaurant: Pipeline, as_of: float | None, run: int, paid: list[tuple[str, int]]
) -> None:
    moment = None if as_of is None else at(as_of)
    rows = ask(restaurant, "bills", Question(as_of=moment, known_at=known(restaurant, run))).to_pylist()
    assert sorted((row["customer"], int(row["amount"])) for row in rows) == paid


def test_columns_are_the_users_and_the_periods(restaurant: Pipeline) -> None:
    menu = read.query(restaurant.warehouse, restaurant.contract, "menu")
    bills = read.history(restaurant.warehouse, restaurant.contract, "bills")
    assert menu.column_names == ["item", "price", "validFrom", "validTo", "systemFrom", "systemTo"]
    assert bills.column_names == ["customer", "item", "amount", "timestamp", "systemFrom", "systemTo"]


def test_history_is_every_row_by_valid_time_and_then_by_system_time(restaurant: Pipeline) -> None:
    rows = read.history(restaurant.warehouse, restaurant.contract, "menu", key=["curry"]).to_pylist()
    assert [(int(r["price"]), (r["validFrom"] - T0).seconds, r["systemTo"] is None) for r in rows] == [
        (8, 0, True),
        (8, 0, False),
        (9, 2, True),
        (10, 4, True),
    ]
    assert read.history(restaurant.warehouse, restaurant.contract, "menu", key=["tea"]).num_rows == 0


def test_what_a_run_has_changed_is_the_rows_that_it_closed_and_opened_by_key(restaurant: Pipeline) -> None:
    def changed(name: str, run: int) -> list[tuple[str, int, bool]]:
        rows = read.history(restaurant.warehouse, restaurant.contract, name, run=run).to_pylist()
        return [(r["item"], int(r.get("price") or r["amount"]), r["systemTo"] == known(restaurant, run)) for r in rows]

    assert changed("menu", 2) == [("curry", 8, False), ("curry", 8, True), ("curry", 9, False)]
    assert changed("bills", 2) == [("curry", 24, True), ("curry", 27, False)]
    assert len(changed("menu", 1)) == 3
    with pytest.raises(UnknownError, match="no run '9'"):
        changed("menu", 9)


def test_a_moment_is_no_text() -> None:
    with pytest.raises(QueryError, match="known_at is 'run:4', no datetime"):
        Question(known_at="run:4")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_moment_that_no_year_of_utc_has_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match=r"as_of is .*, which no year of UTC has"):
        Question(as_of=datetime.fromisoformat(text))
    with pytest.raises(QueryError, match="is no value of the key column since, which is"):
        key_conditions(Question([text]), {"since": pa.timestamp("us", "UTC")})


def test_run_3_is_a_moment_too(restaurant: Pipeline) -> None:
    def of(text: str) -> datetime:
        return read.moment_of(restaurant.warehouse, "restaurant", text)

    assert of("run:2") == known(restaurant, 2)
    assert of("2026-01-01") == T0
    assert of("2026-01-01T02:00:00+02:00") == T0
    assert of("2026-01-01 00:00:00.000001") == datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    with pytest.raises(QueryError, match="is not a valid timestamp"):
        of("0001-01-01T00:00:00+02:00")
    with pytest.raises(QueryError, match="no run '7'") as caught:
        of("run:7")
    assert "known here: 1, 2, 3" in caught.value.fix
    with pytest.raises(QueryError, match="'yesterday' is not a valid timestamp") as caught:
        of("yesterday")
    assert "run:1" in caught.value.fix


SEATS = Table("warehouse", "theatre", "seats", "versions", ("row", "seat"))
MENU = Table("warehouse", "restaurant", "menu", "versions", ("item",))


@pytest.mark.parametrize(
    ("table", "written", "key"),
    [
        (MENU, "curry", ["curry"]),
        (MENU, '{"item": "curry"}', ['{"item": "curry"}']),
        (SEATS, '{"row": 1, "seat": "b"}', [1, "b"]),
        (SEATS, '{"seat": "b", "row": null}', [None, "b"]),
        (SEATS, "1 · b", ["1", "b"]),
        (SEATS, "1,b", ["1", "b"]),
        (SEATS, "1 · b, c", ["1", "b, c"]),
    ],
)
def test_keys_as_users_write_them(table: Table, written: str, key: list[Any]) -> None:
    assert read.parse_key(table, written) == key


def test_bounds_of_keys_as_users_write_them() -> None:
    assert read.parse_key_bound(MENU, '{"item": 1}') == ['{"item": 1}']
    assert read.parse_key_bound(SEATS, "1") == ["1"]
    assert read.parse_key_bound(SEATS, '{"row": 1}') == [1]
    assert read.parse_key_bound(SEATS, '{"seat": "b", "row": 1}') == [1, "b"]
    with pytest.raises(QueryError, match="is not a bound for keys of seats") as caught:
        read.parse_key_bound(SEATS, '{"seat": "b"}')
    assert "write the leading columns of the key" in caught.value.fix


@pytest.mark.parametrize(
    "written",
    ["[" * 30_000, "1b", "[1, 2]", '{"row": 1}', "3", "1,", "1, b, c", '{"row": 1, "seat": "b", "colour": 2}'],
)
def test_what_is_no_composite_key(written: str) -> None:
    with pytest.raises(QueryError, match="is not a key of seats") as caught:
        read.parse_key(SEATS, written)
    as_json = '{"row": "...", "seat": "..."}'
    assert caught.value.fix == f"write its values (row, seat) with commas between them, or as JSON: {as_json}"


THEATRE = """
pipeline: theatre
start: 2026-01-01
topics:
  seats:
    read: table
    key: {row: int, seat: string}
    value: {free: boolean}
"""


def test_keys_of_several_columns_are_compared_by_their_types(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "theatre.yaml"
    path.write_text(THEATRE, encoding="utf-8")
    contract, warehouse = load(path), str(tmp_path)
    run = bare_run("theatre", 1, T0)
    journal.append_entry(warehouse, run)
    journal.append_entry(warehouse, replace(run, outcome=OUTCOMES["completed"]))
    seats = [(row, seat, row == 1, T0, None, T0, None, 0, 0, "open") for row in (2, 9, 10) for seat in ("a", "b'\\")]
    names = [
        "row",
        "seat",
        "free",
        "validFrom",
        "validTo",
        "systemFrom",
        "systemTo",
        "_partition",
        "_offset",
        "_belief",
    ]
    moment = pa.timestamp("us", "UTC")
    types = [pa.int32(), pa.string(), pa.bool_(), *[moment] * 4, pa.int32(), pa.int64(), pa.string()]
    table = read.locate_table(warehouse, contract, "seats")
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*seats, strict=True), types, strict=True)]
    rows = pa.table(columns, names)
    write_deltalake(table.path, rows, name="theatre.seats", description=table.description)

    def asked(question: Question) -> list[tuple[int, str]]:
        found = [(r["row"], r["seat"][0]) for r in read.query(warehouse, contract, "seats", question).to_pylist()]
        frame = read.frame(spark, warehouse, contract, "seats", question)
        assert sorted((r["row"], r["seat"][0]) for r in frame.collect()) == sorted(found)
        return found

    assert asked(Question([2, "a"])) == [(2, "a")]
    assert asked(Question(["10", "b'\\"])) == [(10, "b")]
    assert asked(Question([None, "a"])) == []
    assert asked(Question(from_key=["9"])) == [(9, "a"), (9, "b"), (10, "a"), (10, "b")]
    assert asked(Question(to_key=[9])) == [(2, "a"), (2, "b"), (9, "a"), (9, "b")]
    assert asked(Question(from_key=[2, "b"], to_key=[10, "a"])) == [(2, "b"), (9, "a"), (9, "b"), (10, "a")]
    assert asked(Question(from_key=[9], to_key=[9, "a"])) == [(9, "a")]
    with pytest.raises(QueryError, match="'nine' is no value of the key column row, which is int"):
        asked(Question(["nine", "a"]))
    with pytest.raises(QueryError, match="'None' is no value of the key column row"):
        asked(Question(from_key=[None]))
    with pytest.raises(QueryError, match="the keys are reversed: from 10 to 9"):
        asked(Question(from_key=["10"], to_key=["9"]))


def test_questions_without_an_answer(restaurant: Pipeline, tmp_path: Path) -> None:
    warehouse, contract = restaurant.warehouse, restaurant.contract
    with pytest.raises(QueryError, match="no table 'bils'") as caught:
        read.query(warehouse, contract, "bils")
    assert "did you mean 'bills'?" in caught.value.fix
    with pytest.raises(QueryError, match="2 values for a key of 1 column") as caught:
        read.query(warehouse, contract, "menu", Question(["a", "b"]))
    assert caught.value.fix == "give item"
    with pytest.raises(QueryError, match="as of one moment and between two"):
        Question(as_of=at(1), to_time=at(2))
    assert Question(as_of=datetime(2026, 1, 1)).as_of == T0  # noqa: DTZ001  # a moment without a zone is UTC
    with pytest.raises(QueryError, match="the times are reversed"):
        Question(from_time=at(2), to_time=at(1))
    with pytest.raises(QueryError, match="rows cannot be ordered by 'tiem'") as caught:
        Question(order=["tiem"])
    assert "did you mean 'time'?" in caught.value.fix
    with pytest.raises(QueryError, match="no run has been completed yet") as caught:
        read.query(str(tmp_path), contract, "menu")
    assert caught.value.fix == "hindcast run restaurant"


BELIEVED = "systemTo IS NULL"
THREE = "TIMESTAMPTZ '2026-01-01 00:00:03Z'"
TRUE_AT_3 = f"validFrom <= {THREE} AND (validTo IS NULL OR validTo > {THREE})"


def test_duckdb_reads_the_tables_without_our_code(restaurant: Pipeline) -> None:
    menu = DeltaTable(restaurant.table("menu").path).to_pyarrow_dataset()
    bills = DeltaTable(restaurant.table("bills").path).to_pyarrow_dataset()
    with duckdb.connect() as engine:
        engine.register("menu", menu)
        engine.register("bills", bills)

        def ask(text: str) -> list[tuple[Any, ...]]:
            return engine.execute(text).fetchall()

        assert ask(f"SELECT item, price::int FROM menu WHERE {BELIEVED} AND {TRUE_AT_3} ORDER BY 1") == [
            ("curry", 9),
            ("soup", 5),
        ]
        first = f"TIMESTAMPTZ '{known(restaurant, 1).isoformat()}'"
        believed_then = f"systemFrom <= {first} AND (systemTo IS NULL OR systemTo > {first})"
        assert ask(f"SELECT item, price::int FROM menu WHERE {believed_then} AND {TRUE_AT_3} ORDER BY 1") == [
            ("curry", 8),
            ("soup", 5),
        ]
        assert ask(f"SELECT sum(amount)::int FROM bills WHERE {BELIEVED}") == [(55,)]
        assert ask(f"SELECT sum(amount)::int FROM bills WHERE {believed_then}") == [(52,)]


def test_delta_rs_reads_the_tables_without_our_code(restaurant: Pipeline) -> None:
    table = DeltaTable(restaurant.table("menu").path)
    fields = {field.name: field.type.type for field in table.schema().fields}
    assert {fields[name] for name in ("validFrom", "validTo", "systemFrom", "systemTo")} == {"timestamp"}
    now = table.to_pyarrow_table()
    believed = [row for row in now.to_pylist() if row["systemTo"] is None]
    assert tuples(believed, "item", "price", "validFrom", "validTo") == [
        ("curry", 10.0, 4, None),
        ("curry", 8.0, 0, 2),
        ("curry", 9.0, 2, 4),
        ("soup", 5.0, 0, None),
    ]
    # where rows lie follows from what they say
    places = {(row["_belief"], row["validTo"] is None, row["systemTo"] is None) for row in now.to_pylist()}
    assert places == {("open", True, True), ("past", False, True), ("superseded", False, False)}
