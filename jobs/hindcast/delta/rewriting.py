"""Closing a few rows of a table without a MERGE: the files that they lie in are written anew without them.

A MERGE of Spark's takes seconds, however few its rows are. This is for tables whose rows no deletion vectors mark: from
`tables.LARGE` rows on they do, and closing costs what is closed, not what lies beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from numpy.typing import NDArray

from hindcast.delta import files, scan, tables, widened
from hindcast.delta.tables import MOMENT, Table
from hindcast.questions import END, Bound
from hindcast.session import FEW


class Touched(NamedTuple):
    """A file of a table with rows to close: its path, size and `_belief`, the rows that stay, and the closed ones."""

    path: str
    size: int
    belief: str
    kept: pa.Table
    closed: pa.Table


def touched(found: DeltaTable, table: Table, close: pa.Table, known_at: datetime) -> list[Touched] | None:
    """The files of a table with the believed rows that `close` names by their identity. Those end at `known_at`.

    None where that is a MERGE's work: the files are large, or not all rows are found.
    """
    start = tables.period(table)[0]
    span = pc.min_max(close.column(start)).as_py()
    if span["min"] is None:
        return None
    bounds = [Bound("systemTo", least=END, or_null=True), Bound(start, least=span["min"], most=span["max"])]
    wanted = {*scan.holding(found, bounds)}
    added = (
        pa.table(found.get_add_actions(flatten=True)).select(["path", "size_bytes", "partition._belief"]).to_pylist()
    )
    some = [it for it in added if it["path"] in wanted and it["partition._belief"] != "superseded"]
    if sum(it["size_bytes"] for it in some) > files.LIGHT:
        return None
    told = [_touched(found, table, close, known_at, *it.values()) for it in some]
    met = [it for it in told if it.closed.num_rows]
    return met if sum(it.closed.num_rows for it in met) == close.num_rows else None


def _touched(
    found: DeltaTable, table: Table, close: pa.Table, known_at: datetime, path: str, size: int, belief: str
) -> Touched:
    rows = widened.rows(found, [path]).read_all()
    closed = _like(rows, close, table.identity) & pc.is_null(rows.column("systemTo")).to_numpy()
    gone = rows.filter(pa.array(closed))
    place = gone.schema.get_field_index("systemTo")
    ended = pa.repeat(pa.scalar(known_at, MOMENT), gone.num_rows)
    gone = gone.set_column(place, gone.schema.field(place), ended)
    return Touched(path, size, belief, rows.filter(pa.array(~closed)), gone)


def _like(rows: pa.Table, some: pa.Table, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows are like one of some others in these columns; nulls are alike."""
    found = np.zeros(rows.num_rows, bool)
    numbered = rows.select(columns).append_column("#", pa.array(np.arange(rows.num_rows)))
    same = " AND ".join(f"r.{it} IS NOT DISTINCT FROM s.{it}" for it in map(scan.quoted, columns))
    with scan.engine() as engine:
        engine.register("numbered", numbered)
        engine.register("wanted", some)
        met = engine.execute(f'SELECT r."#" FROM numbered r SEMI JOIN wanted s ON {same}').fetchnumpy()  # noqa: S608  # quoted
    found[met["#"]] = True
    return found


def parts(some: list[Touched], opened: list[tuple[str | None, pa.Table]]) -> Iterator[tuple[str | None, pa.Table]]:
    """What stays of files, what was closed and what is opened, as `files.write` takes them: small ones as one."""
    rows: list[tuple[str | None, pa.Table]] = [
        *((it.belief, it.kept) for it in some),
        *(("superseded", it.closed) for it in some),
        *opened,
    ]
    for belief in dict.fromkeys(belief for belief, _ in rows):
        own = [part for its, part in rows if its == belief]
        yield from ((belief, part) for part in own if part.num_rows > FEW)
        small = [part for part in own if part.num_rows <= FEW]
        if small:
            yield belief, pa.concat_tables(small)
