"""The ledger: which offsets each run brought, and what became of them. A view of the logs, never a second truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from hindcast.delta import contents, tables
from hindcast.delta.tables import Table
from hindcast.kafka.members import Member, Members
from hindcast.planning import journal, plans
from hindcast.questions import literal
from hindcast.replay import forgotten, trimmed

FATES = (
    *("accepted", "expired", "malformed", "null_key", "no_timestamp", "time_skew"),
    *("no_change", "gone", "no_record"),
)
"""Every fate that an offset can have."""

_ANEW = """
    WITH moved AS (
        SELECT run, "partition", any_value(systemFrom) AS knownAt, min("offset") AS first, max("offset") AS last,
               was, fate, count(*) AS n
        FROM log WHERE ? IS NULL OR run = ? GROUP BY run, "partition", was, fate
    )
    SELECT run, "partition", any_value(knownAt), min(first), max(last),
           list({'was': was, 'fate': fate, 'n': n} ORDER BY was, fate)
    FROM moved GROUP BY run, "partition" ORDER BY run, "partition"
"""
_MEMBERS = """
    SELECT DISTINCT "partition", topic, topicPartition, topicId FROM (
        SELECT run, "partition", topic, topicPartition, topicId FROM log
        UNION ALL SELECT run, "partition", topic, topicPartition, topicId FROM trimmed
    ) WHERE ? IS NULL OR run = ? ORDER BY "partition"
"""
_DATED = """
    SELECT count(*) FROM log WHERE fate = 'accepted' AND "timestamp" < {moment} AND (? IS NULL OR run = ?)
