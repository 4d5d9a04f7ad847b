"""The rows of a table on the plane: tiling, periods, belief. Without Spark: by DuckDB, and a sweep over each key."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from hindcast import words
from hindcast.building import counted
from hindcast.building.counted import Counted
from hindcast.contracts.shapes import PERIODS
from hindcast.delta import scan, widened
from hindcast.delta.tables import Table
from hindcast.planning.journal import Run
from hindcast.upkeep.verifying import standing
from hindcast.upkeep.verifying.findings import Finding, backup, rederive, restore
from hindcast.upkeep.verifying.standing import Moments, rebuilt


class Rectangle(NamedTuple):
    """A row on its key's plane; moments in microseconds, `FOREVER` for null."""

    start: int
    end: int
    system_from: int
    system_to: int


FOREVER = 2**63 - 1


def check(table: Table, found: DeltaTable, runs: list[Run], moments: Moments, *, hidden: bool) -> Iterator[Finding]:
    """What is wrong with the rows of a topic's or view's table. `hidden`: keys are sensitive, and are not told."""
    with scan.engine() as engine:
        _load(engine, table, found)
        held = _Held(engine, table, found, hidden=hidden)
        told = [*held.empty(), *held.orphaned(moments), *held.misplaced()]
        yield from told or list(held.overlapping()) or held.counted(runs)


def overlap(rows: Iterable[Rectangle]) -> tuple[Rectangle, Rectangle] | None:
    """The first two rectangles of a key that overlap, None if none do; `rows` are in the order of `system_from`.

    [0, 4) believed in [1, 3)    [2, 9) believed from 2 on    ->    both: at 2, of [2, 4) both are believed
    """
    believed: list[Rectangle] = []  # those believed at the moment, by start: they do not overlap
    ends: list[tuple[int, Rectangle]] = []
    for row in rows:
        while ends and ends[0][0] <= row.system_from:
            gone = heapq.heappop(ends)[1]
            del believed[bisect_left(believed, gone)]
        at = bisect_left(believed, row)
        for other in believed[max(at - 1, 0) : at + 1]:
            if other.start < row.end and row.start < other.end:
                return other, row
        insort(believed, row)
        heapq.heappush(ends, (row.system_to, row))
    return None


