"""The ledger: which offsets each run ingested, and their fates. A view of the logs, never a second truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import pyarrow as pa

from hindcast.bitemporal.fates import FATES
from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import PlatformError
from hindcast.common.json_values import StoredObject
from hindcast.ingest import erasure_marks, trim_ledger
from hindcast.ingest.requeued_records import requeued_sql
from hindcast.kafka.topic_patterns import MemberPartition, MemberPartitions
from hindcast.plan import journal
from hindcast.plan.runs import last_members
from hindcast.store import duckdb_reader, odd_tables, tables
from hindcast.store.duckdb_reader import EngineFactory
from hindcast.store.tables import Table

_REVISIONS = """
    WITH moved AS (
        SELECT run, "partition", any_value(systemFrom) AS knownAt, min("offset") AS first, max("offset") AS last,
               was, fate, count(*) AS n, count(*) FILTER ({requeued}) AS requeued
        FROM rows WHERE $1 IS NULL OR run BETWEEN $1 AND $2 GROUP BY run, "partition", was, fate
    )
    SELECT run, "partition", any_value(knownAt), min(first), max(last),
           list({{'was': was, 'fate': fate, 'n': n, 'requeued': requeued}} ORDER BY was, fate)
    FROM moved GROUP BY run, "partition" ORDER BY run, "partition"
"""
_MEMBERS = """
    SELECT DISTINCT "partition", topic, topicPartition, topicId FROM (
        SELECT run, "partition", topic, topicPartition, topicId FROM rows
        UNION ALL SELECT run, "partition", topic, topicPartition, topicId FROM trimmed
    ) WHERE $1 IS NULL OR run BETWEEN $1 AND $2 ORDER BY "partition"
"""
_DATED = """
    SELECT count(*) FROM rows
    WHERE fate = 'accepted' AND "timestamp" < {moment} AND ($1 IS NULL OR run BETWEEN $1 AND $2)
