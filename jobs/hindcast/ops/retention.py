"""Retention: trim what `keep` in the contract does not retain, from tables, logs and quarantine.

A table's horizon (plan/horizon.py) is written first, then what answers no question from the horizon on is removed:

- from a table the rows that had ended or were superseded by then; a row that reaches over the horizon stays
- from a log the records dated before, but for the one of each key that was in force at the horizon; what was refused
- from the quarantine, and from revised fates, the bytes of what was refused longer ago

Where the horizons are: trim_horizons.py. Each commit can be repeated: the next trim finishes one that was killed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import predicates, processing_order
from hindcast.common import clock
from hindcast.common.errors import BusyError, RequestError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.session import override_conf
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import ledger, quarantine, requeued_records, retimestamping, topic_log, trim_ledger
from hindcast.ops import trim_horizons
from hindcast.ops.trim_horizons import PartitionProgress
from hindcast.plan import horizon, journal, notices
from hindcast.plan.horizon import Horizon
from hindcast.plan.runs import Run
from hindcast.runs import emission, row_counts, topic_records
from hindcast.store import commit_once, commits, row_reader, table_creation, tables
from hindcast.store.tables import Table


class Trimmed(NamedTuple):
    """What was trimmed of a table or log: how many rows or records were removed, and its horizon (None: none yet).

    `slowest`: the partition that holds the horizon back, if one does. `undecided`: the tables that do, because they
    have held changes that nobody has decided about; `unready`: the views that do, because they have not processed what
    they need (`trim_horizons.WaitingViews`).
    """

    removed: int
    horizon: Horizon | None
    slowest: PartitionProgress | None
    undecided: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()

    def as_json(self, what: str) -> dict[str, JsonValue]:
        """Return the part of the report; `what`: the name of what is counted."""
        fields: dict[str, JsonValue] = {"horizon": self.horizon.moment.isoformat() if self.horizon else None}
        if self.slowest is not None:
            fields["slowest"] = self.slowest._asdict() | {"reached": self.slowest.reached.isoformat()}
        fields |= {name: list(views) for name in ("undecided", "unready") if (views := getattr(self, name))}
        return fields | {what: self.removed}


@dataclass(frozen=True)
class TrimReport:
    """What was trimmed of a pipeline, or with `dry_run` would be, as of its last completed run.

    `tables`, `logs`: by name, of those that are not kept forever; `quarantine`: how many refused records by topic.
    """

    pipeline: str
    known_at: datetime | None
    dry_run: bool
    tables: dict[str, Trimmed] = field(default_factory=dict)
    logs: dict[str, Trimmed] = field(default_factory=dict)
    quarantine: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as data."""
        return {
            "pipeline": self.pipeline,
            "knownAt": self.known_at.isoformat() if self.known_at else None,
            "tables": {name: trimmed.as_json("rows") for name, trimmed in self.tables.items()},
            "logs": {name: trimmed.as_json("records") for name, trimmed in self.logs.items()},
            "quarantine": self.quarantine,
            **({"dryRun": True} if self.dry_run else {}),
        }


def trim_pipeline(spark: SparkSession, contract: BoundContract, *, dry_run: bool = False) -> TrimReport:
    """Trim a pipeline and return a report; with `dry_run` write nothing.

    Raises BusyError while a run is under way, or another trim, whose horizon this one might move back; RequestError if
    the contract was changed since the last run, or if no run has derived again what a forgetting removed.
    """
    with nullcontext() if dry_run else notices.post_alone(contract.warehouse, contract.pipeline, "trimming"):
        return _trim_pipeline(spark, contract, dry_run=dry_run)


