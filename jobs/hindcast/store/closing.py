"""Closing rows of a table without a MERGE: they are looked for in the files that can have them, and nowhere else.

In a table with deletion vectors a closed row is marked; in one without, its file is written anew without it. Either way
it is written again as superseded. `commits.commit_change` is the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound, parse_micros
from hindcast.store import arrow_reader, deletion_vectors, delta_log, duckdb_reader, files, own_tables, tables
from hindcast.store.deletion_vectors import RowNumbers
from hindcast.store.files import DataFile, TableFile
from hindcast.store.tables import ARROW_TIMESTAMP, Table


class ClosingResult(NamedTuple):
    """Rows that are closed: their numbers in the files that have them, by path in Delta's log, and what was `written`.

    Written are these rows as they end and, in a table without deletion vectors, the other rows of their files.
    """

    numbers: dict[str, RowNumbers]
    written: list[DataFile]

    def count_rows(self) -> int:
        """Return how many rows are closed."""
        return sum(map(len, self.numbers.values()))


class _ClosedFile(NamedTuple):
    """A file with rows to close: the numbers of these, these rows as they end, and the others if it is written anew."""

    file: TableFile
    numbers: RowNumbers
    closed: pa.Table
    remaining: pa.Table | None


def find_candidate_files(delta_table: DeltaTable, table: Table, close: pa.Table) -> list[TableFile]:
    """Return the files of a table that can have the current rows to close, which `close` names by their identity."""
    start = tables.period_columns(table)[0]
    span = pc.min_max(close.column(start).cast(pa.int64())).as_py()
    bounds = [
        ColumnBound("systemTo", least=LAST_MOMENT, or_null=True),
        ColumnBound(start, least=parse_micros(span["min"]), most=parse_micros(span["max"])),
    ]
    candidates = {*duckdb_reader.find_candidate_files(delta_table, bounds)}
    listed = files.list_files(delta_table, start)
    return [file for file in listed if file.path in candidates and file.belief != "superseded"]


def write_closed_rows(
    delta_table: DeltaTable,
    table: Table,
    close: pa.Table,
    known_at: datetime | None,
    candidates: Sequence[TableFile],
    opened: Sequence[tuple[str | None, pa.Table]] = (),
) -> ClosingResult:
    """Find rows to close in some files and write them as they end, at `known_at`, in files together with `opened` rows.

    `close`: the identity and the start of each row, in the order of the starts; with a `known_at` of None also when it
    ends, `systemTo`. `opened`: as `files.write_files` takes them.
    """
    found = list(_find_closed_rows(delta_table, table, close, known_at, candidates))
    written = files.write_files(delta_table, files.combine_parts([*_list_parts(found), *opened]))
    return ClosingResult({it.file.path: it.numbers for it in found}, list(written))


def _find_closed_rows(
    delta_table: DeltaTable, table: Table, close: pa.Table, known_at: datetime | None, candidates: Sequence[TableFile]
) -> Iterator[_ClosedFile]:
    """Yield those of some files that have rows to close."""
    start = tables.period_columns(table)[0]
    starts = close.column(start).cast(pa.int64()).to_numpy()
    schema = pa.schema([f for f in pa.schema(delta_table.schema().to_arrow()) if f.name != "_belief"])
    filesystem = delta_log.open_filesystem(delta_table)
    own_tables.refuse_foreign(delta_table, [unquote(file.path) for file in candidates])
    marks_rows = tables.marks_rows(delta_table)
    marked = deletion_vectors.read_deletion_vectors(delta_table, {unquote(file.path) for file in candidates})
    for file in candidates:
        path = unquote(file.path)
        wanted = close.slice(*_find_slice(starts, file))
        dataset = arrow_reader.open_file(filesystem, path, schema)
        gone = marked.get(path, np.empty(0, np.uint64))
        numbers = _find_row_numbers(dataset, table, wanted, gone) if wanted.num_rows else gone[:0]
        if len(numbers):
            closed = _take_rows(dataset, numbers)
            if known_at is not None:
                ends: pa.Array | pa.ChunkedArray = pa.repeat(pa.scalar(known_at, ARROW_TIMESTAMP), closed.num_rows)
            else:
                ends = _find_ends(closed, wanted, table.closing_columns)
            closed = _end_rows(closed, ends)
            yield _ClosedFile(file, numbers, closed, None if marks_rows else _leave_out(dataset, numbers, gone))


def _find_slice(starts: np.ndarray, file: TableFile) -> tuple[int, int]:
    """Return the place and the number of those of the sorted starts that a file can have."""
    first, last = 0, len(starts)
    if file.least is not None and file.most is not None:  # statistics of moments end at the millisecond
        least, most = (pa.scalar(at, ARROW_TIMESTAMP).value for at in (file.least, file.most))
        if most < pa.scalar(LAST_MOMENT, ARROW_TIMESTAMP).value - 1000:
            first, last = np.searchsorted(starts, [least, most + 1000]).tolist()
    return first, last - first


def _find_row_numbers(dataset: ds.Dataset, table: Table, wanted: pa.Table, gone: RowNumbers) -> RowNumbers:
    """Return the numbers of the current rows of a file that are wanted, but not of those `gone`."""
    start = tables.period_columns(table)[0]
    columns = list(dict.fromkeys((*table.closing_columns, start, "systemTo")))
    rows = dataset.to_table(columns=columns)
    likely = pc.is_in(rows.column(start), wanted.column(start).combine_chunks())
    is_likely = pc.and_(likely, pc.is_null(rows.column("systemTo"))).to_numpy().copy()
    is_likely[gone.astype(np.int64)] = False
    numbers = np.flatnonzero(is_likely)
    if not len(numbers):
        return gone[:0]
    matching = find_matching_rows(rows.take(pa.array(numbers)), wanted, table.closing_columns)
    found: RowNumbers = np.sort(numbers[matching]).astype(np.uint64)
    return found


def find_matching_rows(rows: pa.Table, wanted: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Return a mask of the rows that equal one of `wanted` in these columns; nulls are equal."""
    matching = np.zeros(rows.num_rows, bool)
    numbered = rows.select(columns).append_column("#", pa.array(np.arange(rows.num_rows)))
    names = map(duckdb_reader.quote_name, columns)
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM s.{name}" for name in names)
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("numbered", numbered)
        engine.register("wanted", wanted)
        numbers = engine.execute(f'SELECT r."#" FROM numbered r SEMI JOIN wanted s ON {same}').fetchnumpy()  # noqa: S608  # quoted
    matching[numbers["#"]] = True
    return matching


