"""DuckDB reads the rows of a table on a disk itself, so that its limit of memory is one of all that reading takes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.store import deletion_vectors, delta_log, duckdb_reader, row_reader

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
INNER = pa.struct([("t", MOMENT), ("x", pa.int32())])
SCHEMA = pa.schema(
    [
        *(("n", pa.int64()), ("s", INNER), ("ts", pa.list_(MOMENT))),
        *(("m", pa.map_(pa.string(), INNER)), ("many", pa.list_(INNER))),
    ]
)
ROWS = [
    {"n": 1, "s": {"t": NOON, "x": 1}, "ts": [NOON, None], "m": [("a", {"t": NOON, "x": None})], "many": [None]},
    {"n": 2, "s": None, "ts": None, "m": None, "many": [{"t": NOON, "x": 2}]},
    {"n": 3, "s": None, "ts": [], "m": [], "many": []},
]


@pytest.fixture(autouse=True)
def _without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(row_reader, "open_arrow_rows")


@pytest.mark.parametrize("is_old", [False, True])
def test_moments_in_other_values_are_read_by_duckdb(tmp_path: Path, *, is_old: bool) -> None:
    """With their zone, which older forms of them in files do not have."""
    write_deltalake(tmp_path, rows := pa.Table.from_pylist(ROWS, schema=SCHEMA))
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(rows, path, use_deprecated_int96_timestamps=is_old)
    delta_table = DeltaTable(tmp_path)
    with duckdb_reader.open_engine(delta_table, 32 << 20) as engine:
        duckdb_reader.register_rows(engine, delta_table)
        read = engine.sql("SELECT * FROM rows ORDER BY n").to_arrow_table()
    assert [str(it) for it in read.schema.types] == [
        str(it).replace("<item:", "<l:").replace("<element:", "<l:") for it in SCHEMA.types
    ]
    assert read.to_pylist() == ROWS


def test_long_texts_beside_moments_in_other_values_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string()), ("s", INNER)])
    write_deltalake(tmp_path, pa.Table.from_pylist([{"text": "x" * 4_000_000}] * 20, schema=schema))
    delta_table = DeltaTable(tmp_path)
    with duckdb_reader.open_engine(delta_table, 32 << 20) as engine:
        duckdb_reader.register_rows(engine, delta_table)
        assert engine.execute("SELECT count(s), count(*) FROM rows").fetchall() == [(0, 20)]
        with pytest.raises(duckdb.OutOfMemoryException):
            engine.execute("SELECT list(text || 'y') FROM rows").fetchall()


@pytest.mark.parametrize("name", ["a*b", "x?y", "[z]", "plain"])
def test_a_folder_may_have_the_name_of_a_pattern(tmp_path: Path, name: str) -> None:
    """And rows of its files may be marked; those of another folder that meets the pattern are not read."""
    for n, folder in enumerate(("first", "a*b" if name == "plain" else "aXb")):
        properties = {
            "delta.enableDeletionVectors": "true",
            "delta.minReaderVersion": "3",
            "delta.minWriterVersion": "7",
        }
        write_deltalake(tmp_path / folder, pa.table({"n": [10 * n, 10 * n + 1]}), configuration=properties)
    path = (tmp_path / "first").rename(tmp_path / name)
    delta_table = DeltaTable(path)
    actions = deletion_vectors.mark_rows(delta_table, {delta_log.list_paths(delta_table)[0]: np.array([1], np.uint64)})
    delta_log.commit_actions(delta_table, actions, {}, "")
    delta_table = DeltaTable(path)
    with duckdb_reader.open_engine(delta_table, 32 << 20) as engine:
        duckdb_reader.register_rows(engine, delta_table)
        assert engine.execute("SELECT n FROM rows").fetchall() == [(0,)]


def test_another_schema_of_one_file_changes_no_answer_of_another(tmp_path: Path) -> None:
    """DuckDB takes the types of the first file for all; a column that a file lacks is null."""
    for n, price in enumerate(("1.25", "2.75")):
        rows = pa.table({"n": [n], "price": pa.array([Decimal(price)], pa.decimal128(8, 2)), "more": ["x"]})
        write_deltalake(tmp_path / "table", rows, mode="append")
    delta_table = DeltaTable(tmp_path / "table")
    for path in (tmp_path / "table").glob("*.parquet"):
        kept = path.read_bytes()
        whole = pq.read_table(path)
        coarse = whole.column("price").cast(pa.decimal128(8, 1), safe=False)
        pq.write_table(whole.set_column(1, "price", coarse).drop_columns("more"), path)
        with duckdb_reader.open_engine(delta_table) as engine:
            duckdb_reader.register_rows(engine, delta_table)
            found = dict(engine.sql("SELECT n, ROW(price, more) FROM rows").fetchall())
        other = 1 - whole.column("n")[0].as_py()
        assert found[other] == (Decimal(("1.25", "2.75")[other]), "x")
        assert found[1 - other][1] is None
        path.write_bytes(kept)
