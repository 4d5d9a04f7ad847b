"""The horizons of a trim: how far the tables and logs of a pipeline can be trimmed, and what holds them back.

A horizon is `keep` before the last completed run (or now, if that is earlier), or before the stream time of the slowest
partition if that is earlier. It never moves back (plan/horizon.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.common.errors import HindcastError
from hindcast.contract import Contract, try_load_all
from hindcast.contract.bound import BoundContract
from hindcast.contract.folder import list_meant_pipelines
from hindcast.contract.keep import find_retention
from hindcast.ingest import retimestamping
from hindcast.ops.erase.readers import list_reading_views
from hindcast.plan import definitions, horizon, inputs, journal
from hindcast.plan.horizon import Horizon
from hindcast.plan.runs import Run
from hindcast.quality import held_changes
from hindcast.runs import emission_progress
from hindcast.store import emitted_log, row_reader, tables
from hindcast.store.tables import Table


class PartitionProgress(NamedTuple):
    """The partition of a topic (its name in the contract) and the stream time it has reached."""

    topic: str
    partition: int
    reached: datetime


class TableHorizon(NamedTuple):
    """A table, its horizon from now on, and what holds that back (`retention.Trimmed`)."""

    table: Table
    horizon: Horizon | None
    slowest: PartitionProgress | None
    undecided: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()


def read_topic_progress(spark: SparkSession, contract: BoundContract, name: str, last: int) -> list[PartitionProgress]:
    """Return the stream time of each partition of a topic after the run `last`."""
    if tables.open_table(tables.log_table(contract.warehouse, contract.pipeline, name)) is None:
        return []
    log = retimestamping.exclude_undated(spark, retimestamping.read_log(spark, contract, name), contract, name)
    accepted = log.where((F.col("fate") == "accepted") & (F.col("run") <= last))
    accepted = accepted.where(~retimestamping.is_requeued(spark, contract, name))
    rows = accepted.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("reached")).collect()
    return [PartitionProgress(name, row["partition"], _moment_of_micros(row["reached"])) for row in rows]


def find_table_horizons(
    spark: SparkSession,
    contract: BoundContract,
    progress: Mapping[str, list[PartitionProgress]],
    undecided: Mapping[str, Collection[str]],
    until: datetime,
    last: Run,
) -> dict[str, TableHorizon]:
    """Return the horizons of the tables of topics and views that are not kept forever, by name, after the run `last`.

    Tables of an older store format have none: their rows are trimmed once they are upgraded. `undecided`: as for
    `find_log_horizons`.
    """
    horizons = {}
    for name in (*contract.topics, *contract.ordered_views):
        keep = find_retention(contract, name)
        table = inputs.locate_own_table(contract, name)
        delta_table = tables.open_table(table)
        if keep is None or delta_table is None or tables.read_older_format(delta_table) is not None:
            continue
        before = horizon.read_horizon(table)
        if waiting := _select_below(contract, name, undecided):
            horizons[name] = TableHorizon(table, before, None, waiting)
            continue
        upstream = contract.list_upstream(name)
        times = [partition for source in upstream for partition in progress.get(source, [])]
        for source in filter(contract.inputs.__contains__, upstream):
            times += _read_input_progress(spark, contract, source, last.plan.as_of_system_times.get(source))
        horizons[name] = TableHorizon(table, *_next_horizon(until, times, keep, before))
    return horizons


def find_undecided_tables(contract: BoundContract) -> dict[str, set[str]]:
    """Return the views and streams that have held changes which nobody has decided about, by the table that they hold
    back: themselves, or the table that a view of another pipeline reads (then it is named `pipeline.view`).

    Such a change is derived again when it is released, from what it came from; before a horizon there would be nothing
    left of it. A held version of a topic's table counts from the horizon on, as a late one does.
    """
    undecided = {name: {name} for name in _list_undecided(contract.warehouse, contract)}
    others, unknown = _list_other_contracts(contract)
    for table in (*contract.topics, *contract.views):
        undecided.setdefault(table, set()).update(unknown)
    for other in others:
        for table in (*contract.topics, *contract.views):
            if not (views := list_reading_views(other, {f"{contract.pipeline}.{table}"})):
                continue
            try:
                found = views.intersection(_list_undecided(contract.warehouse, other))
            except HindcastError:  # its journal or its entries are damaged: they may have any of the views
                found = views
            undecided.setdefault(table, set()).update(f"{other.pipeline}.{view}" for view in found)
    return {table: names for table, names in undecided.items() if names}


def _list_other_contracts(contract: BoundContract) -> tuple[list[Contract], set[str]]:
    """Return the contracts of all other pipelines: of one whose file does not load that of its last run.

    And the pipelines that have runs but no contract that is known: they may read anything.
    """
    files = try_load_all(contract.settings.schemas, contract.settings.choice.for_others)
    found = {other.pipeline: other for other in files.values() if isinstance(other, Contract)}
    broken = [list_meant_pipelines(path) for path, other in files.items() if not isinstance(other, Contract)]
    unknown = set()
    for pipeline in sorted(set().union(*broken).difference(found, {contract.pipeline})):
        try:
            past = journal.read_runs(contract.warehouse, pipeline)
            last = definitions.find_last_contract(past)
        except HindcastError:  # its journal is damaged
            past, last = None, None
        if last is not None:
            found[pipeline] = last
        elif past != []:
            unknown.add(pipeline)
    return [other for other in found.values() if other.pipeline != contract.pipeline], unknown


def _list_undecided(warehouse: str, contract: Contract) -> set[str]:
    held = held_changes.read_held_rows(warehouse, contract.pipeline).select(["table", "entry"]).to_pylist()
    streams = {name for name, topic in contract.topics.items() if topic.read == "stream"}
    return {row["table"] for row in held if row["entry"] == "held"}.intersection({*contract.views, *streams})


def _select_below(contract: BoundContract, name: str, among: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the undecided tables (`find_undecided_tables`) that hold back the table `name` or one below it."""
    below = {name, *contract.list_tables_below(name)}.intersection(among)
    return tuple(sorted({undecided for table in below for undecided in among[table]}))


