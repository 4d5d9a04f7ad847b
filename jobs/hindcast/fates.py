"""Fates decided anew: what another history retention makes of records that a log has already.

The log keeps the fate that a record got when it was replayed; its table takes what the contract in force makes of it
(`order.judge_again`). A run that finds a record's fate changed enters it here, in one table per topic:

| column | type | |
| --- | --- | --- |
| partition, offset | int, bigint | the record |
| timestamp, key, value | timestamp, binary, binary | as the log has them |
| was, fate | string | the fate before this run, and since; docs/glossary.md lists them |
| reason | string | why it is refused now |
| run, systemFrom | bigint, timestamp | the run that decided, and its known-at |

What is refused now stands in the quarantine too.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast import commits, journal, logs, order, plans, tables
from hindcast.contracts import Contract
from hindcast.plans import Plan
from hindcast.settings import settings


def decide(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> None:
    """Enters the fates that the contract changes, in one commit, and then what it refuses into quarantine.

    Looks at the log only where runs since the last completed one had another contract. Does nothing that the run did
    before, and writes nothing where no fate has changed.
    """
    warehouse, pipeline, topic = settings().warehouse, contract.pipeline, contract.topics[name]
    log, entered = plans.log(warehouse, pipeline, name), plans.fates(warehouse, pipeline, name)
    if topic.read == "stream" or tables.opened(log) is None or not _changed(contract):
        return
    after = tables.published(entered)
    if after < todo.run:
        records = tables.load(spark, log).withColumn("was", F.col("fate"))
        if tables.opened(entered) is not None:
            place = ["partition", "offset"]
            last = tables.load(spark, entered).groupBy(*place).agg(F.max_by("fate", "run").alias("_last"))
            records = records.join(last, place, "left").withColumn("was", F.coalesce("_last", "was"))
        anew = order.judge_again(records, logs.retention(topic)).where("fate <> was")
        rows = anew.select(
            *("partition", "offset", "timestamp", "key", "value", "was", "fate"),
            F.when(F.col("fate") == "expired", logs.too_late(topic)).alias("reason"),
            F.lit(todo.run).cast("long").alias("run"),
            F.lit(todo.known_at).alias("systemFrom"),
        ).persist()
        try:
            counts = {row["fate"]: row["n"] for row in rows.groupBy("fate").agg(F.count("*").alias("n")).collect()}
            if counts:
                tables.ensure(entered, tables.nullable(rows.schema))
                plans.current(warehouse, pipeline, todo.run)  # one that was given up since does not decide any more
                note = {"run": todo.run, "refused": counts.get("expired", 0)}
                commits.append(rows, entered, todo.run, note, after=after)
        finally:
            rows.unpersist()
    logs.quarantined(spark, contract, name, entered, f"fates/{name}")


def _changed(contract: Contract) -> bool:
    """Whether the contract is another one than that of the last completed run, or of one that was given up since."""
    past = journal.runs(settings().warehouse, contract.pipeline)
    last = max((n for n, run in enumerate(past) if run.state == "completed"), default=0)
    return any(run.plan["contract"] != contract.hash for run in past[last:])
