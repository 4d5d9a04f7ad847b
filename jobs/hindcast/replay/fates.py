"""Fates decided anew: what another history retention or `valid_time`, or a requeue, makes of records that a log has
already.

The log keeps the fate that a record got when it was replayed; its table takes what the contract in force makes of it
(`order.judge_again`, redating.py), and what was malformed once it is requeued (requeued.py). A run that finds a
record's fate changed enters it here, in one table per topic:

| column | type | |
| --- | --- | --- |
| partition, offset | int, bigint | the record |
| topicId, topic, topicPartition | string, string, int | of an entry with a `pattern`: its place in Kafka (members.py) |
| timestamp, key, value | timestamp, binary, binary | when it is true now; as the log has them |
| was, fate | string | the fate before this run, and since; docs/glossary.md lists them |
| reason | string | why it is refused now |
| run, systemFrom | bigint, timestamp | the run that decided, and its known-at |

What is refused now stands in the quarantine too, and what was requeued. The commit of a requeue notes what it has made
of the records: `requeued`, how many of each fate, and `still` (requeue.still).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.delta import commits, contents, making, tables
from hindcast.delta.tables import Table
from hindcast.kafka import members
from hindcast.planning import journal, plans
from hindcast.planning.plans import Plan
from hindcast.replay import logs, redating, requeue
from hindcast.settings import settings


def decide(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> None:
    """Enters the fates that the contract changes, and those of what is requeued, in one commit; then what it refuses,
    and what it no longer does, into quarantine.

    Looks at the log only where runs since the last completed one had another contract, or the run is a requeue. Does
    nothing that the run did before, and writes nothing where no fate has changed.
    """
    warehouse, pipeline, topic = settings().warehouse, contract.pipeline, contract.topics[name]
    log, entered = tables.log(warehouse, pipeline, name), tables.fates(warehouse, pipeline, name)
    requeues = name in todo.requeues.get("topics", ())
    changed = _changed(contract) and (topic.read == "table" or redating.changed(contract, name))
    if tables.opened(log) is None or not (requeues or changed):
        return
    after = tables.published(entered)
    if after < todo.run:
        found = [_by_contract(spark, contract, name, entered)] if changed else []
        if requeues:
            found.append(requeue.decided(spark, contract, name, todo.requeues, todo.known_at, todo))
        origin = {"run": F.lit(todo.run).cast("long"), "systemFrom": F.lit(todo.known_at)}
        rows = _union(found).withColumns(origin | members.columns(todo.topics[name].members)).persist()
        try:
            _enter(contract, todo, name, rows, entered, after)
        finally:
            rows.unpersist()
    logs.quarantined(spark, contract, name, entered, f"fates/{name}")


def _enter(contract: Contract, todo: Plan, name: str, rows: DataFrame, entered: Table, after: int) -> None:
    """The commit of the fates that are others, with its note."""
    counts = {tuple(row)[:2]: row["n"] for row in rows.groupBy("was", "fate").agg(F.count("*").alias("n")).collect()}
    note: dict[str, Any] = {"run": todo.run}
    again = {fate: n for (was, fate), n in sorted(counts.items()) if was == "malformed" and fate != was}
    refused = {to: n for to, n in counts.items() if to[0] != "malformed" and to[1] != "accepted"}
    note["refused"] = sum(again.values()) + sum(refused.values())
    if todo.requeues:
        note |= {"requeued": again, "still": requeue.still(contract, name, rows)}
    if counts or todo.requeues:
        making.ensure(entered, making.nullable(rows.schema))
        plans.current(entered.warehouse, contract.pipeline, todo.run)  # one given up since does not decide any more
        commits.append(rows.where("fate <> was"), entered, todo.run, note, after=after)


def _by_contract(spark: SparkSession, contract: Contract, name: str, entered: Table) -> DataFrame:
    """The records of a log that have another fate under the contract's history retention and `valid_time` than was
    decided last.
    """
    records = redating.log(spark, contract, name)
    records = records if "was" in records.columns else records.withColumn("was", F.col("fate"))
    if tables.opened(entered) is not None:
        place = ["partition", "offset"]
        when = F.struct("run", F.col("was") == "malformed")  # a run that finds one malformed may requeue it too
        last = contents.load(spark, entered).groupBy(*place).agg(F.max_by("fate", when).alias("_last"))
        records = records.join(last, place, "left").withColumn("was", F.coalesce("_last", "was"))
    topic = contract.topics[name]
    anew = logs.again(records, contract, name).where("fate <> was")
    return anew.select(
        *("partition", "offset", "timestamp", "key", "value", "was", "fate"),
        F.when(F.col("fate") == "expired", logs.too_late(topic))
        .when(F.col("fate") != "accepted", F.col("reason"))
        .alias("reason"),
    )


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _changed(contract: Contract) -> bool:
    """Whether the contract is another one than that of the last completed run, or of one that was given up since."""
    past = journal.runs(settings().warehouse, contract.pipeline)
    last = max((n for n, run in enumerate(past) if run.state == "completed"), default=0)
    return any(run.plan["contract"] != contract.hash for run in past[last:])
