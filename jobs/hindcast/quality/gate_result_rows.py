"""The rows of gate results as they are read from their files, and how many and how large they may be.

A few kilobytes of a Parquet file can hold texts of gigabytes, and the API server reads these tables of all pipelines.
So files are measured by their pages before they are read, and texts come as dictionaries, which have each text once.
Only those of one run are expanded, once it is known how large they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.errors import TableError
from hindcast.contract import bounds
from hindcast.plan.journal_rows import count_parts
from hindcast.store import (
    arrow_reader,
    deletion_vectors,
    delta_log,
    duckdb_reader,
    parquet_footers,
    parquet_pages,
    row_reader,
)
from hindcast.store.tables import Table

TEXTS = ("table", "expectation", "kwargs", "onFailure", "outcome", "detail")

MAX_STORED_ROWS, MAX_STORED_BYTES = 5_000_000, 512 << 20
"""The most rows, and bytes of texts, in the parts of files that have the runs that are asked for. Maintenance writes
files with the results of many runs, in parts of about a million rows.
"""

MAX_RESULTS = bounds.GATES
"""The most gate results of a run, in the tries that count."""

MAX_ALL_RESULTS = 20 * MAX_RESULTS
"""The most gate results of a run in all its tries."""

MAX_TEXT = 16 << 20
"""The most bytes of a run's gate results. The parameters of all gates of a contract have 1 MiB, which are 6 as JSON."""

MAX_PARTS = 1_000_000
"""The most values of the parameters of a run's gates, as `count_parts` counts them."""

MAX_DETAIL = 10_000
"""The most characters of a detail; what is longer is cut."""


def load_last_tries(table: Table, delta_table: DeltaTable, first: int, last: int) -> pa.Table:
    """Return the gate results of some runs by run and gate, those that count, with texts as dictionaries.

    Raise TableError if no run writes so many, or so large ones.
    """
    paths = list_files(delta_table, first, last)
    with row_reader.refuse_broken_files(table):
        _refuse_large_files(table, delta_table, paths, first, last)
        within = (pc.field("run") >= first) & (pc.field("run") <= last)
        rows = arrow_reader.read_rows(delta_table, paths, where=within, packed=TEXTS).read_all().unify_dictionaries()
    for entry in pc.value_counts(rows["run"]).to_pylist():
        if entry["counts"] > MAX_ALL_RESULTS:
            found = f"run {entry['values']} has {entry['counts']:,} gate results, more than {MAX_ALL_RESULTS:,}"
            raise _build_excess_error(table, found)
    with duckdb_reader.open_arrow_engine() as engine:
        tries = rows.select(["run", "at", "gate"]).append_column("name", list_codes(rows, "table"))
        engine.register("tries", tries.append_column("place", pa.array(range(rows.num_rows), pa.int64())))
        text = """
            SELECT place FROM tries
            QUALIFY dense_rank() OVER (PARTITION BY run, name ORDER BY "at" DESC) = 1 ORDER BY run, gate, place
        """
        return rows.take(engine.sql(text).to_arrow_table()["place"])


def list_files(delta_table: DeltaTable, first: int, last: int) -> list[str]:
    """Return the files of a table that may have rows of some runs."""
    return [
        unquote(path) for path in duckdb_reader.find_candidate_files(delta_table, [ColumnBound("run", first, last)])
    ]


def list_codes(rows: pa.Table, name: str) -> pa.Array:
    """Return numbers that are equal where a text of `load_last_tries` is; null for null."""
    return rows[name].combine_chunks().indices


def refuse_excess(table: Table, results: pa.Table) -> None:
    """Raise TableError if the results of a run are more or larger than the gates of a contract give."""
    if results.num_rows > MAX_RESULTS:
        raise _build_excess_error(table, f"a run has {results.num_rows:,} gate results, more than {MAX_RESULTS:,}")
    size = sum(_measure_texts(results, name) for name in TEXTS)
    if size > MAX_TEXT:
        raise _build_excess_error(table, f"the gate results of a run have {size:,} bytes, more than {MAX_TEXT:,}")
    parts = sum(count_parts(text) for text in results["kwargs"].to_pylist() if text is not None)
    if parts > MAX_PARTS:
        found = f"the parameters of the gates of a run have {parts:,} values, more than {MAX_PARTS:,}"
        raise _build_excess_error(table, found)


def cut_detail(detail: str) -> str:
    """Return a detail, or its first `MAX_DETAIL` characters and how many there are."""
    return detail if len(detail) <= MAX_DETAIL else f"{detail[:MAX_DETAIL]}... ({len(detail):,} characters)"


def _measure_texts(results: pa.Table, name: str) -> int:
    """Return how many bytes a column of texts takes, without expanding it."""
    texts = results[name].combine_chunks()
    return pc.sum(pc.binary_length(texts.dictionary).take(texts.indices)).as_py() or 0


def _refuse_large_files(table: Table, delta_table: DeltaTable, paths: Sequence[str], first: int, last: int) -> None:
    """Raise TableError for data files with too many rows or too large texts, which are not read for that."""
    rows, size = measure_files(delta_table, paths, first, last, TEXTS)
    if rows > MAX_STORED_ROWS or size > MAX_STORED_BYTES:
        found = f"the gate results of runs {first} to {last} are in files of {rows:,} rows with {size:,} bytes of text"
        raise _build_excess_error(table, found)


def measure_files(
    delta_table: DeltaTable, paths: Sequence[str], first: int, last: int, texts: Container[str]
) -> tuple[int, int]:
    """Return how many rows, and bytes of these columns, are in the parts of files that may have rows of some runs.

    A file with deleted rows is read whole. Of other columns the bytes count that are more than their values have.
    """
    whole = deletion_vectors.read_deletion_vectors(delta_table, {*paths})
    filesystem = delta_log.open_filesystem(delta_table)
    rows = size = 0
    for path in paths:
        with filesystem.open_input_file(path) as file:
            metadata = parquet_footers.decode_table_file(file, path)
            parquet_pages.refuse_overlap(metadata, file.size())
            for columns, count in _list_groups(metadata, first, last, is_whole=path in whole):
                rows += count
                for column in columns:
                    unpacked = parquet_pages.measure_column(file, column).unpacked
                    is_text = column.path_in_schema in texts
                    size += unpacked if is_text else max(0, unpacked - _MAX_VALUE * count)
    return rows, size


_MAX_VALUE = 16
"""The most bytes of a value that is no text."""


def _list_groups(
    metadata: pq.FileMetaData, first: int, last: int, *, is_whole: bool
) -> Iterator[tuple[list[pq.ColumnChunkMetaData], int]]:
    """Yield the columns and the number of rows of each row group that may have results of these runs; or of all."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(n) for n in range(group.num_columns)]
        runs = next((column.statistics for column in columns if column.path_in_schema == "run"), None)
        if is_whole or runs is None or not runs.has_min_max or (runs.max >= first and runs.min <= last):
            yield columns, group.num_rows


def _build_excess_error(table: Table, found: str) -> TableError:
    fix = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
    return TableError(f"{found}: no run writes so much", where=table.path, fix=fix)