def _trim_pipeline(spark: SparkSession, contract: BoundContract, *, dry_run: bool) -> TrimReport:
    """Do what `trim_pipeline` says."""
    warehouse, pipeline = contract.warehouse, contract.pipeline
    last = _find_last_run(warehouse, contract)
    report = TrimReport(pipeline, last.known_at if last else None, dry_run)
    if last is None:
        return report
    progress = {name: trim_horizons.read_topic_progress(spark, contract, name, last.number) for name in contract.topics}
    until = min(last.known_at, clock.now())  # a known-at may be ahead of the clock: nothing is trimmed for that
    undecided = trim_horizons.find_undecided_tables(contract)
    views = {name: trim_horizons.read_waiting_views(contract, name, last.number) for name in contract.topics}
    table_horizons = trim_horizons.find_table_horizons(spark, contract, progress, undecided, until, last)
    log_horizons = trim_horizons.find_log_horizons(contract, progress, views, undecided, until)
    if not dry_run:
        # What is to be forgotten may need records, and it may have been planned meanwhile.
        notices.refuse_forgetting(warehouse, pipeline, "trimming")
        for trimmed in (*table_horizons.values(), *log_horizons.values()):
            if trimmed.horizon is not None:
                commits.set_properties(spark, trimmed.table, {horizon.PROPERTY: trimmed.horizon.text})
    for name, it in table_horizons.items():
        rows = _trim_table(spark, it.table, it.horizon, last.known_at, dry_run=dry_run) if it.horizon else 0
        report.tables[name] = Trimmed(rows, it.horizon, it.slowest, it.undecided)
    horizons = {name: it.horizon for name, it in log_horizons.items()}
    for name, it in log_horizons.items():
        at, records = it.horizon, 0
        if at is not None and not it.unready:
            records = _trim_log(spark, contract, name, at, last.number, views[name], dry_run=dry_run)
        report.logs[name] = Trimmed(records, at, it.slowest, it.undecided, it.unready)
        if at is not None and at.refused_before is not None:
            if not dry_run:
                _clear_revisions(spark, contract, name, at)
            report.quarantine[name] = _trim_refused(spark, contract, name, horizons, at, dry_run=dry_run)
    return report


def format_report(report: TrimReport) -> str:
    """Return the report of a trim as lines for a terminal or a task's log."""
    done = "what would be trimmed; nothing was written" if report.dry_run else "trimmed"
    has_horizon = report.tables or report.logs
    lines = [f"{report.pipeline}: {done if has_horizon else 'nothing to trim: everything is kept forever'}"]
    for part, trimmed_parts, what in (("table", report.tables, "rows"), ("log", report.logs, "records")):
        for name, trimmed in trimmed_parts.items():
            until = f"horizon {trimmed.horizon.moment.isoformat()}" if trimmed.horizon else "no horizon yet"
            lines.append(f"  {part} {name}: {trimmed.removed:,} {what}; {until}")
            if slowest := trimmed.slowest:
                held_back = f"held back by partition {slowest.partition} of {slowest.topic}"
                lines.append(f"    {held_back}, which has reached {slowest.reached.isoformat()}")
            if trimmed.undecided:
                names = " and ".join(trimmed.undecided)
                held = "of which changes are held, or may be: hindcast failing PIPELINE --held"
                lines.append(f"    held back by {names}, {held}, then release or reject them")
            if trimmed.unready:
                names = " and ".join(trimmed.unready)
                lines.append(f"    held back by {names}, which may need all of it: run the pipeline")
    lines += [f"  quarantine, {name}: {n:,} records" for name, n in report.quarantine.items()]
    return "\n".join(lines)


def _find_last_run(warehouse: str, contract: Contract) -> Run | None:
    """Return the last completed run; raise if another run is open or the contract was changed since."""
    past = journal.read_runs(warehouse, contract.pipeline)
    for run in past:
        if not run.is_finished and run.state != "stopped":
            found, fix = f"run {run.number} ({run.run_id}) has not ended", "trim when it has ended"
            raise BusyError(found, where=contract.pipeline, fix=fix)
    completed = [run for run in past if run.has_done_all_tables]
    if completed and completed[-1].plan.contract != contract.hash:
        found = f"the contract was changed since run {completed[-1].number}"
        raise RequestError(found, where=contract.pipeline, fix="run the pipeline first")
    for run in past:
        if completed and run.number > completed[-1].number and run.plan.erasure:
            found = f"the forgetting of run {run.number} has ended before all tables were derived again"
            raise RequestError(found, where=contract.pipeline, fix="run the pipeline first")
    return completed[-1] if completed else None


