"""Check the rows of a table on the plane: tiling, periods, belief.

Without Spark: by DuckDB, and a sweep over each key.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from hindcast.common import plurals
from hindcast.contract.shapes import PERIODS
from hindcast.ops.verify import journal_checks
from hindcast.ops.verify.findings import Check, Finding, backup_advice, rederive_command, restore_command
from hindcast.ops.verify.journal_checks import RunMoments, is_rebuilt
from hindcast.plan.runs import Run, TableResult
from hindcast.runs import row_counts
from hindcast.runs.row_counts import RowCounts
from hindcast.store import arrow_reader, duckdb_reader
from hindcast.store.tables import Table


class Rectangle(NamedTuple):
    """A row on its key's plane; moments in microseconds, `FOREVER` for null."""

    start: int
    end: int
    system_from: int
    system_to: int


FOREVER = 2**63 - 1
RowPlace: TypeAlias = tuple[str | None, int | None, int | None]
"""The key (JSON) of a row, and the partition and offset of its record, as far as a row has them."""


def check_rows(
    table: Table, delta_table: DeltaTable, runs: list[Run], moments: RunMoments, *, hidden: bool
) -> Iterator[Finding]:
    """Yield what is wrong with the rows of a topic's or view's table. `hidden`: keys are sensitive, and not shown."""
    with duckdb_reader.open_engine() as engine:
        _load_rows(engine, table, delta_table)
        checker = _RowChecker(engine, table, delta_table, hidden=hidden)
        findings = [*checker.check_empty_periods(), *checker.check_system_periods(moments), *checker.check_belief()]
        yield from findings or list(checker.check_overlaps()) or checker.check_counts(runs)


def find_overlap(rows: Iterable[Rectangle]) -> tuple[Rectangle, Rectangle] | None:
    """Return the first two rectangles of a key that overlap, None if none do; `rows` are in the order of `system_from`.

    [0, 4) current in [1, 3)    [2, 9) current from 2 on    ->    both: at 2, both are current for [2, 4)
    """
    current: list[Rectangle] = []  # by start: they do not overlap
    ends: list[tuple[int, Rectangle]] = []
    for row in rows:
        while ends and ends[0][0] <= row.system_from:
            gone = heapq.heappop(ends)[1]
            del current[bisect_left(current, gone)]
        at = bisect_left(current, row)
        for other in current[max(at - 1, 0) : at + 1]:
            if other.start < row.end and row.start < other.end:
                return other, row
        insort(current, row)
        heapq.heappush(ends, (row.system_to, row))
    return None


