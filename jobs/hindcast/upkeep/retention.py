"""Retention: what `keep` in the contract says need not be kept is trimmed from tables, logs and quarantine.

A table's horizon (horizon.py) is written first, then the rows are removed that answer nothing from it on:

- of a table the rows that had ended, or were believed no more, by then; one that reaches over the horizon stays
- of a log the records dated before, but for the one of each key that was in force at the horizon; what was refused
- of the quarantine, and of fates decided anew, the bytes of what was refused longer ago

The horizon is `keep` before the last completed run (or now, if that is earlier), or before the stream time of the
slowest partition if that is earlier. It never moves back. Each commit may be made again: a trim that was killed is
finished by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast import clock, horizon, questions
from hindcast.building import counted, topic_records
from hindcast.contracts import Contract
from hindcast.contracts.keep import length
from hindcast.delta import attempts, commits, contents, making, tables
from hindcast.delta.tables import Table
from hindcast.errors import AskedError, BusyError
from hindcast.horizon import Horizon
from hindcast.planning import inputs, journal, notices
from hindcast.replay import ledger, logs, redating, trimmed
from hindcast.session import temporarily
from hindcast.settings import settings


class Slowest(NamedTuple):
    """The partition whose stream time is the earliest, of a pipeline's topics by their names in the contract."""

    topic: str
    partition: int
    reached: datetime


def trim(spark: SparkSession, contract: Contract, *, dry_run: bool = False) -> dict[str, Any]:
    """Removes what need not be kept of a pipeline, and tells what that is; with `dry_run` nothing is written.

    Returns `pipeline`, `knownAt` of the last completed run, `tables` and `logs`: of each that has `keep` its `horizon`
    (null: none yet), how many `rows` or `records` were removed and, where a partition alone holds the horizon back,
    `slowest`; `quarantine`: how many refused records, by topic. BusyError while a run is under way, AskedError if the
    contract was changed since the last one.
    """
    with nullcontext() if dry_run else notices.post_notice(settings().warehouse, contract.pipeline, "trimming"):
        return _trim(spark, contract, dry_run=dry_run)


def _trim(spark: SparkSession, contract: Contract, *, dry_run: bool) -> dict[str, Any]:
    """Do what `trim` says."""
    warehouse, pipeline = settings().warehouse, contract.pipeline
    last = _last(warehouse, contract)
    told: dict[str, Any] = {"pipeline": pipeline, "knownAt": last.known_at.isoformat() if last else None}
    told |= {"tables": {}, "logs": {}, "quarantine": {}, **({"dryRun": True} if dry_run else {})}
    if last is None:
        return told
    reached = {name: _reached(spark, contract, name, last.number) for name in contract.topics}
    until = min(last.known_at, clock.now())  # a known-at may be ahead of the clock: nothing is trimmed for that
    kept = _tables_kept(spark, contract, reached, until)
    logs_kept = _logs_kept(contract, reached, until)
    if not dry_run:
        for table, at, _ in (*kept.values(), *logs_kept.values()):
            if at is not None:
                commits.describe(spark, table, {horizon.PROPERTY: at.text})
    for name, (table, at, slowest) in kept.items():
        rows = _trim_table(spark, table, at, last.known_at, dry_run=dry_run) if at else 0
        told["tables"][name] = _told(at, slowest) | {"rows": rows}
    for name, (_, at, slowest) in logs_kept.items():
        records = _trim_log(spark, contract, name, at, last.number, dry_run=dry_run) if at else 0
        told["logs"][name] = _told(at, slowest) | {"records": records}
        if at is not None and at.refused is not None:
            told["quarantine"][name] = _trim_refused(spark, contract, name, at, dry_run=dry_run)
    return told


