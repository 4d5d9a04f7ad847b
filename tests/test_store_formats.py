"""Store formats told by columns, and the proxy view: rows of an older format as rows of today's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast import show
from hindcast.delta import making, scan, store_formats, tables
from hindcast.delta.store_formats import UNKNOWN, Older
from hindcast.delta.tables import Table
from hindcast.errors import TableError
from hindcast.pages import drawing
from hindcast.questions import Bound

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
            [f"beside the contract's columns it has validFrom; a format may have ({MAY})"],
        ),
    ],
)
def test_a_plain_tables_format_is_told_by_its_columns(there: dict[str, str], form: str, wrong: list[str]) -> None:
    assert store_formats.recognised(there, KEY, VALUE) == (form, wrong)


ROWS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "latest": ([("curry", 8)], [("curry", 8, UNKNOWN, None)]),
    "timestamped": (
        [("curry", 8, day(1)), ("soup", 5, None)],
        [("curry", 8, day(1), None), ("soup", 5, UNKNOWN, None)],
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
    names = ("item", "price", *store_formats.OURS)
    later = KNOWN + timedelta(days=1)
    todays = ("curry", 9, day(2), day(3), later, later, 0, 7, "superseded")
    found = older_table(tmp_path, "latest", [("soup", 5, *[None] * 7), todays], names)
    assert seen(found) == [todays, ("soup", 5, UNKNOWN, None, KNOWN, None, -1, -1, "open")]
    assert len(seen(found, Bound("systemFrom", most=KNOWN))) == 2


def test_a_table_of_an_older_format_is_read_and_not_written_by_runs(tmp_path: Path) -> None:
    found = older_table(tmp_path, "latest", [("curry", 8)])
    assert tables.columns(menu(tmp_path), found) == ["item", "price", "validFrom", "validTo", "systemFrom", "systemTo"]
    with pytest.raises(TableError, match="has the older store format latest: it can be read") as caught:
        making.fit(found, menu(tmp_path), tables.spark_schema(found))
    assert "hindcast upgrade p.menu" in caught.value.mend


def test_the_surrogate_is_shown_as_unknown() -> None:
    rows = pa.table({"at": pa.array([UNKNOWN], MOMENT), "validFrom": pa.array([UNKNOWN], MOMENT)})
    assert show.aligned(rows).splitlines()[2].split("  ") == ["1969-12-31 23:59:59.999000", "unknown"]
    assert drawing.label(UNKNOWN) == "unknown"


def test_what_a_property_tells_is_what_was_put_there() -> None:
    for older in (Older("latest", KNOWN), Older("versioned", KNOWN, "in-place")):
        assert Older.of({store_formats.PROPERTY: older.as_json()}) == older
    assert Older.of({}) is None


def menu(folder: Path) -> Table:
    return Table(str(folder), "p", "menu", "versions", ("item",))


def older_table(
    folder: Path, form: str, rows: list[tuple[Any, ...]], names: tuple[str, ...] | None = None
) -> DeltaTable:
    """A table of an older format that is marked as one."""
    kinds = {"timestamp": MOMENT, "bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
    types = {**KEY, **VALUE, "timestamp": "timestamp", **store_formats.OURS}
    columns = names or ("item", "price", *store_formats.FORMATS[form])
    schema = pa.schema([(name, kinds[types[name]]) for name in columns])
    data = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    properties = {store_formats.PROPERTY: Older(form, KNOWN).as_json()}
    table = menu(folder)
    write_deltalake(table.path, data, name="p.menu", description=table.mark(0))
    DeltaTable(table.path).alter.set_table_properties(properties, raise_if_not_exists=False)
    found = tables.opened(table)
    assert found is not None
    return found


def seen(found: DeltaTable, *bounds: Bound) -> list[tuple[Any, ...]]:
    """The rows of a proxy view."""
    names = ("item", "price", *store_formats.OURS)
    with scan.engine() as engine:
        scan.register(engine, found, bounds)
        rows = engine.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=_item)


def _item(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:2]
