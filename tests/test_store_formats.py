"""Store formats told by columns, and the proxy view: rows of an older format as rows of today's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.errors import TableError
from hindcast.query import show
from hindcast.query.show import format_moment
from hindcast.store import duckdb_reader, store_formats, table_columns, table_creation, tables
from hindcast.store.store_formats import UNKNOWN_TIME, OlderFormat
from hindcast.store.tables import Table

KEY, VALUE = {"item": "string"}, {"price": "int"}
LATEST = {**KEY, **VALUE}
KNOWN = datetime(2026, 2, 1, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")


def day(n: int | None) -> datetime | None:
    return None if n is None else datetime(2026, 1, n, tzinfo=UTC)


MAY = "latest: none; timestamped: timestamp; versioned: validFrom and validTo"


@pytest.mark.parametrize(
    ("there", "form", "wrong"),
    [
        (LATEST, "latest", []),
        ({"timestamp": "timestamp", **LATEST}, "timestamped", []),
        ({**LATEST, "validTo": "timestamp", "validFrom": "timestamp"}, "versioned", []),
        (KEY, "latest", ["no column price"]),
        ({**KEY, "price": "bigint"}, "latest", ["price is bigint, not int"]),
        ({**LATEST, "timestamp": "bigint"}, "timestamped", ["timestamp is bigint, not timestamp"]),
        (
            {**LATEST, "validFrom": "timestamp"},
            "bitemporal",
            [f"besides the contract's columns it has validFrom; a store format may have ({MAY})"],
        ),
    ],
)
def test_a_plain_tables_format_is_told_by_its_columns(there: dict[str, str], form: str, wrong: list[str]) -> None:
    assert store_formats.recognise_format(there, KEY, VALUE) == (form, wrong)


def test_a_table_that_a_downgrade_has_not_rewritten_is_not_within_the_older_format() -> None:
    assert store_formats.is_within_format("timestamped", ["item", "price", "timestamp"])
    assert not store_formats.is_within_format("latest", ["item", "price", "timestamp"])
    assert not store_formats.is_within_format("versioned", ["item", "price", "validFrom", "validTo", "systemFrom"])


ROWS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "latest": ([("curry", 8)], [("curry", 8, UNKNOWN_TIME, None)]),
    "timestamped": (
        [("curry", 8, day(1)), ("soup", 5, None)],
        [("curry", 8, day(1), None), ("soup", 5, UNKNOWN_TIME, None)],
    ),
    "versioned": (
        [("curry", 8, day(1), day(4)), ("curry", 10, day(4), None)],
        [("curry", 8, day(1), day(4)), ("curry", 10, day(4), None)],
    ),
}


@pytest.mark.parametrize("form", ROWS)
def test_the_proxy_view_shows_older_rows_as_todays(tmp_path: Path, form: str) -> None:
    given, expected = ROWS[form]
    found = older_table(tmp_path, form, given)
    belief = {True: "open", False: "past"}
    told = [(*row, KNOWN, None, -1, -1, belief[row[3] is None]) for row in expected]
    assert seen(found) == sorted(told, key=_item)


def test_rows_of_todays_form_are_shown_as_they_are_beside_older_ones(tmp_path: Path) -> None:
    """As an upgrade in place leaves them, half done; files that have both are not passed over."""
    names = ("item", "price", *store_formats.ADDED_COLUMNS)
    later = KNOWN + timedelta(days=1)
    todays = ("curry", 9, day(2), day(3), later, later, 0, 7, "superseded")
    found = older_table(tmp_path, "latest", [("soup", 5, *[None] * 7), todays], names)
    assert seen(found) == [todays, ("soup", 5, UNKNOWN_TIME, None, KNOWN, None, -1, -1, "open")]
    assert len(seen(found, ColumnBound("systemFrom", most=KNOWN))) == 2


def test_a_table_of_an_older_format_is_read_and_not_written_by_runs(tmp_path: Path) -> None:
    found = older_table(tmp_path, "latest", [("curry", 8)])
    assert table_columns.list_columns(menu(tmp_path), found) == [
        "item",
        "price",
        "validFrom",
        "validTo",
        "systemFrom",
        "systemTo",
    ]
    with pytest.raises(TableError, match="has the older store format latest: it can be read") as caught:
        table_creation.fit_columns(found, menu(tmp_path), table_columns.spark_schema(found))
    assert "hindcast upgrade p.menu" in caught.value.fix


def test_the_surrogate_is_shown_as_unknown() -> None:
    rows = pa.table({"at": pa.array([UNKNOWN_TIME], MOMENT), "validFrom": pa.array([UNKNOWN_TIME], MOMENT)})
    assert show.format_aligned(rows).splitlines()[2].split("  ") == ["1969-12-31 23:59:59.999000", "unknown"]
    assert format_moment(UNKNOWN_TIME) == "unknown"


def test_what_a_property_tells_is_what_was_put_there() -> None:
    for older in (OlderFormat("latest", KNOWN), OlderFormat("versioned", KNOWN, "in-place")):
        assert OlderFormat.from_properties({store_formats.FORMAT_PROPERTY: older.as_json()}) == older
    assert OlderFormat.from_properties({}) is None


def menu(folder: Path) -> Table:
    return Table(str(folder), "p", "menu", "versions", ("item",))


def older_table(
    folder: Path, form: str, rows: list[tuple[Any, ...]], names: tuple[str, ...] | None = None
) -> DeltaTable:
    """A table of an older format that is marked as one."""
    kinds = {"timestamp": MOMENT, "bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
    types = {**KEY, **VALUE, "timestamp": "timestamp", **store_formats.ADDED_COLUMNS}
    columns = names or ("item", "price", *store_formats.FORMATS[form])
    schema = pa.schema([(name, kinds[types[name]]) for name in columns])
    data = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    properties = {store_formats.FORMAT_PROPERTY: OlderFormat(form, KNOWN).as_json()}
    table = menu(folder)
    write_deltalake(table.path, data, name="p.menu", description=table.format_mark(0))
    DeltaTable(table.path).alter.set_table_properties(properties, raise_if_not_exists=False)
    found = tables.open_table(table)
    assert found is not None
    return found


def seen(found: DeltaTable, *bounds: ColumnBound) -> list[tuple[Any, ...]]:
    """The rows of a proxy view."""
    names = ("item", "price", *store_formats.ADDED_COLUMNS)
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, found, bounds)
        rows = engine.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=_item)


def _item(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:2]