def find_log_horizons(
    contract: BoundContract,
    progress: Mapping[str, list[PartitionProgress]],
    views: Mapping[str, WaitingViews],
    undecided: Mapping[str, Collection[str]],
    until: datetime,
) -> dict[str, TableHorizon]:
    """Return the horizons of the logs that are not kept forever, by topic.

    `views`: `read_waiting_views` of each topic; `undecided`: `find_undecided_tables`.
    """
    horizons = {}
    for name, topic in contract.topics.items():
        retention, log = topic.retention, tables.log_table(contract.warehouse, contract.pipeline, name)
        if retention is None or retention.log is None or retention.quarantine is None or tables.open_table(log) is None:
            continue
        before = horizon.read_horizon(log)
        held, (processed, unready) = _select_below(contract, name, undecided), views[name]
        if held or unready:
            at, slowest = before, None
        else:
            at, slowest = _next_horizon(until, [*progress[name], *processed], retention.log, before)
        if at is not None:
            refused = _subtract_duration(until, retention.quarantine)
            moments = [moment for moment in (refused, before.refused_before if before else None) if moment is not None]
            at = replace(at, refused_before=max(moments, default=None), valid_time=topic.valid_time)
        horizons[name] = TableHorizon(log, at, slowest, held, unready)
    return horizons


class WaitingViews(NamedTuple):
    """The kafka views below a topic that may need its log again.

    `processed`: up to when those with `wait` have processed it, each given as the partition that it waits for; they
    read the log from there on. `unready`: those that may need all of it, because they have processed nothing yet, or
    have emitted records of which they have no state yet.
    """

    processed: list[PartitionProgress]
    unready: tuple[str, ...]


def read_waiting_views(contract: BoundContract, name: str, last: int) -> WaitingViews:
    """Return how far the views below a topic had processed it after the run `last`."""
    processed, unready = [], []
    for view in sorted(contract.list_tables_below(name).intersection(contract.views)):
        if contract.views[view].semantics != "kafka":
            continue
        note = emitted_log.read_last_note(emitted_log.emitted_table(contract.warehouse, contract, view), last)
        waits = contract.views[view].wait
        if waits and note is not None and note.upto >= 0 and note.waits_for is not None:
            processed.append(PartitionProgress(*note.waits_for, _moment_of_micros(note.upto * 1000)))
        elif waits:
            unready.append(view)
        if emission_progress.is_between_commits(contract, view):
            unready.append(view)
    return WaitingViews(processed, tuple(dict.fromkeys(unready)))


def _read_input_progress(
    spark: SparkSession, contract: BoundContract, name: str, pin: datetime | None
) -> list[PartitionProgress]:
    """Return how far the table of another pipeline had come as known at `pin` (None: now): the last start of a row."""
    table = inputs.locate_input_table(contract.warehouse, contract, name, pin)
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