def _take_rows(dataset: ds.Dataset, numbers: RowNumbers) -> pa.Table:
    """Return some rows of a file, read from those of its row groups that have them."""
    (fragment,) = dataset.get_fragments()
    ends = np.cumsum([group.num_rows for group in fragment.row_groups])
    groups = np.unique(np.searchsorted(ends, numbers.astype(np.int64), side="right")).tolist()
    sizes = np.diff(ends, prepend=0)
    skipped = np.cumsum(np.where(np.isin(np.arange(len(sizes)), groups), 0, sizes))
    places = numbers.astype(np.int64) - skipped[np.searchsorted(ends, numbers.astype(np.int64), side="right")]
    rows = fragment.subset(row_group_ids=groups).to_table(schema=dataset.schema)
    return rows.take(pa.array(places))


def _leave_out(dataset: ds.Dataset, numbers: RowNumbers, gone: RowNumbers) -> pa.Table:
    rows = dataset.to_table()
    remaining = np.ones(rows.num_rows, bool)
    remaining[np.concatenate([numbers, gone]).astype(np.int64)] = False
    return rows.filter(pa.array(remaining))


def _find_ends(rows: pa.Table, wanted: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Return when each of some rows ends, which the one of `wanted` says that equals it in these columns."""
    numbered = rows.select(columns).append_column("#", pa.array(np.arange(rows.num_rows)))
    names = map(duckdb_reader.quote_name, columns)
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM s.{name}" for name in names)
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("numbered", numbered)
        engine.register("wanted", wanted)
        query = f'SELECT s."systemTo" FROM numbered r JOIN wanted s ON {same} ORDER BY r."#"'  # noqa: S608  # quoted
        return engine.sql(query).to_arrow_table().column(0).cast(ARROW_TIMESTAMP)


def _end_rows(rows: pa.Table, ends: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows that end at some moments on the system axis."""
    place = rows.schema.get_field_index("systemTo")
    return rows.set_column(place, rows.schema.field(place), ends)


def _list_parts(closed: Sequence[_ClosedFile]) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the remaining and the closed rows as `files.write_files` takes them."""
    yield from ((it.file.belief, it.remaining) for it in closed if it.remaining is not None)
    yield from (("superseded", it.closed) for it in closed)