def text(told: Mapping[str, Any]) -> str:
    """What was trimmed, as lines for a terminal or a task's log."""
    done = "what would be trimmed; nothing was written" if "dryRun" in told else "trimmed"
    kept = told["tables"] or told["logs"]
    lines = [f"{told['pipeline']}: {done if kept else 'nothing to trim: everything is kept for ever'}"]
    for part, what in (("tables", "rows"), ("logs", "records")):
        for name, it in told[part].items():
            at = it["horizon"]
            lines.append(f"  {part[:-1]} {name}: {it[what]:,} {what}; {f'horizon {at}' if at else 'no horizon yet'}")
            if it.get("slowest"):
                slowest = it["slowest"]
                lines.append(
                    f"    held back by partition {slowest['partition']} of {slowest['topic']}, which has come to "
                    f"{slowest['reached']}"
                )
    lines += [f"  quarantine, {name}: {n:,} records" for name, n in told["quarantine"].items()]
    return "\n".join(lines)


class _Kept(NamedTuple):
    """A table with what `keep` makes of it: its horizon from now on, and the partition that holds it back."""

    table: Table
    at: Horizon | None
    slowest: Slowest | None


def _last(warehouse: str, contract: Contract) -> journal.Run | None:
    """The last completed run, if all of the pipeline is as it has left it."""
    past = journal.runs(warehouse, contract.pipeline)
    for run in past:
        if not run.finished and run.state != "stopped":
            found, mend = f"run {run.number} ({run.run_id}) has not ended", "trim when it has"
            raise BusyError(found, where=contract.pipeline, mend=mend)
    completed = [run for run in past if run.state == "completed"]
    if completed and completed[-1].plan["contract"] != contract.hash:
        found = f"the contract was changed since run {completed[-1].number}"
        raise AskedError(found, where=contract.pipeline, mend="run the pipeline first")
    return completed[-1] if completed else None


def _reached(spark: SparkSession, contract: Contract, name: str, last: int) -> list[Slowest]:
    """The stream time of each partition of a topic after a run."""
    if tables.opened(tables.log(settings().warehouse, contract.pipeline, name)) is None:
        return []
    taken = redating.log(spark, contract, name).where((F.col("fate") == "accepted") & (F.col("run") <= last))
    rows = taken.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("reached")).collect()
    return [Slowest(name, row["partition"], _moment(row["reached"])) for row in rows]


def _tables_kept(
    spark: SparkSession, contract: Contract, reached: Mapping[str, list[Slowest]], known: datetime
) -> dict[str, _Kept]:
    """The tables of topics and views that are not kept for ever."""
    found = {}
    for name in (*contract.topics, *contract.ordered):
        keep = length(contract, name)
        table = inputs.located(contract, name)
        if keep is None or tables.opened(table) is None:
            continue
        times = [it for i in contract.upstream(name) for it in reached.get(i, [])]
        times += [it for i in contract.upstream(name) if i in contract.inputs for it in _input(spark, contract, i)]
        found[name] = _Kept(table, *_horizon(known, times, keep, horizon.of(table)))
    return found


def _logs_kept(contract: Contract, reached: Mapping[str, list[Slowest]], known: datetime) -> dict[str, _Kept]:
    """The logs that are not kept for ever."""
    found = {}
    for name, topic in contract.topics.items():
        kept, log = topic.kept, tables.log(settings().warehouse, contract.pipeline, name)
        if kept is None or kept.log is None or kept.quarantine is None or tables.opened(log) is None:
            continue
        before = horizon.of(log)
        at, slowest = _horizon(known, reached[name], kept.log, before)
        if at is not None:
            refused = _before(known, kept.quarantine)
            moments = [moment for moment in (refused, before.refused if before else None) if moment is not None]
            at = replace(at, refused=max(moments, default=None), valid_time=topic.valid_time)
        found[name] = _Kept(log, at, slowest)
    return found


def _input(spark: SparkSession, contract: Contract, name: str) -> list[Slowest]:
    """How far the table of another pipeline has come: the last start of a row."""
    table = inputs.table(settings().warehouse, contract, name)
    row = contents.believed(spark, table).agg(F.unix_micros(F.max(tables.period(table)[0]))).first()
    return [Slowest(name, 0, _moment(row[0]))] if row and row[0] is not None else []