def _load_rows(engine: duckdb.DuckDBPyConnection, table: Table, delta_table: DeltaTable) -> None:
    """Create `held`: of every row its place on the plane, and `_layout`, the belief by which its file is laid out."""
    columns = [*dict.fromkeys((*table.identity, *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"))]
    listed = ", ".join(f'"{column}"' for column in columns)
    if (
        "_belief" not in delta_table.metadata().partition_columns
    ):  # an adopted table (store_migration.py) has it as a column
        duckdb_reader.register_rows(engine, delta_table)
        engine.execute(f"CREATE TEMP TABLE held AS SELECT {listed}, _belief AS _layout FROM rows")  # noqa: S608
        return
    added = pa.table(delta_table.get_add_actions(flatten=True))
    beliefs = added.column("partition._belief").to_pylist() if added.num_rows else []
    parts: dict[str | None, list[str]] = {}
    for path, belief in zip(added.column("path").to_pylist(), beliefs, strict=True):
        parts.setdefault(belief, []).append(unquote(path))
    engine.register("part", arrow_reader.read_rows(delta_table, [], columns).read_all())
    engine.execute(f"CREATE TEMP TABLE held AS SELECT {listed}, '' AS _layout FROM part")  # noqa: S608
    for belief, paths in parts.items():
        engine.unregister("part")
        engine.register("part", arrow_reader.read_rows(delta_table, paths, columns))
        engine.execute(f"INSERT INTO held SELECT {listed}, ? FROM part", [belief])  # noqa: S608


class _RowChecker:
    """The rows of a table in DuckDB, and their checks."""

    def __init__(
        self, engine: duckdb.DuckDBPyConnection, table: Table, delta_table: DeltaTable, *, hidden: bool
    ) -> None:
        self._engine, self._table, self._delta_table = engine, table, delta_table
        columns = ", ".join(f'"{column}" := "{column}"' for column in table.key)
        self._key = "'***'" if hidden else f"to_json(struct_pack({columns}))" if table.key else "NULL"
        self._new_events = table.kind in ("events", "pairs")
        place = '"_partition", "_offset"' if self._new_events else "NULL, NULL"
        self._first = f"{self._key}, {place}"

    def check_empty_periods(self) -> Iterator[Finding]:
        """Yield periods that end before they start, or when they start."""
        yield from self._check_condition("tiling", "an empty system period", "systemTo <= systemFrom", closed=True)
        if self._table.kind == "versions":
            yield from self._check_condition("tiling", "an empty valid period", "validTo <= validFrom")
        if self._table.kind == "windows":  # a session of one event ends where it starts
            yield from self._check_condition("tiling", "a window that ends before it starts", "windowEnd < windowStart")

    def check_system_periods(self, moments: RunMoments) -> Iterator[Finding]:
        """Yield system periods that start or end where no run was."""
        for column in ("systemFrom", "systemTo"):
            query = f"SELECT DISTINCT {column} FROM held WHERE {column} IS NOT NULL"  # noqa: S608  # two names of ours
            unknown = [moment for (moment,) in self._engine.execute(query).fetchall() if not moments.has(moment)]
            if unknown:
                self._engine.register("unknown", pa.table({"moment": pa.array(unknown, pa.timestamp("us", "UTC"))}))
                condition = f"{column} IN (SELECT moment FROM unknown)"  # noqa: S608
                text = f"{column} {min(unknown).isoformat()}, which is the known-at of no run"
                yield from self._check_condition("system period", text, condition, closed=True)

    def check_belief(self) -> Iterator[Finding]:
        """Yield rows whose file is laid out by another belief than their periods give."""
        ended = "validTo IS NOT NULL" if self._table.kind == "versions" else "true"
        right = f"CASE WHEN systemTo IS NOT NULL THEN 'superseded' WHEN {ended} THEN 'past' ELSE 'open' END"
        yield from self._check_condition(
            "belief", "a _belief that its periods contradict", f"_layout IS DISTINCT FROM {right}", closed=True
        )

    def check_overlaps(self) -> Iterator[Finding]:
        """Yield rows of a key that are true and current at the same time."""
        if self._table.kind != "versions":
            identity = ", ".join(f'"{column}"' for column in self._table.identity)
            later = f"lead(systemFrom) OVER (PARTITION BY {identity} ORDER BY systemFrom, systemTo)"
            text = (
                f"SELECT {self._first} FROM held WHERE {_NONEMPTY_PERIOD} "  # noqa: S608
                f"QUALIFY {later} < coalesce(systemTo, 'infinity')"
            )
            rows = self._engine.execute(text).fetchall()
            if rows:
                count = plurals.format_count(len(rows), "row")
                yield self._build_finding("tiling", f"{count} twice at the same system time", rows[0], closed=True)
            return
        overlaps: list[tuple[str, tuple[Rectangle, Rectangle]]] = []
        for key, rectangles in self._read_planes():
            if pair := find_overlap(rectangles):
                overlaps.append((key, pair))
        for open_ in (True, False):
            some = [it for it in overlaps if all(r.end == r.system_to == FOREVER for r in it[1]) is open_]
            if not some:
                continue
            what = "two open rows" if open_ else "rows that overlap: true and current at the same time"
            yield self._build_finding(
                "tiling", f"{plurals.format_count(len(some), 'key')} with {what}", (some[0][0], None, None)
            )

    def _read_planes(self) -> Iterator[tuple[str, list[Rectangle]]]:
        """Yield the rectangles of each key that has several, in the order of systemFrom."""
        keys = ", ".join(f'"{column}"' for column in self._table.key) or "true"
        ends = ", ".join(f"coalesce(epoch_us({column}), {FOREVER})" for column in ("validTo", "systemTo"))
        text = f"""
            SELECT dense_rank() OVER (ORDER BY {keys}) AS nth, {self._key},
                   epoch_us(validFrom), epoch_us(systemFrom), {ends}
            FROM held WHERE {_NONEMPTY_PERIOD} AND coalesce(validTo > validFrom, true)
            QUALIFY count(*) OVER (PARTITION BY {keys}) > 1 ORDER BY nth, systemFrom
        """  # noqa: S608  # our own columns
        result = self._engine.execute(text)
        nth, key, plane = 0, "", list[Rectangle]()
        while rows := result.fetchmany(100_000):
            for number, name, start, known, end, ended in rows:
                if number != nth:
                    if plane:
                        yield key, plane
                    nth, key, plane = number, name, []
                plane.append(Rectangle(start, end, known, ended))
        if plane:
            yield key, plane

    def check_counts(self, runs: list[Run]) -> Iterator[Finding]:
        """Yield runs whose rows are not as many as their reports say, of runs since the table was created.

        For runs up to the moment that the table has noted (row_counts.py), the noted counts are compared instead.
        """
        noted, unsure = row_counts.read_row_counts(self._delta_table), journal_checks.find_unsettled_moment(runs)
        if noted is not None and (unsure is None or unsure <= noted.known_at):
            yield from self._check_noted_counts(noted)
        created = self._delta_table.metadata().created_time or 0
        since = max((run.number for run in runs if run.known_at.timestamp() * 1000 <= created), default=0)
        uncounted = max((at for at in (unsure, noted.known_at if noted else None) if at is not None), default=None)
        counts = {
            column: dict(self._engine.execute(f"SELECT {column}, count(*) FROM held GROUP BY 1").fetchall())  # noqa: S608
            for column in ("systemFrom", "systemTo")
        }
        wrong = []
        for run in runs:
            if run.state != "completed" or run.number < since or is_rebuilt(run):
                continue
            if uncounted is not None and run.known_at <= uncounted:
                continue
            result = run.results.get(self._table.name, TableResult())
            reports = ("opened", "systemFrom", result.opened), ("closed", "systemTo", result.closed)
            for what, column, reported in reports:
                count = counts[column].get(run.known_at, 0)
                if count != reported:
                    rows = plurals.format_count(reported, "row")
                    wrong.append(f"run {run.number} {what} {rows}, but {count:,} are there")
        if wrong:
            yield self._build_finding("published", "; ".join(wrong), closed=True)

    def _check_noted_counts(self, noted: RowCounts) -> Iterator[Finding]:
        """Yield a finding if there are not as many rows of runs up to a known-at as the table has noted."""
        wrong = []
        for column, what, expected in (("systemFrom", "known", noted.opened), ("systemTo", "closed", noted.closed)):
            query = (
                f"SELECT count(*) FROM held WHERE {column} <= ? AND NOT ({noted.uncounted_condition(self._table.kind)})"  # noqa: S608
            )
            count = self._engine.execute(query, [noted.known_at]).fetchall()[0][0]
            if count != expected:
                rows = plurals.format_count(expected, "row")
                wrong.append(f"{rows} {what} at {noted.known_at.isoformat()}, but {count:,} are there")
        if wrong:
            text = f"had {'; '.join(wrong)}, counting only rows that are kept"
            yield self._build_finding("published", text, closed=True)

    def _check_condition(self, check: Check, what: str, condition: str, *, closed: bool = False) -> Iterator[Finding]:
        """Yield one finding for all rows that meet a condition. `closed`: no later run may look at these rows again."""
        order = ", ".join(f'"{c}"' for c in (*PERIODS[self._table.kind], *self._table.key, "systemFrom"))
        text = f"SELECT {self._first}, count(*) OVER () FROM held WHERE {condition} ORDER BY {order} LIMIT 1"  # noqa: S608
        row = self._engine.execute(text).fetchone()
        if row:
            key, partition, offset, count = row
            text = f"{plurals.format_count(count, 'row')} with {what}"
            yield self._build_finding(check, text, (key, partition, offset), closed=closed)

    def _build_finding(
        self, check: Check, found: str, place: RowPlace = (None, None, None), *, closed: bool = False
    ) -> Finding:
        table = self._table
        fix = restore_command(table, self._delta_table)
        if fix is None:
            fix = backup_advice(table) if closed else rederive_command(table.pipeline, table.name)
        return Finding(check, table.name, found, fix, *place)


_NONEMPTY_PERIOD = "systemFrom < coalesce(systemTo, 'infinity')"
"""Rows whose system period is not empty; `check_empty_periods` finds the others."""
