"""Revised fates: what another history retention or `valid_time`, or a requeue, makes of records already in a log.

The log keeps the fate that a record got when it was replayed; its table follows the current contract
(`fates.redecide_fates`, retimestamping.py), and takes malformed records once they are requeued
(requeued_records.py). A run that finds a record's fate changed enters it here, in one table per topic:

| column | type | |
| --- | --- | --- |
| partition, offset | int, bigint | the record |
| topicId, topic, topicPartition | string, string, int | of an entry with a `pattern`: its place in Kafka |
| timestamp, key, value | timestamp, binary, binary | when it is true now; as the log has them |
| was, fate | string | the fate before this run, and since; docs/glossary.md lists them |
| reason | string | why it is refused now |
| requeued | boolean | whether the run is a requeue that decoded the record again; null of older programs |
| run, systemFrom | bigint, timestamp | the run that decided, and its known-at |

Records that are refused now, or were requeued, are also in the quarantine. The commit of a requeue notes the result:
`requeued`, how many records of each fate, and `still` (`requeue.describe_still_malformed`).
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract.bound import BoundContract
from hindcast.ingest import erasure_marks, quarantine, requeued_records, retimestamping, topic_log
from hindcast.ingest import requeue as requeues
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.store import commits, row_reader, table_creation, tables
from hindcast.store.commit_notes import FatesNote
from hindcast.store.tables import Table


def revise_fates(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> None:
    """Commit the fates that the contract, a requeue or a forgetting changes, then update the quarantine.

    Reads the log only if runs since the last completed one had another contract, the run is a requeue, or it forgets
    records of a log that is dated again: they no longer move its stream time (`retimestamping.read_log`). Does nothing
    that the run did before, and writes nothing if no fate has changed. What an abandoned run committed and did not
    bring into the quarantine is brought there.
    """
    warehouse, pipeline, topic = contract.warehouse, contract.pipeline, contract.topics[name]
    log, entered = tables.log_table(warehouse, pipeline, name), tables.fates_table(warehouse, pipeline, name)
    requeue = plan.requeue if plan.requeue is not None and name in plan.requeue.topics else None
    changed = _has_contract_changed(contract) and (
        topic.read == "table" or retimestamping.has_valid_time_changed(contract, name)
    )
    forgets = plan.erasure is not None and plan.erasure.topic == name
    changed = changed or (forgets and bool(retimestamping.find_stale_runs(spark, contract, name)))
    if tables.open_table(log) is None:
        return
    after = tables.read_last_run(entered)
    if after < plan.run and (requeue or changed):
        decisions = [_decide_by_contract(spark, contract, name, entered)] if changed else []
        if requeue:
            decisions.append(requeues.decide_records(spark, contract, name, requeue, plan.known_at, plan))
        origin = {"run": F.lit(plan.run).cast("long"), "systemFrom": F.lit(plan.known_at)}
        origin |= topic_patterns.member_columns(plan.topics[name].members)
        rows = topic_log.union_frames(decisions).withColumns(origin).persist()
        try:
            _commit_fates(contract, plan, name, rows, entered, after)
        finally:
            rows.unpersist()
    quarantine.update_quarantine(spark, contract, name, entered, f"fates/{name}")


def _commit_fates(contract: BoundContract, plan: Plan, name: str, rows: DataFrame, entered: Table, after: int) -> None:
    """Commit the changed fates, with a note."""
    changed = rows.where("fate <> was")
    by_fate = changed.groupBy("requeued", "fate").count().orderBy("fate").collect()
    again = {row["fate"]: row["count"] for row in by_fate if row["requeued"]}
    refused = [row["count"] for row in by_fate if not row["requeued"] and row["fate"] != "accepted"]
    note = FatesNote(plan.run, sum(again.values()) + sum(refused))
    if plan.requeue:
        note = replace(
            note, requeued=again, still=requeues.describe_still_malformed(contract, name, rows.where("requeued"))
        )
    if by_fate or plan.requeue:
        table_creation.ensure_table(entered, table_creation.make_nullable(rows.schema))
        journal.read_active_run(entered.warehouse, contract.pipeline, plan.run)  # an abandoned run no longer decides
        commits.append_rows(changed, entered, plan.run, note.as_json(), after=after)


def _decide_by_contract(spark: SparkSession, contract: BoundContract, name: str, entered: Table) -> DataFrame:
    """Return the records of a log whose fate by the current contract differs from the one decided last."""
    records = retimestamping.read_log(spark, contract, name)
    records = records if "was" in records.columns else records.withColumn("was", F.col("fate"))
    if tables.open_table(entered) is not None:
        place = ["partition", "offset"]
        entries = row_reader.load_rows(spark, entered)
        requeued = F.expr(requeued_records.requeued_sql(entries.columns))
        when = F.struct("run", requeued)  # a run that finds one malformed may requeue it too
        last = entries.groupBy(*place).agg(F.max_by("fate", when).alias("_last"))
        records = records.join(last, place, "left").withColumn("was", F.coalesce("_last", "was"))
    topic = contract.topics[name]
    judged = topic_log.judge_again(records, contract, name)
    changed = erasure_marks.exclude_forgotten(judged).where("fate <> was")
    return changed.select(
        *("partition", "offset", "timestamp", "key", "value", "was", "fate"),
        F.when(F.col("fate") == "expired", topic_log.expiry_reason(topic))
        .when(F.col("fate") != "accepted", F.col("reason"))
        .alias("reason"),
        F.lit(False).alias("requeued"),
    )


def _has_contract_changed(contract: BoundContract) -> bool:
    """Return whether the contract differs from that of the last completed run, or of a run abandoned since."""
    return any(run.plan.contract != contract.hash for run in retimestamping.read_recent_runs(contract))