def _horizon(
    known: datetime, times: list[Slowest], keep: timedelta, before: Horizon | None
) -> tuple[Horizon | None, Slowest | None]:
    """The horizon of a table that is kept so long, and the partition that holds it back, if one does."""
    slowest = min(times, key=lambda it: it.reached, default=None)
    if slowest is None:
        return before, None
    at = _before(min(known, slowest.reached), keep)
    told = slowest if slowest.reached < known else None
    if at is None or (before is not None and at <= before.at):
        return before, told
    return Horizon(at), told


def _before(moment: datetime, keep: timedelta) -> datetime | None:
    try:
        return moment - keep
    except OverflowError:
        return None


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _told(at: Horizon | None, slowest: Slowest | None) -> dict[str, Any]:
    told: dict[str, Any] = {"horizon": at.at.isoformat() if at else None}
    if slowest is not None:
        told["slowest"] = slowest._asdict() | {"reached": slowest.reached.isoformat()}
    return told


def _trim_table(spark: SparkSession, table: Table, at: Horizon, known: datetime, *, dry_run: bool) -> int:
    """Removes the rows of a table that answer nothing from its horizon on, in one commit; how many.

    How many are left, of runs up to `known`, is noted first (counted.py).
    """
    gone = horizon.gone(table.kind, at.at)
    rows = contents.load(spark, table).where(gone).count()
    if rows and not dry_run:
        counted.note(spark, table, known)
        commits.remove(spark, table, gone, {"trimmed": at.at.isoformat()})
    return rows


def _trim_log(spark: SparkSession, contract: Contract, name: str, at: Horizon, last: int, *, dry_run: bool) -> int:
    """Removes the records of a log, up to those of the run `last`, that are not needed from its horizon on; how many.

    What the ledger tells of them is written first (trimmed.py).
    """
    log = tables.log(settings().warehouse, contract.pipeline, name)
    decided = logs.again(redating.log(spark, contract, name), contract, name)
    # A record that is held was never in force, and stays until somebody has decided about it.
    known = topic_records.without_held(spark, contract, name, decided.where(F.col("run") <= last))
    places = unneeded(known, at, table=contract.topics[name].read == "table")
    rows = _counted(contents.load(spark, log).join(places, ["partition", "offset"], "left_semi")).localCheckpoint()
    records = rows.count()
    if not records or dry_run:
        return records
    counts, before = trimmed.table(log), tables.published(log, trimmed.PART)
    columns = {"horizon": F.lit(at.at), "through": F.lit(last).cast("long"), "trim": F.lit(0).cast("long")}
    summed = _summed(spark, log, counts, rows, before).withColumns(columns)
    making.ensure(counts, making.nullable(summed.schema))
    number = tables.published(counts) + 1
    while not commits.append(summed.withColumn("trim", F.lit(number).cast("long")), counts, number, {}):
        number += 1
    _remove(spark, log, rows, number, before, {"trimmed": at.at.isoformat()})
    commits.remove(spark, counts, f"trim < {number}", {})
    return records


def unneeded(log: DataFrame, at: Horizon, *, table: bool) -> DataFrame:
    """The places (partition, offset) of a log's records that answer nothing from its horizon on.

    `log`: the rows of a log with their fates as they were decided last. Of a table the record of each key that was in
    force at the horizon stays, be it a tombstone: a late record dated before it must not show.

        8 @0, 10 @4, 12 @9    horizon @6    ->    8 @0
    """
    judged, moment = F.col("fate").isin("accepted", "expired"), F.lit(at.at)
    past = judged & ((F.col("timestamp") <= moment) if table else (F.col("timestamp") < moment))
    refused = F.lit(False) if at.refused is None else ~judged & (F.col("systemFrom") < F.lit(at.refused))
    if not table:
        return log.where(past | refused).select("partition", "offset")
    taken = past & (F.col("fate") == "accepted")
    latest = Window.partitionBy("key", taken).orderBy(
        *(F.desc(c) for c in ("timestamp", "epoch", "partition", "offset"))
    )
    in_force = taken & (F.col("key").isNull() | (F.col("_nth") == 1))
    rows = log.withColumn("_nth", F.row_number().over(latest))
    return rows.where((past & ~in_force) | refused).select("partition", "offset")


