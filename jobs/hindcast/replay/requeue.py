"""Requeue: malformed records are decoded anew under the contract in force, in a run that brings nothing else.

Their bytes are in the log. What decodes now gets a new fate, judged at its own offset's stream time as the log has it,
and enters its table as a late record, with the run's known-at. What still does not, stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import duckdb
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.contracts.sensitive import NOT_TOLD
from hindcast.corrected import order, valid_time
from hindcast.delta import contents, tables
from hindcast.errors import QueryError, nearest
from hindcast.formats import limits
from hindcast.formats.decode import decode
from hindcast.kafka import members
from hindcast.planning import plans
from hindcast.planning.plans import Plan
from hindcast.replay import forgotten, logs, redating, schemas
from hindcast.settings import settings

SHOWN = 5
"""Of so many records that still do not decode the reason is told."""


def selection(
    contract: Contract,
    topic: str | None = None,
    reason: str | None = None,
    partition: int | None = None,
    offsets: Sequence[int] = (),
) -> dict[str, Any]:
    """Which malformed records to requeue, as a plan keeps it (`Plan.requeues`): all if nothing is given.

    `topic`: of the contract, or of Kafka; `partition`: of a topic in Kafka. `reason`: a part of what the log says is
    wrong with them. QueryError for what names nothing.
    """
    of = topic if topic is not None and topic not in contract.topics else None
    if of is not None and (topic := contract.entry(of)) is None:
        raise QueryError(f"no topic '{of}'", where=contract.pipeline, mend=nearest(of, contract.topics))
    if (offsets and partition is None) or (partition is not None and topic is None and len(contract.topics) > 1):
        asked = "hindcast requeue PIPELINE --topic T --partition P --offset O"
        raise QueryError("an offset is one of a partition, a partition one of a topic", mend=asked)
    names = [topic] if topic else list(contract.topics)
    if partition is not None and of is None and contract.topics[names[0]].pattern is not None:
        found = f"a partition is one of a topic, and {names[0]} is a pattern of topics"
        raise QueryError(found, mend="name the topic as Kafka does: hindcast requeue PIPELINE --topic orders-eu ...")
    told = {"topics": names, "of": of, "reason": reason, "partition": partition}
    return {name: it for name, it in {**told, "offsets": sorted(set(offsets))}.items() if it not in (None, [])}


def waiting(warehouse: str, contract: Contract, asked: Mapping[str, Any]) -> dict[str, int]:
    """How many malformed records each topic has that are asked for; topics without any are left out."""
    found = {}
    for name in asked["topics"]:
        log = tables.opened(tables.log(warehouse, contract.pipeline, name))
        entered = tables.opened(tables.fates(warehouse, contract.pipeline, name))
        if log is None:
            continue
        with duckdb.connect() as engine:
            engine.register("brought", contents.dataset(log))
            kept = f"{forgotten.MARK} IS NULL" if forgotten.MARK in tables.types(log) else "true"
            engine.execute(f"CREATE VIEW log AS SELECT * FROM brought WHERE {kept}")  # noqa: S608  # our own columns
            of = "log"
            if entered is not None:
                engine.register("entered", contents.dataset(entered))
                of = _DECIDED
            row = engine.execute(
                f"SELECT count(*) FROM {of} WHERE fate = 'malformed' "  # noqa: S608  # our own columns
                'AND ($reason IS NULL OR contains(reason, $reason)) AND ($all OR list_contains($some, "partition")) '
                'AND (len($offsets) = 0 OR list_contains($offsets, "offset"))',
                {
                    "reason": asked.get("reason"),
                    "all": (some := _partitions(warehouse, contract, name, asked)) is None,
                    "some": some or [],
                    "offsets": asked.get("offsets", []),
                },
            ).fetchone()
        if row and row[0]:
            found[name] = int(row[0])
    return found


def decided(
    spark: SparkSession,
    contract: Contract,
    name: str,
    asked: Mapping[str, Any],
    known_at: datetime,
    todo: Plan | None = None,
) -> DataFrame:
    """The malformed records of a topic that are asked for, as rows of `fates/<topic>` without the run's columns.

    `fate` is what they are by the contract in force; malformed where they still do not decode. `todo`: the run that
    decides it, which stores the schemas that they name.
    """
    topic, warehouse = contract.topics[name], settings().warehouse
    rows = forgotten.remembered(redating.log(spark, contract, name)).where("fate = 'malformed'")
    some = _partitions(warehouse, contract, name, asked)
    rows = rows.where(_asked(asked, some))
    own = F.coalesce("recordTimestamp", "timestamp") if "recordTimestamp" in rows.columns else F.col("timestamp")
    bytes_ = rows.drop("reason", "was").withColumns(
        {"_rawKey": F.col("key"), "_rawValue": F.col("value"), "timestamp": own}
    )
    span, writers = valid_time.span(topic, known_at), schemas.of(contract, name, bytes_, todo)
    decoded = limits.within(bytes_, topic, lambda some: decode(some, topic, *span, writers))
    taken = decoded.withColumn("fate", F.coalesce("fate", F.lit("accepted")))
    judged = order.judge_again(taken, logs.retention(topic))
    return judged.select(
        *("partition", "offset", "timestamp"),
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        F.lit("malformed").alias("was"),
        "fate",
        F.coalesce("reason", F.when(F.col("fate") == "expired", logs.too_late(topic))).alias("reason"),
    )


def still(contract: Contract, name: str, decided: DataFrame) -> dict[str, Any]:
    """How many `records` still do not decode, and the `first` of them with their reasons."""
    rows = decided.where("fate = 'malformed'")
    first = [{name: it for name, it in row.items() if name != "fate"} for row in _first(contract, name, rows)]
    return {"records": rows.count() if len(first) == SHOWN else len(first), "first": first}


def _first(contract: Contract, name: str, decided: DataFrame) -> list[dict[str, Any]]:
    """The first few records with their fate and the reason."""
    rows = decided.sort("partition", "offset").select("partition", "offset", "fate", "reason").limit(SHOWN).collect()
    hidden = bool(contract.topics[name].sensitive)
    known = plans.known_members(settings().warehouse, contract, name)
    return [
        row.asDict()
        | members.told(known, row["partition"])
        | ({"reason": NOT_TOLD} if hidden and row["reason"] else {})
        for row in rows
    ]


def preview(spark: SparkSession, contract: Contract, asked: Mapping[str, Any], known_at: datetime) -> dict[str, Any]:
    """What a requeue would make of the records, by topic; nothing is written.

    `requeued`: how many would get each fate; `first` of them, each with its own; `still` as in a report.
    """
    told = {}
    for name in waiting(settings().warehouse, contract, asked):
        rows = decided(spark, contract, name, asked, known_at).persist()
        counts = {row["fate"]: row["count"] for row in rows.groupBy("fate").count().collect()}
        told[name] = {
            "requeued": _without(counts),
            "first": _first(contract, name, rows.where("fate <> 'malformed'")),
            "still": still(contract, name, rows),
        }
        rows.unpersist()
    return told


def text(topic: Mapping[str, Any]) -> str:
    """What became of the malformed records of a topic, in words."""
    counts, left = topic["requeued"], topic["still"]
    told = [f"{n:,} {fate}" for fate, n in counts.items()]
    told += [f"{left['records']:,} still malformed"] if left["records"] else []
    lines = [", ".join(told) or "none"]
    for it in (*topic.get("first", ()), *left["first"]):
        place = f"{it['topic']}, partition {it['topicPartition']}" if "topic" in it else f"partition {it['partition']}"
        lines.append(f"{place}, offset {it['offset']}: {': '.join(filter(None, (it.get('fate'), it['reason'])))}")
    return "\n      ".join(lines)


def _without(counts: Mapping[str, int]) -> dict[str, int]:
    return {fate: n for fate, n in sorted(counts.items()) if fate != "malformed"}


def _partitions(warehouse: str, contract: Contract, name: str, asked: Mapping[str, Any]) -> list[int] | None:
    """The partitions of a topic's log that are asked for, None for all: of a topic by pattern its members' numbers."""
    of, partition = asked.get("of"), asked.get("partition")
    if of is None or not (known := plans.known_members(warehouse, contract, name)):
        return None if partition is None else [partition]
    return [n for n, it in known.items() if it.topic == of and partition in (None, it.partition)]


_DECIDED = """(
    SELECT "partition", "offset", coalesce(since.fate, log.fate) AS fate, coalesce(since.reason, log.reason) AS reason
    FROM log LEFT JOIN (
        SELECT "partition", "offset", last(fate ORDER BY run, was = 'malformed') AS fate,
               last(reason ORDER BY run, was = 'malformed') AS reason
        FROM entered GROUP BY "partition", "offset"
    ) AS since USING ("partition", "offset")
)"""
"""A log with the fates that were decided last."""


def _asked(asked: Mapping[str, Any], partitions: Collection[int] | None) -> Column:
    condition = F.lit(True)
    if "reason" in asked:
        condition = condition & F.contains("reason", F.lit(asked["reason"]))
    if partitions is not None:
        condition = condition & F.col("partition").isin(*partitions)
    if "offsets" in asked:
        condition = condition & F.col("offset").isin(*asked["offsets"])
    return condition
