"""Retention: trim what `keep` in the contract does not retain, from tables, logs and quarantine.

A table's horizon (plan/horizon.py) is written first, then what answers no question from the horizon on is removed:

- from a table the rows that had ended or were superseded by then; a row that reaches over the horizon stays
- from a log the records dated before, but for the one of each key that was in force at the horizon; what was refused
- from the quarantine, and from revised fates, the bytes of what was refused longer ago

The horizon is `keep` before the last completed run (or now, if that is earlier), or before the stream time of the
slowest partition if that is earlier. It never moves back. Each commit can be repeated: the next trim finishes one that
was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import predicates
from hindcast.common import clock
from hindcast.common.errors import BusyError, RequestError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.session import override_conf
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.keep import find_retention
from hindcast.ingest import ledger, retimestamping, topic_log, trim_ledger
from hindcast.plan import horizon, inputs, journal, notices
from hindcast.plan.horizon import Horizon
from hindcast.plan.runs import Run
from hindcast.runs import row_counts, topic_records
from hindcast.store import commit_once, commits, emitted_log, row_reader, table_creation, tables
from hindcast.store.tables import Table


class PartitionProgress(NamedTuple):
    """The partition of a topic (its name in the contract) and the stream time it has reached."""

    topic: str
    partition: int
    reached: datetime


class Trimmed(NamedTuple):
    """What was trimmed of a table or log: how many rows or records were removed, and its horizon (None: none yet).

    `slowest`: the partition that holds the horizon back, if one does.
    """

    removed: int
    horizon: Horizon | None
    slowest: PartitionProgress | None

    def as_json(self, what: str) -> dict[str, JsonValue]:
        """Return the part of the report; `what`: the name of what is counted."""
        fields: dict[str, JsonValue] = {"horizon": self.horizon.moment.isoformat() if self.horizon else None}
        if self.slowest is not None:
            fields["slowest"] = self.slowest._asdict() | {"reached": self.slowest.reached.isoformat()}
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
    the contract was changed since the last run.
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
    progress = {name: _read_topic_progress(spark, contract, name, last.number) for name in contract.topics}
    until = min(last.known_at, clock.now())  # a known-at may be ahead of the clock: nothing is trimmed for that
    table_horizons = _find_table_horizons(spark, contract, progress, until)
    log_horizons = _find_log_horizons(contract, progress, until, last.number)
    if not dry_run:
        # What is to be forgotten may need records, and it may have been planned meanwhile.
        notices.refuse_forgetting(warehouse, pipeline, "trimming")
        for table, at, _ in (*table_horizons.values(), *log_horizons.values()):
            if at is not None:
                commits.set_properties(spark, table, {horizon.PROPERTY: at.text})
    for name, (table, at, slowest) in table_horizons.items():
        rows = _trim_table(spark, table, at, last.known_at, dry_run=dry_run) if at else 0
        report.tables[name] = Trimmed(rows, at, slowest)
    for name, (_, at, slowest) in log_horizons.items():
        records = _trim_log(spark, contract, name, at, last.number, dry_run=dry_run) if at else 0
        report.logs[name] = Trimmed(records, at, slowest)
        if at is not None and at.refused_before is not None:
            report.quarantine[name] = _trim_refused(spark, contract, name, at, dry_run=dry_run)
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
    lines += [f"  quarantine, {name}: {n:,} records" for name, n in report.quarantine.items()]
    return "\n".join(lines)


class _TableHorizon(NamedTuple):
    """A table, its horizon from now on, and the partition that holds the horizon back."""

    table: Table
    horizon: Horizon | None
    slowest: PartitionProgress | None


def _find_last_run(warehouse: str, contract: Contract) -> Run | None:
    """Return the last completed run; raise if another run is open or the contract was changed since."""
    past = journal.read_runs(warehouse, contract.pipeline)
    for run in past:
        if not run.is_finished and run.state != "stopped":
            found, fix = f"run {run.number} ({run.run_id}) has not ended", "trim when it has ended"
            raise BusyError(found, where=contract.pipeline, fix=fix)
    completed = [run for run in past if run.state == "completed"]
    if completed and completed[-1].plan.contract != contract.hash:
        found = f"the contract was changed since run {completed[-1].number}"
        raise RequestError(found, where=contract.pipeline, fix="run the pipeline first")
    return completed[-1] if completed else None


def _read_topic_progress(spark: SparkSession, contract: BoundContract, name: str, last: int) -> list[PartitionProgress]:
    """Return the stream time of each partition of a topic after the run `last`."""
    if tables.open_table(tables.log_table(contract.warehouse, contract.pipeline, name)) is None:
        return []
    log = retimestamping.read_log(spark, contract, name)
    accepted = log.where((F.col("fate") == "accepted") & (F.col("run") <= last))
    rows = accepted.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("reached")).collect()
    return [PartitionProgress(name, row["partition"], _moment_of_micros(row["reached"])) for row in rows]


def _find_table_horizons(
    spark: SparkSession, contract: BoundContract, progress: Mapping[str, list[PartitionProgress]], until: datetime
) -> dict[str, _TableHorizon]:
    """Return the horizons of the tables of topics and views that are not kept forever, by name."""
    horizons = {}
    for name in (*contract.topics, *contract.ordered_views):
        keep = find_retention(contract, name)
        table = inputs.locate_own_table(contract, name)
        if keep is None or tables.open_table(table) is None:
            continue
        upstream = contract.list_upstream(name)
        times = [partition for source in upstream for partition in progress.get(source, [])]
        for source in filter(contract.inputs.__contains__, upstream):
            times += _read_input_progress(spark, contract, source)
        horizons[name] = _TableHorizon(table, *_next_horizon(until, times, keep, horizon.read_horizon(table)))
    return horizons


def _find_log_horizons(
    contract: BoundContract, progress: Mapping[str, list[PartitionProgress]], until: datetime, last: int
) -> dict[str, _TableHorizon]:
    """Return the horizons of the logs that are not kept forever, by topic, after the run `last`."""
    horizons = {}
    for name, topic in contract.topics.items():
        retention, log = topic.retention, tables.log_table(contract.warehouse, contract.pipeline, name)
        if retention is None or retention.log is None or retention.quarantine is None or tables.open_table(log) is None:
            continue
        before = horizon.read_horizon(log)
        waiting = _read_waiting_progress(contract, name, last)
        if waiting is None:  # a view has processed nothing yet
            at, slowest = before, None
        else:
            at, slowest = _next_horizon(until, [*progress[name], *waiting], retention.log, before)
        if at is not None:
            refused = _subtract_duration(until, retention.quarantine)
            moments = [moment for moment in (refused, before.refused_before if before else None) if moment is not None]
            at = replace(at, refused_before=max(moments, default=None), valid_time=topic.valid_time)
        horizons[name] = _TableHorizon(log, at, slowest)
    return horizons


def _read_waiting_progress(contract: BoundContract, name: str, last: int) -> list[PartitionProgress] | None:
    """Return up to when the views with `wait` below a topic had processed it after a run; None if one had not begun.

    Each is given as the partition that it waits for. They read the log again from there on.
    """
    found = []
    for view in sorted(contract.list_tables_below(name).intersection(contract.views)):
        if contract.views[view].wait:
            note = emitted_log.read_last_note(emitted_log.emitted_table(contract.warehouse, contract, view), last)
            if note is None or note.upto < 0 or note.waits_for is None:
                return None
            found.append(PartitionProgress(*note.waits_for, _moment_of_micros(note.upto * 1000)))
    return found


def _read_input_progress(spark: SparkSession, contract: BoundContract, name: str) -> list[PartitionProgress]:
    """Return how far the table of another pipeline has come: the last start of a row."""
    table = inputs.locate_input_table(contract.warehouse, contract, name)
    row = row_reader.load_current_rows(spark, table).agg(F.unix_micros(F.max(tables.period_columns(table)[0]))).first()
    return [PartitionProgress(name, 0, _moment_of_micros(row[0]))] if row and row[0] is not None else []


def _next_horizon(
    until: datetime, times: list[PartitionProgress], keep: timedelta, before: Horizon | None
) -> tuple[Horizon | None, PartitionProgress | None]:
    """Return the next horizon of a table with this `keep`, and the partition that holds it back, if one does."""
    slowest = min(times, key=lambda partition: partition.reached, default=None)
    if slowest is None:
        return before, None
    at = _subtract_duration(min(until, slowest.reached), keep)
    holding_back = slowest if slowest.reached < until else None
    if at is None or (before is not None and at <= before.moment):
        return before, holding_back
    return Horizon(at), holding_back


def _subtract_duration(moment: datetime, keep: timedelta) -> datetime | None:
    try:
        return moment - keep
    except OverflowError:
        return None


def _moment_of_micros(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _trim_table(spark: SparkSession, table: Table, at: Horizon, known_at: datetime, *, dry_run: bool) -> int:
    """Remove the rows of a table that answer nothing from its horizon on, in one commit; return how many.

    The number of rows left of runs up to `known_at` is noted first (row_counts.py).
    """
    trimmed = horizon.trimmed_condition(table.kind, at.moment)
    rows = row_reader.load_rows(spark, table).where(trimmed).count()
    if rows and not dry_run:
        row_counts.write_row_counts(spark, table, known_at)
        commits.delete_rows(spark, table, trimmed, {"trimmed": at.moment.isoformat()})
    return rows


def _trim_log(spark: SparkSession, contract: BoundContract, name: str, at: Horizon, last: int, *, dry_run: bool) -> int:
    """Remove the records of a log that are not needed from its horizon on, up to the run `last`; return how many.

    What the ledger says of them is written first (trim_ledger.py).
    """
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    decided = topic_log.judge_again(retimestamping.read_log(spark, contract, name), contract, name)
    # A held record was never in force, and stays until somebody has decided about it.
    known = topic_records.exclude_held(spark, contract, name, decided.where(F.col("run") <= last))
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
    _remove_records(spark, log, rows, number, before, {"trimmed": at.moment.isoformat()})
    commits.delete_rows(spark, counts, f"trim < {number}", {})
    return records


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


def _trim_refused(spark: SparkSession, contract: BoundContract, name: str, at: Horizon, *, dry_run: bool) -> int:
    """Remove what was refused of a topic too long ago: quarantine rows, and bytes of `fates`; return how many rows."""
    warehouse, pipeline = contract.warehouse, contract.pipeline
    moment, note = predicates.spark_timestamp(at.refused_before or at.moment), {"trimmed": at.moment.isoformat()}
    revisions = tables.fates_table(warehouse, pipeline, name)
    if tables.open_table(revisions) is not None and not dry_run:
        has_bytes = f"systemFrom < {moment} AND (key IS NOT NULL OR value IS NOT NULL)"
        if row_reader.load_rows(spark, revisions).where(has_bytes).take(1):
            commits.clear_columns(spark, revisions, ("key", "value"), has_bytes, note)
    quarantine = topic_log.quarantine_table(warehouse, pipeline)
    if tables.open_table(quarantine) is None:
        return 0
    rows = row_reader.load_rows(spark, quarantine).where(f"systemFrom < {moment}")
    names = [row[0] for row in rows.select("topic").distinct().collect() if contract.find_topic(row[0]) == name]
    if not names:
        return 0
    listed = ", ".join(map(predicates.sql_literal, names))
    trimmed = f"systemFrom < {moment} AND topic IN ({listed})"
    refused = rows.where(trimmed).count()
    if refused and not dry_run:
        commits.delete_rows(spark, quarantine, trimmed, note)
    return refused