def _counted(rows: DataFrame) -> DataFrame:
    """Rows of a log with what is counted of them (trimmed.py), without their bytes."""
    places = {"topic": "string", "topicPartition": "int"}
    missing = {name: F.lit(None).cast(kind) for name, kind in places.items() if name not in rows.columns}
    late = F.coalesce(F.col("timestamp") < F.col("streamTime"), F.lit(False)).cast("long")
    without = ((F.col("fate") == "accepted") & F.col("value").isNull()).cast("long")
    told = rows.withColumns({**missing, "n": F.col("offsets"), "late": late, "without": without})
    return told.select("offset", *(name for name in trimmed.COUNTS.names if name not in ("first", "after")))


def _summed(spark: SparkSession, log: Table, counts: Table, rows: DataFrame, before: int) -> DataFrame:
    """What the ledger has to know of all records removed so far, and of these (`_counted`)."""
    brought = [(it.run, it.partition, it.start, it.end) for it in ledger.pieces(log)]
    pieces = spark.createDataFrame(brought, "_run long, _partition int, first long, after long")
    within = (F.col("run") == F.col("_run")) & (F.col("partition") == F.col("_partition"))
    within = within & (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("after"))
    told = rows.join(F.broadcast(pieces), within).select(*trimmed.COUNTS.names)
    if before:
        told = told.unionByName(contents.load(spark, counts).where(F.col("trim") == before).select(told.columns))
    by, sums = ("run", "partition", "first", "after", "fate"), ("n", "late", "without")
    same = [c for c in trimmed.COUNTS.names if c not in (*by, *sums)]
    summed = told.groupBy(*by).agg(*(F.sum(c).alias(c) for c in sums), *(F.first(c).alias(c) for c in same))
    return summed.select(*trimmed.COUNTS.names).localCheckpoint()


def _remove(
    spark: SparkSession, log: Table, rows: DataFrame, number: int, before: int, note: Mapping[str, Any]
) -> None:
    """The commit to a log that removes some of its rows; RunError if another trim came between."""
    view = f"trimmed_{log.pipeline}_{log.name.replace('/', '_')}"
    rows.select("partition", "offset").createOrReplaceTempView(view)
    confs = {
        "spark.databricks.delta.write.txnAppId": log.app(trimmed.PART),
        "spark.databricks.delta.write.txnVersion": str(number),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(dict(note)),
    }
    merge = (
        f"MERGE INTO delta.`{log.path}` t USING {view} s "  # names of ours
        "ON t.`partition` = s.`partition` AND t.`offset` = s.`offset` WHEN MATCHED THEN DELETE"
    )
    try:
        with temporarily(spark, confs):
            published = lambda: tables.published(log, trimmed.PART)  # noqa: E731
            attempts.once(lambda: spark.sql(merge).collect(), published, number, before, log.path)
    finally:
        spark.catalog.dropTempView(view)


def _trim_refused(spark: SparkSession, contract: Contract, name: str, at: Horizon, *, dry_run: bool) -> int:
    """Removes what was refused of a topic too long ago: its rows in the quarantine, and its bytes in `fates`."""
    warehouse, pipeline = settings().warehouse, contract.pipeline
    moment, told = questions.moment(at.refused or at.at), {"trimmed": at.at.isoformat()}
    entered = tables.fates(warehouse, pipeline, name)
    if tables.opened(entered) is not None and not dry_run:
        there = f"systemFrom < {moment} AND (key IS NOT NULL OR value IS NOT NULL)"
        if contents.load(spark, entered).where(there).take(1):
            commits.blank(spark, entered, ("key", "value"), there, told)
    quarantine = logs.quarantine(warehouse, pipeline)
    if tables.opened(quarantine) is None:
        return 0
    rows = contents.load(spark, quarantine).where(f"systemFrom < {moment}")
    names = [row[0] for row in rows.select("topic").distinct().collect() if contract.entry(row[0]) == name]
    if not names:
        return 0
    listed = ", ".join(map(questions.literal, names))
    gone = f"systemFrom < {moment} AND topic IN ({listed})"
    refused = rows.where(gone).count()
    if refused and not dry_run:
        commits.remove(spark, quarantine, gone, told)
    return refused