"""
_PIECES = """
    WITH slim AS (
        SELECT run, "partition", "offset", offsets, fate, systemFrom, topicId, epoch,
               coalesce("timestamp" < streamTime, false) AS late,
               fate = 'accepted' AND "value" IS NULL AND {kept} AS without
        FROM log WHERE $1 IS NULL OR run = $2
    ), known AS (
        SELECT run, "partition", first, any_value("after") AS "after" FROM trimmed GROUP BY run, "partition", first
    ), placed AS (
        SELECT slim.*, known.first AS known, "offset" - coalesce(sum(offsets) OVER (
                   PARTITION BY slim.run, slim."partition", known.first ORDER BY "offset"
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), 0) AS piece
        FROM slim LEFT JOIN known ON slim.run = known.run AND slim."partition" = known."partition"
                                  AND "offset" >= known.first AND "offset" < known."after"
    ), counted AS (
        SELECT run, "partition", known, if(known IS NULL, piece, 0) AS piece, fate, systemFrom, topicId, epoch,
               "offset" AS first, "offset" + offsets AS "after", offsets AS n, late::INT AS late,
               without::INT AS without
        FROM placed
        UNION ALL
        SELECT run, "partition", first, 0, fate, systemFrom, topicId, epoch, first, "after", n, late, without
        FROM trimmed WHERE $1 IS NULL OR run = $2
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


@dataclass(frozen=True)
class Piece:
    """Contiguous offsets of a partition, [start, end), that one run brought, with the count of each fate.

    `late`: of records dated before the stream time they met. `without`: of accepted ones without a value.
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
    without: int


@dataclass(frozen=True)
class Anew:
    """How many records of a partition had another fate since a run: `moved` from one fate to another (fates.py)."""

    run: int
    partition: int
    known_at: datetime
    first: int
    last: int
    moved: dict[tuple[str, str], int]

    def became(self, fate: str) -> int:
        """How many have this fate since, without those that were requeued."""
        return sum(n for (was, now), n in self.moved.items() if now == fate and was != "malformed")

    @property
    def net(self) -> dict[str, int]:
        """What is added to the count of each fate, less than 0 where it is taken away."""
        added = Counter[str]()
        for (was, now), n in self.moved.items():
            added[now] += n
            added[was] -= n
        return dict(added)


def anew(entered: Table, run: int | None = None) -> list[Anew]:
    """What one run, or all have decided anew of a topic's records; by run and partition."""
    rows = _asked(entered, _ANEW, run)
    return [
        Anew(number, partition, known_at, first, last, {(it["was"], it["fate"]): it["n"] for it in moved})
        for number, partition, known_at, first, last, moved in rows
    ]


def pieces(log: Table, run: int | None = None) -> list[Piece]:
    """What a log has, or had before it was trimmed, of one run, or of all; by run, partition and offset.

    None where there is no log yet.
    """
    found = tables.opened(log)
    kept = f"{forgotten.MARK} IS NULL" if found is not None and forgotten.MARK in tables.types(found) else "true"
    return [Piece(*row) for row in _asked(log, _PIECES.format(kept=kept), run)]


def dated_before(log: Table, run: int, moment: datetime) -> int:
    """How many accepted records of a run are dated before a moment."""
    found = _asked(log, _DATED.format(moment=literal(moment)), run)
    return int(found[0][0]) if found else 0


def members(log: Table) -> dict[int, Member]:
    """The members of an entry with a pattern (members.py), as far as its log has offsets of them."""
    found = tables.opened(log)
    if found is None or "topicPartition" not in [field.name for field in found.schema().fields]:
        return {}
    return {number: Member(*of) for number, *of in _asked(log, _MEMBERS, None)}


def fates(warehouse: str, pipeline: str) -> pa.Table:
    """What every run of a pipeline brought: a row for each run, topic and piece of a partition, in this order.

    Columns: pipeline, run, state, knownAt, runId, topic (the name in the contract), member (of a topic by pattern, the
    topic and partition in Kafka: `orders-eu-0`), partition, first and last offset, `anew`, and a count for each fate. A
    run that brought nothing is a row with null from `topic` on. What a run decided anew follows what it brought, in
    rows of their own (`anew`): the first and last offset concerned, and what is added to each count, less than 0 where
    it is taken away. So the sums over all runs are what was decided last.
    """
    runs = journal.runs(warehouse, pipeline)
    topics = sorted({name for run in runs for name in run.plan["topics"]})
    known = {name: plans.members_of(runs, name) for name in topics}
    brought = [(name, piece) for name in topics for piece in pieces(tables.log(warehouse, pipeline, name))]
    decided = [(name, entry) for name in topics for entry in anew(tables.fates(warehouse, pipeline, name))]
    rows = []
    for run in runs:
        told = {
            "pipeline": pipeline,
            "run": run.number,
            "state": run.state,
            "knownAt": run.known_at,
            "runId": run.run_id,
        }
        own = [_told(name, known[name], piece) for name, piece in brought if piece.run == run.number]
        own += [_changed(name, known[name], entry) for name, entry in decided if entry.run == run.number]
        rows += [told | of for of in own] or [told]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
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


def _asked(log: Table, query: str, run: int | None) -> list[tuple[Any, ...]]:
    """The rows of a query over a table that is `log` to it, of one run or of all; none where there is no table yet."""
    found = tables.opened(log)
    if found is None:
        return []
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("log", contents.dataset(found))
        engine.register("trimmed", trimmed.counts(log))
        return engine.execute(query, [run, run]).fetchall()


def _place(topic: str, known: Members, partition: int) -> dict[str, object]:
    member = known.get(partition)
    return {"topic": topic, "member": member and f"{member.topic}-{member.partition}", "partition": partition}


def _told(topic: str, known: Members, piece: Piece) -> dict[str, object]:
    place = _place(topic, known, piece.partition) | {"first": piece.start, "last": piece.end - 1, "anew": False}
    return place | {fate: piece.fates.get(fate, 0) for fate in FATES}


def _changed(topic: str, known: Members, entry: Anew) -> dict[str, object]:
    place = _place(topic, known, entry.partition) | {"first": entry.first, "last": entry.last, "anew": True}
    return place | dict.fromkeys(FATES, 0) | entry.net