def _trim_table(spark: SparkSession, table: Table, at: Horizon, known_at: datetime, *, dry_run: bool) -> int:
    """Remove the rows of a table that answer nothing from its horizon on, in one commit; return how many.

    The number of rows left of runs up to `known_at` is noted first (row_counts.py).
    """
    trimmed = horizon.trimmed_condition(table.kind, at.moment)
    rows = row_reader.load_rows(spark, table).where(trimmed).count()
    if rows and not dry_run:
        row_counts.write_row_counts(spark, table, known_at)
        commits.delete_rows(spark, table, trimmed, _trim_note(at))
    return rows


def _trim_log(
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
    _remove_records(spark, log, rows, number, before, _trim_note(at))
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
    places = {"topic": "string", "topicPartition": "int"}
    missing = {name: F.lit(None).cast(kind) for name, kind in places.items() if name not in rows.columns}
    late = F.coalesce(F.col("timestamp") < F.col("streamTime"), F.lit(False)).cast("long")
    without = ((F.col("fate") == "accepted") & F.col("value").isNull()).cast("long")
    rows = rows.withColumns({**missing, "n": F.col("offsets"), "late": late, "without": without})
    return rows.select("offset", *(name for name in trim_ledger.COUNTS_SCHEMA.names if name not in ("first", "after")))


def _sum_counts(spark: SparkSession, log: Table, counts: Table, rows: DataFrame, before: int) -> DataFrame:
    """Return what the ledger needs to know of all records removed so far, and of `rows` (`_add_count_columns`)."""
    ranges = [(r.run, r.partition, r.start, r.end) for r in ledger.read_ingested_ranges(log)]
    pieces = spark.createDataFrame(ranges, "_run long, _partition int, first long, after long")
    within = (F.col("run") == F.col("_run")) & (F.col("partition") == F.col("_partition"))
    within = within & (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("after"))
    removed = rows.join(F.broadcast(pieces), within).select(*trim_ledger.COUNTS_SCHEMA.names)
    if before:
        earlier = row_reader.load_rows(spark, counts).where(F.col("trim") == before)
        removed = removed.unionByName(earlier.select(removed.columns))
    group, sums = ("run", "partition", "first", "after", "fate"), ("n", "late", "without")
    same = [c for c in trim_ledger.COUNTS_SCHEMA.names if c not in (*group, *sums)]
    summed = removed.groupBy(*group).agg(*(F.sum(c).alias(c) for c in sums), *(F.first(c).alias(c) for c in same))
    return summed.select(*trim_ledger.COUNTS_SCHEMA.names).localCheckpoint()


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
    try:
        with override_conf(spark, confs):
            published = lambda: tables.read_last_run(log, trim_ledger.PART)  # noqa: E731
            commit_once.commit_once(lambda: spark.sql(merge).collect(), published, number, before, log.path)
    finally:
        spark.catalog.dropTempView(view)


def _clear_revisions(spark: SparkSession, contract: BoundContract, name: str, at: Horizon) -> None:
    """Remove from `fates` of a topic the bytes of what was refused too long ago."""
    moment = predicates.spark_timestamp(at.refused_before or at.moment)
    revisions = tables.fates_table(contract.warehouse, contract.pipeline, name)
    has_bytes = f"systemFrom < {moment} AND (key IS NOT NULL OR value IS NOT NULL)"
    if tables.open_table(revisions) is not None and row_reader.load_rows(spark, revisions).where(has_bytes).take(1):
        commits.clear_columns(spark, revisions, ("key", "value"), has_bytes, _trim_note(at))


def _trim_refused(
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
        commits.delete_rows(spark, stored, trimmed, _trim_note(at))
    return refused


def _trim_note(at: Horizon) -> JsonObject:
    return {"trimmed": at.moment.isoformat()}