"""
_BLOCK = 65_536
"""So many offsets are counted together, so that a query over millions of records keeps only their blocks."""

_PIECES = """
    WITH known AS (
        SELECT run, "partition", first, any_value("after") AS "after" FROM trimmed GROUP BY run, "partition", first
    ), slim AS NOT MATERIALIZED (
        SELECT rows.run, rows."partition", coalesce(known.first, -1) AS known, "offset" // {block} AS block, "offset",
               offsets, {fate} AS fate, systemFrom, left(topicId, {most}) AS topicId, epoch,
               coalesce("timestamp" < streamTime, false) AS late,
               fate = 'accepted' AND "value" IS NULL AND {not_forgotten} AS without
        FROM rows LEFT JOIN known ON rows.run = known.run AND rows."partition" = known."partition"
                                  AND "offset" >= known.first AND "offset" < known."after"
        WHERE $1 IS NULL OR rows.run BETWEEN $1 AND $2
    ), blocks AS (
        SELECT run, "partition", known, block, fate, any_value(systemFrom) AS systemFrom, any_value(topicId) AS topicId,
               any_value(epoch) AS epoch, min("offset") AS first, max("offset" + offsets) AS "after", sum(offsets) AS n,
               sum(offsets::HUGEINT * "offset" + offsets::HUGEINT * (offsets - 1) // 2) AS places,
               sum(late::INT) AS late, sum(without::INT) AS without
        FROM slim GROUP BY run, "partition", known, block, fate
    ), whole AS (
        SELECT run, "partition", known, block, min(first) AS first, sum(n) AS n
        FROM blocks GROUP BY run, "partition", known, block
        HAVING sum(n) = max("after") - min(first) AND sum(places) = sum(n) * min(first) + sum(n) * (sum(n) - 1) // 2
    ), units AS (
        SELECT blocks.* EXCLUDE (first, places, block), blocks.first, whole.first AS unit
        FROM blocks JOIN whole USING (run, "partition", known, block)
        UNION ALL BY NAME
        SELECT * EXCLUDE (block, "offset", offsets, late, without), "offset" AS first, "offset" + offsets AS "after",
               offsets AS n, late::INT AS late, without::INT AS without, "offset" AS unit
        FROM slim ANTI JOIN whole USING (run, "partition", known, block)
    ), spans AS (
        SELECT run, "partition", known, unit, sum(n) AS n FROM units GROUP BY run, "partition", known, unit
    ), placed AS (
        SELECT * EXCLUDE (n), unit - coalesce(sum(n) OVER (
                   PARTITION BY run, "partition", known ORDER BY unit ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), 0) AS piece
        FROM spans
    ), counted AS (
        SELECT units.* EXCLUDE (unit), if(known = -1, piece, 0) AS piece
        FROM units JOIN placed USING (run, "partition", known, unit)
        UNION ALL BY NAME
        SELECT run, "partition", first AS known, 0 AS piece, fate, systemFrom, topicId, epoch, first, "after", n, late,
               without
        FROM trimmed WHERE $1 IS NULL OR run BETWEEN $1 AND $2
    ), summed AS (
        SELECT run, "partition", known, piece, fate, any_value(systemFrom) AS knownAt, any_value(topicId) AS topicId,
               any_value(epoch) AS epoch, min(first) AS first, max("after") AS "after", sum(n) AS n, sum(late) AS late,
               sum(without) AS without
        FROM counted GROUP BY run, "partition", known, piece, fate
    )
    SELECT run, "partition", any_value(knownAt), any_value(topicId), any_value(epoch), min(first), max("after"),
           map(list(fate ORDER BY fate), list(n::BIGINT ORDER BY fate)), sum(late)::BIGINT, sum(without)::BIGINT
    FROM summed GROUP BY run, "partition", known, piece ORDER BY run, "partition", min(first)
"""
"""The contiguous ranges of offsets: those of blocks that have all between their ends once, and of rows elsewhere."""

_KNOWN_FATE = f"if(fate IN ({', '.join(map(sql_literal, FATES))}), fate, 'unknown')"
"""The fate of a record in the log, however long the text is that somebody else wrote there."""

R = TypeVar("R")


@dataclass(frozen=True)
class IngestedRange:
    """Contiguous offsets of a partition, [start, end), that one run ingested, with the count of each fate.

    `late`: of records dated before the stream time they met. `without_value`: of accepted ones without a value.
    """

    run: int
    partition: int
    known_at: datetime
    topic_id: str
    epoch: int
    start: int
    end: int
    fates: dict[str, int]
    late: int
    without_value: int


@dataclass(frozen=True)
class FateRevision:
    """How many records of a partition `moved` from one fate to another in a run (fate_revisions.py).

    `requeued`: how many of them because of a requeue.
    """

    run: int
    partition: int
    known_at: datetime
    first: int
    last: int
    moved: dict[tuple[str, str], int]
    requeued: dict[tuple[str, str], int]

    def count_became(self, fate: str) -> int:
        """Return how many records got this fate, without those that were requeued."""
        return sum(n - self.requeued[step] for step, n in self.moved.items() if step[1] == fate)

    @property
    def net_counts(self) -> dict[str, int]:
        """The change of the count of each fate; negative where it falls."""
        added = Counter[str]()
        for (was, now), n in self.moved.items():
            added[now] += n
            added[was] -= n
        return dict(added)


def read_fate_revisions(entered: Table, run: int | None = None) -> list[FateRevision]:
    """Return the revised fates of a topic's records, of one run or of all; by run and partition."""

    def build(
        run: int, partition: int, known_at: datetime, first: int, last: int, steps: list[StoredObject]
    ) -> FateRevision:
        moved, requeued = ({(s["was"], s["fate"]): s[count] for s in steps} for count in ("n", "requeued"))
        return FateRevision(run, partition, known_at, first, last, moved, requeued)

    delta_table = tables.open_table(entered)
    columns = [field.name for field in delta_table.schema().fields] if delta_table is not None else []
    return _query_table(entered, _REVISIONS.format(requeued=requeued_sql(columns)), run, build)


def read_ingested_ranges(
    log: Table,
    run: int | None = None,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    most: int | None = None,
    until: int | None = None,
) -> list[IngestedRange]:
    """Return the ranges that a log has, or had before a trim, of one run or of all; by run, partition and offset.

    Empty if there is no log yet. `open_engine` opens what reads them; PlatformError if there are more than `most`.
    `until`: of all runs from `run` to this one.
    """
    not_forgotten = erasure_marks.not_forgotten_sql(tables.open_table(log))
    query = _PIECES.format(not_forgotten=not_forgotten, fate=_KNOWN_FATE, most=trim_ledger.MAX_TEXT, block=_BLOCK)
    return _query_table(log, query, run, IngestedRange, open_engine, most, until)


def count_dated_before(log: Table, run: int, moment: datetime) -> int:
    """Return how many accepted records of a run are dated before a moment."""
    return sum(_query_table(log, _DATED.format(moment=sql_literal(moment)), run, int))


def read_members(log: Table) -> dict[int, MemberPartition]:
    """Return the members of an entry with a pattern (topic_patterns.py), as far as its log has offsets of them."""
    delta_table = tables.open_table(log)
    if delta_table is None or "topicPartition" not in [field.name for field in delta_table.schema().fields]:
        return {}
    return dict(_query_table(log, _MEMBERS, None, lambda number, *member: (number, MemberPartition(*member))))


def read_ledger(warehouse: str, pipeline: str) -> pa.Table:
    """Return what every run of a pipeline ingested: a row for each run, topic and piece of a partition, in this order.

    Columns: pipeline, run, state, knownAt, runId, topic (the name in the contract), member (for a pattern, the topic
    and partition in Kafka: `orders-eu-0`), partition, first and last offset, `anew`, and a count for each fate. A run
    that ingested nothing is a row with null from `topic` on. Fates that a run revised follow in rows of their own, with
    `anew` true (`read_fate_revisions`): the first and last offset concerned, and the change of each count, negative
    where it falls. So the sums over all runs are the latest fates.
    """
    runs = journal.read_runs(warehouse, pipeline)
    topics = sorted({name for run in runs for name in run.plan.topics})
    known = {name: last_members(runs, name) for name in topics}
    ingested = [
        (name, piece) for name in topics for piece in read_ingested_ranges(tables.log_table(warehouse, pipeline, name))
    ]
    revised = [
        (name, entry) for name in topics for entry in read_fate_revisions(tables.fates_table(warehouse, pipeline, name))
    ]
    rows = []
    for run in runs:
        common = {
            "pipeline": pipeline,
            "run": run.number,
            "state": run.state,
            "knownAt": run.known_at,
            "runId": run.run_id,
        }
        places = [_range_row(name, known[name], piece) for name, piece in ingested if piece.run == run.number]
        places += [_revision_row(name, known[name], entry) for name, entry in revised if entry.run == run.number]
        rows += [common | place for place in places] or [common]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("run", pa.int64()),
        ("state", pa.string()),
        ("knownAt", pa.timestamp("us", "UTC")),
        ("runId", pa.string()),
        ("topic", pa.string()),
        ("member", pa.string()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("anew", pa.bool_()),
        *((fate, pa.int64()) for fate in FATES),
    ]
)


