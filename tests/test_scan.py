"""Reading Delta tables in DuckDB: which files are passed over, and that the rows are those of any reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.contract import find
from hindcast.store import duckdb_reader, row_reader, tables
from warehouses import RUNS, at, shop, version, write

MICRO = timedelta(microseconds=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    """The prices of the shop, and of two more keys in files of their own."""
    with shop(tmp_path_factory.mktemp("it's a folder")) as now:
        contract = find(now.schemas, "shop")
        for item, start, end in (("rice", 10, 20), ("soup", 20, None)):
            place = {"_partition": 0, "_offset": start}
            write(now, contract, "prices", [version(2, None, start, end, item=item, price=None, note="", **place)])
        opened = tables.open_table(tables.locate_table(now.warehouse, contract, "prices"))
    assert opened is not None
    return opened


def items(found: DeltaTable, *bounds: ColumnBound) -> set[str]:
    """The keys in the files that are read."""
    with duckdb_reader.open_engine(found) as engine:
        duckdb_reader.register_rows(engine, found, bounds)
        return {item for (item,) in engine.sql("SELECT item FROM rows").fetchall() if not item.startswith("<")}


@pytest.mark.parametrize(
    ("bound", "read"),
    [
        (ColumnBound("item", "soup", "soup"), {"soup"}),
        (ColumnBound("item", "s", "t"), {"soup"}),
        (ColumnBound("item", "zzz", "zzz"), set()),
        (ColumnBound("validFrom", most=at(15)), {"naan", "rice"}),
        (ColumnBound("validFrom", least=at(20)), {"soup"}),
        (ColumnBound("validTo", least=at(30), or_null=True), {"naan", "soup"}),
        (ColumnBound("validTo", least=at(30)), {"naan", "soup"}),  # without statistics
        (ColumnBound("systemFrom", most=RUNS[0]), {"naan"}),
        (ColumnBound("systemTo", least=RUNS[1], or_null=True), {"naan", "rice", "soup"}),
        (ColumnBound("price", 1, 1), {"naan", "rice", "soup"}),  # of which there are no statistics
        (ColumnBound("item", 1, 1), {"naan", "rice", "soup"}),  # of another type
    ],
)
def test_a_file_is_passed_over_only_if_it_cannot_hold_the_row(
    found: DeltaTable, bound: ColumnBound, read: set[str]
) -> None:
    assert items(found, bound) == read


def test_statistics_that_end_at_the_millisecond_pass_over_no_row(found: DeltaTable) -> None:
    with duckdb_reader.open_engine(found) as engine:
        duckdb_reader.register_rows(engine, found, [ColumnBound("systemTo", least=RUNS[1] - MICRO)])
        assert engine.sql("SELECT count(*) FROM rows WHERE systemTo IS NOT NULL").fetchall() == [(1,)]


def test_rows_are_those_that_arrow_reads(found: DeltaTable) -> None:
    text = "SELECT item, price, note, validFrom, validTo, systemFrom, systemTo, _offset FROM rows ORDER BY ALL"
    with duckdb_reader.open_engine(found) as engine, duckdb.connect() as other:
        other.execute("SET TimeZone = 'UTC'")
        duckdb_reader.register_rows(engine, found)
        other.register("rows", row_reader.open_arrow_rows(found))
        ours, theirs = engine.sql(text).to_arrow_table(), other.sql(text).to_arrow_table()
    assert ours == theirs
    assert ours.num_rows == 6


def test_a_moment_at_the_end_of_pythons_years_is_found(tmp_path: Path) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    write_deltalake(str(tmp_path), pa.table({"at": pa.array([last], pa.timestamp("us", "UTC"))}))
    table = DeltaTable(str(tmp_path))
    assert len(duckdb_reader.find_candidate_files(table, [ColumnBound("at", least=last)])) == 1
    assert len(duckdb_reader.find_candidate_files(table, [ColumnBound("at", most=last - timedelta(days=1))])) == 0
