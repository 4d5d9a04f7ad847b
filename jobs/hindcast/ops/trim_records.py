"""The records that a trim removes: from a topic's log, from revised fates, and from the quarantine (retention.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import predicates, processing_order
from hindcast.common.errors import RunError
from hindcast.common.json_values import JsonObject
from hindcast.common.session import override_conf
from hindcast.contract.bound import BoundContract
from hindcast.ingest import arrivals, ledger, quarantine, requeued_records, retimestamping, topic_log, trim_ledger
from hindcast.ops import trim_horizons
from hindcast.plan import horizon, notices
from hindcast.plan.horizon import Horizon
from hindcast.runs import emission, topic_records
from hindcast.store import commit_once, commits, own_tables, row_reader, table_creation, tables
from hindcast.store.tables import Table


def build_note(at: Horizon) -> JsonObject:
    """Return the note of a commit that trims up to a horizon."""
    return {"trimmed": at.moment.isoformat()}


def trim_log(
    spark: SparkSession,
    contract: BoundContract,
    name: str,
    at: Horizon,
    last: int,
    views: trim_horizons.WaitingViews,
    *,
    dry_run: bool,
) -> int:
    """Remove the records of a log that are not needed from its horizon on, up to the run `last`; return how many.

    What the ledger says of them is written first (trim_ledger.py).
    """
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    decided = topic_log.judge_again(retimestamping.read_log(spark, contract, name), contract, name)
    waiting = _find_waiting_records(spark, contract, name, decided, views, at)
    if waiting is not None and waiting.where("fate = 'expired'").take(1):
        return 0  # `judge_again` takes what a trim leaves before the horizon for accepted
    settled = decided if waiting is None else topic_records.exclude_places(decided, waiting.select(*_PLACE))
    settled = settled.where(F.col("run") <= last)
    # A held record was never in force, and stays until somebody has decided about it.
    known = topic_records.exclude_held(spark, contract, name, settled, with_keys=True)
    places = find_unneeded_records(known, at, table=contract.topics[name].read == "table")
    rows = _add_count_columns(
        row_reader.load_rows(spark, log).join(places, ["partition", "offset"], "left_semi")
    ).localCheckpoint()
    records = rows.count()
    if not records or dry_run:
        return records
    counts, before = trim_ledger.trim_table(log), tables.read_last_run(log, trim_ledger.PART)
    columns = {"horizon": F.lit(at.moment), "through": F.lit(last).cast("long"), "trim": F.lit(0).cast("long")}
    summed = _sum_counts(spark, log, counts, rows, before).withColumns(columns)
    table_creation.ensure_table(counts, table_creation.make_nullable(summed.schema))
    number = tables.read_last_run(counts) + 1
    while not commits.append_rows(summed.withColumn("trim", F.lit(number).cast("long")), counts, number, {}):
        number += 1
    _remove_records(spark, log, rows, number, before, build_note(at))
    commits.delete_rows(spark, counts, f"trim < {number}", {})
    return records


def _find_waiting_records(
    spark: SparkSession,
    contract: BoundContract,
    name: str,
    records: DataFrame,
    views: trim_horizons.WaitingViews,
    at: Horizon,
) -> DataFrame | None:
    """Return the rows of a log that a view with `wait` has not processed, of those that a trim could take: late ones,
    dated up to the horizon, and those without a key. None without such a view.
    """
    if not views.processed:
        return None
    turn = requeued_records.requeue_turn(spark, contract.warehouse, contract.pipeline, name)
    readable = records.where(F.col("fate").isin(*emission.READ_FATES))
    ordered = processing_order.add_processing_order(readable, 0, waits=True, turn=turn)
    upto = F.unix_millis(F.lit(min(partition.reached for partition in views.processed)))
    is_near = (F.col("timestamp") <= at.moment) | (F.col("fate") == "null_key")
    return ordered.where((F.col("order.reached") >= upto) & is_near)


_PLACE = ("partition", "offset")


def find_unneeded_records(log: DataFrame, at: Horizon, *, table: bool) -> DataFrame:
    """Return the places (partition, offset) of a log's records that answer nothing from its horizon on.

    `log`: the rows of a log with their latest fates. Of a table the record of each key that was in force at the horizon
    stays, even a tombstone: a late record dated before it must not show.

        8 @0, 10 @4, 12 @9    horizon @6    ->    8 @0
    """
    judged, moment = F.col("fate").isin("accepted", "expired"), F.lit(at.moment)
    past = judged & ((F.col("timestamp") <= moment) if table else (F.col("timestamp") < moment))
    refused = F.lit(False) if at.refused_before is None else ~judged & (F.col("systemFrom") < F.lit(at.refused_before))
    if not table:
        return log.where(past | refused).select("partition", "offset")
    taken = past & (F.col("fate") == "accepted")
    latest = Window.partitionBy("key", taken).orderBy(
        *(F.desc(c) for c in ("timestamp", "epoch", "partition", "offset"))
    )
    in_force = taken & (F.col("key").isNull() | (F.col("_nth") == 1))
    rows = log.withColumn("_nth", F.row_number().over(latest))
    return rows.where((past & ~in_force) | refused).select("partition", "offset")


def _add_count_columns(rows: DataFrame) -> DataFrame:
    """Return rows of a log without their bytes, with the columns that are counted (trim_ledger.py)."""
    optional = {"topic": "string", "topicPartition": "int", arrivals.COLUMN: "timestamp"}
    missing = {name: F.lit(None).cast(kind) for name, kind in optional.items() if name not in rows.columns}
    late = F.coalesce(F.col("timestamp") < F.col("streamTime"), F.lit(False)).cast("long")
    without = ((F.col("fate") == "accepted") & F.col("value").isNull()).cast("long")
    rows = rows.withColumns({**missing, "n": F.col("offsets"), "late": late, "without": without})
    names = (*trim_ledger.COUNTS_SCHEMA.names, arrivals.COLUMN)
    return rows.select("offset", *(name for name in names if name not in ("first", "after")))


def _sum_counts(spark: SparkSession, log: Table, counts: Table, rows: DataFrame, before: int) -> DataFrame:
    """Return what the ledger needs to know of all records removed so far, and of `rows` (`_add_count_columns`)."""
    ranges = [(r.run, r.partition, r.start, r.end) for r in ledger.read_ingested_ranges(log)]
    pieces = spark.createDataFrame(ranges, "_run long, _partition int, first long, after long")
    within = (F.col("run") == F.col("_run")) & (F.col("partition") == F.col("_partition"))
    within = within & (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("after"))
    names = (*trim_ledger.COUNTS_SCHEMA.names, arrivals.COLUMN)
    removed = rows.join(F.broadcast(pieces), within).select(*names)
    if before:
        earlier = row_reader.load_rows(spark, counts).where(F.col("trim") == before)
        shared = [name for name in names if name in earlier.columns]
        removed = removed.unionByName(earlier.select(*shared), allowMissingColumns=True)
    group, sums = ("run", "partition", "first", "after", "fate"), ("n", "late", "without")
    same = [c for c in trim_ledger.COUNTS_SCHEMA.names if c not in (*group, *sums)]
    reached = F.max(arrivals.COLUMN).alias(arrivals.COLUMN)
    summed = removed.groupBy(*group).agg(
        *(F.sum(c).alias(c) for c in sums), *(F.first(c).alias(c) for c in same), reached
    )
    return summed.select(*names).localCheckpoint()


def _remove_records(
    spark: SparkSession, log: Table, rows: DataFrame, number: int, before: int, note: JsonObject
) -> None:
    """Commit the removal of some rows of a log; raise RunError if another trim came between."""
    view = f"trimmed_{log.pipeline}_{log.name.replace('/', '_')}"
    rows.select("partition", "offset").createOrReplaceTempView(view)
    confs = {
        "spark.databricks.delta.write.txnAppId": log.app_id(trim_ledger.PART),
        "spark.databricks.delta.write.txnVersion": str(number),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(dict(note)),
    }
    merge = (
        f"MERGE INTO delta.`{log.path}` t USING {view} s "  # names of ours
        "ON t.`partition` = s.`partition` AND t.`offset` = s.`offset` WHEN MATCHED THEN DELETE"
    )

    def read_last_trim() -> int:
        notices.refuse_lost_notice()
        last = tables.read_last_run(log, trim_ledger.PART)
        if last not in (before, number):
            found = "another trim has removed records of the log since this one read them"
            raise RunError(found, where=log.path, fix="start the trim again")
        return last

    try:
        with override_conf(spark, confs):
            commit_once.commit_once(
                lambda: own_tables.run_upkeep(spark, log.path, merge), read_last_trim, number, None, log.path
            )
    finally:
        spark.catalog.dropTempView(view)


def clear_revisions(spark: SparkSession, contract: BoundContract, name: str, at: Horizon) -> None:
    """Remove from `fates` of a topic the bytes of what was refused too long ago."""
    moment = predicates.spark_timestamp(at.refused_before or at.moment)
    revisions = tables.fates_table(contract.warehouse, contract.pipeline, name)
    has_bytes = f"systemFrom < {moment} AND (key IS NOT NULL OR value IS NOT NULL)"
    if tables.open_table(revisions) is not None and row_reader.load_rows(spark, revisions).where(has_bytes).take(1):
        commits.clear_columns(spark, revisions, ("key", "value"), has_bytes, build_note(at))


def trim_refused(
    spark: SparkSession,
    contract: BoundContract,
    name: str,
    horizons: Mapping[str, Horizon | None],
    at: Horizon,
    *,
    dry_run: bool,
) -> int:
    """Remove from the quarantine what was refused of a topic too long ago; return how many rows.

    `horizons`: those of the logs, of which `at` is the topic's. What several entries share is the first one's.
    """
    stored = quarantine.quarantine_table(contract.warehouse, contract.pipeline)
    if tables.open_table(stored) is None:
        return 0
    rows = row_reader.load_rows(spark, stored)
    names = defaultdict[datetime, list[str]](list)
    for (kafka,) in rows.select("topic").distinct().collect():
        moment = horizon.find_quarantine_horizon(contract, kafka, horizons)
        if moment is not None and contract.find_entries(kafka)[0] == name:
            names[moment].append(predicates.sql_literal(kafka))
    trimmed = " OR ".join(
        f"(systemFrom < {predicates.spark_timestamp(moment)} AND topic IN ({', '.join(listed)}))"
        for moment, listed in names.items()
    )
    refused = rows.where(trimmed).count() if trimmed else 0
    if refused and not dry_run:
        commits.delete_rows(spark, stored, trimmed, build_note(at))
    return refused