def _query_table(
    log: Table,
    query: str,
    run: int | None,
    build: Callable[..., R],
    open_engine: EngineFactory = duckdb_reader.open_engine,
    most: int | None = None,
    until: int | None = None,
) -> list[R]:
    """Return what `build` makes of each row of a query over a table, `rows`, and what was `trimmed` of it; of one run,
    of those `until` another one, or of all; [] without the table. PlatformError if there are more than `most` rows.
    """
    delta_table = tables.open_table(log)
    if delta_table is None:
        return []
    limit = None if most is None else most + 1
    with odd_tables.refuse_unreadable_rows(trim_ledger.trim_table(log)):
        trimmed = trim_ledger.read_trim_counts(log, run if until is None else None, open_engine, limit)
    with odd_tables.refuse_unreadable_rows(log), open_engine(delta_table) as engine:
        last = run if until is None else until
        duckdb_reader.register_rows(engine, delta_table, [] if run is None else [ColumnBound("run", run, last)])
        engine.register("trimmed", trimmed)
        found = engine.execute(query if limit is None else f"{query} LIMIT {limit}", [run, last]).fetchall()
    if limit is not None and limit in (len(found), trimmed.num_rows):
        excess = f"has more than {most:,} ranges of offsets of a run, which is more than a page reads"
        raise PlatformError(excess, where=log.path, fix=f"hindcast ledger {log.pipeline} lists them")
    return [build(*row) for row in found]


def _ledger_place(topic: str, known: MemberPartitions, partition: int) -> dict[str, ColumnValue]:
    member = known.get(partition)
    return {"topic": topic, "member": member and f"{member.topic}-{member.partition}", "partition": partition}


def _range_row(topic: str, known: MemberPartitions, piece: IngestedRange) -> dict[str, ColumnValue]:
    place = _ledger_place(topic, known, piece.partition) | {"first": piece.start, "last": piece.end - 1, "anew": False}
    return place | {fate: piece.fates.get(fate, 0) for fate in FATES}


def _revision_row(topic: str, known: MemberPartitions, entry: FateRevision) -> dict[str, ColumnValue]:
    place = _ledger_place(topic, known, entry.partition) | {"first": entry.first, "last": entry.last, "anew": True}
    return place | dict.fromkeys(FATES, 0) | entry.net_counts