def _load(engine: duckdb.DuckDBPyConnection, table: Table, found: DeltaTable) -> None:
    """Makes `held`: of every row what tells its place on the plane, and the `belief` that its file is laid out by."""
    wanted = [*dict.fromkeys((*table.identity, *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"))]
    listed = ", ".join(f'"{column}"' for column in wanted)
    if "_belief" not in found.metadata().partition_columns:  # it was adopted (adopting.py): a column like any other
        scan.register(engine, found)
        engine.execute(f"CREATE TEMP TABLE held AS SELECT {listed}, _belief AS belief FROM rows")  # noqa: S608
        return
    added = pa.table(found.get_add_actions(flatten=True))
    beliefs = added.column("partition._belief").to_pylist() if added.num_rows else []
    parts: dict[str | None, list[str]] = {}
    for path, belief in zip(added.column("path").to_pylist(), beliefs, strict=True):
        parts.setdefault(belief, []).append(unquote(path))
    engine.register("part", widened.rows(found, [], wanted).read_all())
    engine.execute(f"CREATE TEMP TABLE held AS SELECT {listed}, '' AS belief FROM part")  # noqa: S608
    for belief, paths in parts.items():
        engine.unregister("part")
        engine.register("part", widened.rows(found, paths, wanted))
        engine.execute(f"INSERT INTO held SELECT {listed}, ? FROM part", [belief])  # noqa: S608


class _Held:
    """The rows of a table as DuckDB has them."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, table: Table, found: DeltaTable, *, hidden: bool) -> None:
        self._engine, self._table, self._found = engine, table, found
        columns = ", ".join(f'"{column}" := "{column}"' for column in table.key)
        self._key = "'***'" if hidden else f"to_json(struct_pack({columns}))" if table.key else "NULL"
        self._events = table.kind in ("events", "pairs")
        place = '"_partition", "_offset"' if self._events else "NULL, NULL"
        self._first = f"{self._key}, {place}"

    def empty(self) -> Iterator[Finding]:
        """Periods that end before they start, or at once."""
        yield from self._told("tiling", "an empty system period", "systemTo <= systemFrom", closed=True)
        if self._table.kind == "versions":
            yield from self._told("tiling", "an empty valid period", "validTo <= validFrom")
        if self._table.kind == "windows":  # a session of one event ends where it starts
            yield from self._told("tiling", "a window that ends before it starts", "windowEnd < windowStart")

    def orphaned(self, moments: Moments) -> Iterator[Finding]:
        """System periods that start or end where no run was."""
        for column in ("systemFrom", "systemTo"):
            asked = f"SELECT DISTINCT {column} FROM held WHERE {column} IS NOT NULL"  # noqa: S608  # two names of ours
            unknown = [moment for (moment,) in self._engine.execute(asked).fetchall() if not moments.has(moment)]
            if unknown:
                self._engine.register("unknown", pa.table({"moment": pa.array(unknown, pa.timestamp("us", "UTC"))}))
                condition = f"{column} IN (SELECT moment FROM unknown)"  # noqa: S608
                told = f"{column} {min(unknown).isoformat()}, which is the known-at of no run"
                yield from self._told("system period", told, condition, closed=True)

    def misplaced(self) -> Iterator[Finding]:
        """Rows whose file is laid out as of another belief than their periods tell."""
        ended = "validTo IS NOT NULL" if self._table.kind == "versions" else "true"
        right = f"CASE WHEN systemTo IS NOT NULL THEN 'superseded' WHEN {ended} THEN 'past' ELSE 'open' END"
        yield from self._told(
            "belief", "another _belief than its periods tell", f"belief IS DISTINCT FROM {right}", closed=True
        )

    def overlapping(self) -> Iterator[Finding]:
        """Rows of a key that are true and believed at the same time."""
        if self._table.kind != "versions":
            alike = ", ".join(f'"{column}"' for column in self._table.identity)
            later = f"lead(systemFrom) OVER (PARTITION BY {alike} ORDER BY systemFrom, systemTo)"
            text = f"SELECT {self._first} FROM held WHERE {_WHOLE} QUALIFY {later} < coalesce(systemTo, 'infinity')"  # noqa: S608
            rows = self._engine.execute(text).fetchall()
            if rows:
                told = f"{words.counted(len(rows), 'row')} believed twice at the same time"
                yield self._finding("tiling", told, rows[0], closed=True)
            return
        found: list[tuple[str, tuple[Rectangle, Rectangle]]] = []
        for key, rectangles in self._planes():
            if both := overlap(rectangles):
                found.append((key, both))
        for open_ in (True, False):
            some = [it for it in found if all(r.end == r.system_to == FOREVER for r in it[1]) is open_]
            if not some:
                continue
            what = "two open rows" if open_ else "rows that overlap: true and believed at the same time"
            yield self._finding("tiling", f"{words.counted(len(some), 'key')} with {what}", (some[0][0], None, None))

    def _planes(self) -> Iterator[tuple[str, list[Rectangle]]]:
        """The rectangles of each key that has several, in the order of systemFrom."""
        keys = ", ".join(f'"{column}"' for column in self._table.key) or "true"
        ends = ", ".join(f"coalesce(epoch_us({column}), {FOREVER})" for column in ("validTo", "systemTo"))
        text = f"""
            SELECT dense_rank() OVER (ORDER BY {keys}) AS nth, {self._key},
                   epoch_us(validFrom), epoch_us(systemFrom), {ends}
            FROM held WHERE {_WHOLE} AND coalesce(validTo > validFrom, true)
            QUALIFY count(*) OVER (PARTITION BY {keys}) > 1 ORDER BY nth, systemFrom
        """  # noqa: S608  # our own columns
        asked = self._engine.execute(text)
        nth, key, plane = 0, "", list[Rectangle]()
        while rows := asked.fetchmany(100_000):
            for number, name, start, known, end, ended in rows:
                if number != nth:
                    if plane:
                        yield key, plane
                    nth, key, plane = number, name, []
                plane.append(Rectangle(start, end, known, ended))
        if plane:
            yield key, plane

    def counted(self, runs: list[Run]) -> Iterator[Finding]:
        """Runs whose rows are not as many as their reports tell; only of those since the table was made.

        Of those up to what the table has noted (counted.py) there must be as many as it tells.
        """
        noted, unsure = counted.of(self._found), standing.unsettled(runs)
        if noted is not None and (unsure is None or unsure <= noted.known_at):
            yield from self._noted(noted)
        made = self._found.metadata().created_time or 0
        since = max((run.number for run in runs if run.known_at.timestamp() * 1000 <= made), default=0)
        uncounted = max((at for at in (unsure, noted.known_at if noted else None) if at is not None), default=None)
        counts = {
            column: dict(self._engine.execute(f"SELECT {column}, count(*) FROM held GROUP BY 1").fetchall())  # noqa: S608
            for column in ("systemFrom", "systemTo")
        }
        wrong = []
        for run in runs:
            if run.state != "completed" or run.number < since or rebuilt(run):
                continue
            if uncounted is not None and run.known_at <= uncounted:
                continue
            told = run.detail.get("tables", {}).get(self._table.name, {})
            for what, column in (("opened", "systemFrom"), ("closed", "systemTo")):
                there, wanted = counts[column].get(run.known_at, 0), told.get(what, 0)
                if there != wanted:
                    wrong.append(f"run {run.number} {what} {words.counted(wanted, 'row')}, and {there:,} are there")
        if wrong:
            yield self._finding("published", "; ".join(wrong), (None, None, None), closed=True)

    def _noted(self, noted: Counted) -> Iterator[Finding]:
        """Whether there are as many rows of runs up to a known-at as the table has noted."""
        wrong = []
        for column, what, wanted in (("systemFrom", "known", noted.opened), ("systemTo", "closed", noted.closed)):
            asked = f"SELECT count(*) FROM held WHERE {column} <= ? AND NOT ({noted.gone(self._table.kind)})"  # noqa: S608
            there = self._engine.execute(asked, [noted.known_at]).fetchall()[0][0]
            if there != wanted:
                wrong.append(
                    f"{words.counted(wanted, 'row')} {what} at {noted.known_at.isoformat()}, and {there:,} are there"
                )
        if wrong:
            told = f"had {'; '.join(wrong)}, of those that are kept"
            yield self._finding("published", told, (None, None, None), closed=True)

    def _told(self, check: str, what: str, condition: str, *, closed: bool = False) -> Iterator[Finding]:
        """One finding for all rows that meet a condition. `closed`: they may be rows that no run looks at again."""
        order = ", ".join(f'"{c}"' for c in (*PERIODS[self._table.kind], *self._table.key, "systemFrom"))
        text = f"SELECT {self._first}, count(*) OVER () FROM held WHERE {condition} ORDER BY {order} LIMIT 1"  # noqa: S608
        row = self._engine.execute(text).fetchone()
        if row:
            yield self._finding(check, f"{words.counted(row[3], 'row')} with {what}", row, closed=closed)

    def _finding(self, check: str, found: str, row: tuple[Any, ...], *, closed: bool = False) -> Finding:
        table = self._table
        mend = restore(table, self._found)
        if mend is None:
            mend = backup(table) if closed else rederive(table.pipeline, table.name)
        return Finding(check, table.name, found, mend, *row[:3])


_WHOLE = "systemFrom < coalesce(systemTo, 'infinity')"
"""Rows with a system period; others are told as empty."""
