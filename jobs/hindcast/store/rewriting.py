"""Closing or removing a few rows of a table without a MERGE, by rewriting their files without them.

A MERGE by Spark takes seconds, however few its rows are. This is for tables without deletion vectors: from
`tables.LARGE_ROWS` rows on tables have them, and closing a row does not rewrite its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from numpy.typing import NDArray

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound
from hindcast.common.session import FEW_ROWS
from hindcast.store import arrow_reader, duckdb_reader, files, tables
from hindcast.store.tables import ARROW_TIMESTAMP, Table

Rewriter = Callable[[pa.Table], pa.Table]
"""Returns what the rows of a file become, which have all columns but the partition's; what it got, if they stay
as they are.
"""


class RewrittenFile(NamedTuple):
    """A file of a table with rows to close: its path, size and `_belief`, the rows that stay, and the closed ones."""

    path: str
    size: int
    belief: str | None
    remaining: pa.Table
    closed: pa.Table


def find_files_to_rewrite(
    delta_table: DeltaTable, table: Table, close: pa.Table, known_at: datetime
) -> list[RewrittenFile] | None:
    """Return the files of a table with the current rows to close, which `close` names by their identity, at `known_at`.

    None if that needs a MERGE: the files are large, or not all rows are found.
    """
    start = tables.period_columns(table)[0]
    span = pc.min_max(close.column(start)).as_py()
    if span["min"] is None:
        return None
    bounds = [
        ColumnBound("systemTo", least=LAST_MOMENT, or_null=True),
        ColumnBound(start, least=span["min"], most=span["max"]),
    ]
    candidates = {*duckdb_reader.find_candidate_files(delta_table, bounds)}
    added = pa.table(delta_table.get_add_actions(flatten=True)).select(["path", "size_bytes", "partition._belief"])
    selected = [
        file for file in added.to_pylist() if file["path"] in candidates and file["partition._belief"] != "superseded"
    ]
    if sum(file["size_bytes"] for file in selected) > files.SMALL_BYTES:
        return None
    split = [_split_file(delta_table, table, close, known_at, *file.values()) for file in selected]
    affected = [file for file in split if file.closed.num_rows]
    return affected if sum(file.closed.num_rows for file in affected) == close.num_rows else None


def rewrite_small_table(delta_table: DeltaTable, rewrite: Rewriter) -> list[RewrittenFile] | None:
    """Return the files of a table whose rows do not stay as they are, with what they become; None if it is large."""
    partitions = delta_table.metadata().partition_columns
    added = pa.table(delta_table.get_add_actions(flatten=True)).select(
        ["path", "size_bytes", *(f"partition.{name}" for name in partitions)]
    )
    listed = [(*file.values(), None)[:3] for file in added.to_pylist()]
    if sum(size for _, size, _ in listed) > files.SMALL_BYTES:
        return None
    rewritten = []
    for path, size, belief in listed:
        before = arrow_reader.read_rows(delta_table, [path]).read_all()
        if (after := rewrite(before)) is not before:
            rewritten.append(RewrittenFile(path, size, belief, after, before.slice(0, 0)))
    return rewritten


def _split_file(
    delta_table: DeltaTable, table: Table, close: pa.Table, known_at: datetime, path: str, size: int, belief: str
) -> RewrittenFile:
    rows = arrow_reader.read_rows(delta_table, [path]).read_all()
    closed = find_matching_rows(rows, close, table.identity) & pc.is_null(rows.column("systemTo")).to_numpy()
    ended = rows.filter(pa.array(closed))
    place = ended.schema.get_field_index("systemTo")
    ends = pa.repeat(pa.scalar(known_at, ARROW_TIMESTAMP), ended.num_rows)
    ended = ended.set_column(place, ended.schema.field(place), ends)
    return RewrittenFile(path, size, belief, rows.filter(pa.array(~closed)), ended)


def find_matching_rows(rows: pa.Table, wanted: pa.Table, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the rows that equal one of `wanted` in these columns; nulls are equal."""
    matching = np.zeros(rows.num_rows, bool)
    numbered = rows.select(columns).append_column("#", pa.array(np.arange(rows.num_rows)))
    names = map(duckdb_reader.quote_name, columns)
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM s.{name}" for name in names)
    with duckdb_reader.open_engine() as engine:
        engine.register("numbered", numbered)
        engine.register("wanted", wanted)
        numbers = engine.execute(f'SELECT r."#" FROM numbered r SEMI JOIN wanted s ON {same}').fetchnumpy()  # noqa: S608  # quoted
    matching[numbers["#"]] = True
    return matching


def combine_parts(
    rewritten: list[RewrittenFile], opened: list[tuple[str | None, pa.Table]]
) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the remaining, closed and opened rows as `files.write_files` takes them, with small parts combined."""
    rows: list[tuple[str | None, pa.Table]] = [
        *((file.belief, file.remaining) for file in rewritten),
        *(("superseded", file.closed) for file in rewritten),
        *opened,
    ]
    for belief in dict.fromkeys(belief for belief, _ in rows):
        parts = [part for own_belief, part in rows if own_belief == belief]
        yield from ((belief, part) for part in parts if part.num_rows > FEW_ROWS)
        small = [part for part in parts if part.num_rows <= FEW_ROWS]
        if small:
            yield belief, pa.concat_tables(small)
