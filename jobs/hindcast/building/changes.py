"""What a run has to change in a table: by increments, or by deriving it whole.

Whole: the first time, after the contract has changed, if the run is about this table alone (`Plan.only`), and where
the inputs are so few (`last_seen.WHOLE`) that finding out what a change concerns would take longer. Both give the same;
how they do is told in `increments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import horizon
from hindcast.building import amounts, analysis, comparing, emitting, last_seen, tie_counts, topic_records
from hindcast.building.topic_records import TopicRecords
from hindcast.contracts import Contract, shapes
from hindcast.corrected import derive, increments, refresh
from hindcast.corrected.islands import Near
from hindcast.corrected.refresh import Refreshed
from hindcast.delta import contents, emitted, evolution, tables
from hindcast.delta.sources import Sources
from hindcast.delta.tables import Table
from hindcast.errors import TableError
from hindcast.kernels import chosen
from hindcast.kernels.staged import Staged, stage
from hindcast.planning.inputs import located, source
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan
from hindcast.quality import holding, holds, units
from hindcast.quality.holding import Judged
from hindcast.quality.row_holds import Records
from hindcast.replay import base, logs
from hindcast.replay.claims import Claimed
from hindcast.reports import report
from hindcast.session import sliced
from hindcast.settings import settings


class Found(NamedTuple):
    """The rows to close and to open (plane.changes); of an aggregate what it leaves out, to be added to `before`.

    `after`: the last run that had published the table when it was looked at. `staged`: the files in which a kernel has
    written what is opened already. `judged`: what has been derived anew of what is held back; None: all of it. `ties`:
    of a topic's table the records that came, with what they tie with.
    """

    changes: DataFrame
    after: int
    left_out: DataFrame | None = None
    before: dict[str, Any] | None = None
    staged: Staged | None = None
    judged: Judged | None = None
    ties: DataFrame | None = None

    def besides(self, counted: dict[str, Any]) -> dict[str, Any]:
        """What was counted of `left_out` and what there was before, as one."""
        if not self.before:
            return counted
        old, new = self.before["leftOut"], counted["leftOut"]
        told: dict[str, Any] = {"leftOut": {kind: n + old.get(kind, 0) for kind, n in new.items()}}
        if "streamTimes" in counted:
            times = dict(self.before.get("streamTimes", {}))
            for partition, reached in counted["streamTimes"].items():
                times[partition] = max(reached, times.get(partition, reached))
            told["streamTimes"] = times
        return told


def of_topic(
    spark: SparkSession, sources: Sources, contract: Contract, todo: Plan, name: str, claimed: Claimed | None
) -> Found:
    """What a topic's log changes in its table: of a stream the records not yet in it.

    What the step has just `claimed` is taken from memory where that is all there is to see: each record decoded once.
    Of what is held back (holds.py) it is looked again at what something has changed for (topic_records.py).
    """
    topic, table = contract.topics[name], located(contract, name)
    after, frozen = tables.published(table), horizon.frozen(table.warehouse, contract, name)
    records = TopicRecords(spark, contract, todo, name, claimed)
    if topic.read == "stream":
        return _of_stream(spark, contract, todo, name, records)

    def found(
        rows: DataFrame,
        changes: DataFrame,
        derive_change: Callable[[DataFrame], DataFrame],
        *,
        ties: DataFrame | None,
        whole: bool,
    ) -> Found:
        def derive_without(places: DataFrame) -> DataFrame:
            return derive_change(topic_records.left(rows, places))

        judged = Judged(records.again_of(whole=whole))
        if units.holds_records(contract, name):
            own = records.judged(rows)
            judged = judged._replace(records=Records(own, derive_without, records.released(own)))
        return Found(changes, after, judged=judged, ties=ties)

    of = table.warehouse, contract.pipeline, name
    seen = last_seen.run(contract, table, tables.log(*of), base.table(*of))
    if seen is None or name in (todo.only, todo.upgraded) or records.redefines:
        every = records.all()
        looked_for = tie_counts.are_looked_for(contract, todo, name, tables.size(tables.log(*of)))
        came, earlier = records.unpublished(every, whole=True), records.published(every)
        tied = tie_counts.find_in_whole(todo, name, came, earlier) if looked_for else None

        def compare_whole(rows: DataFrame) -> DataFrame:
            return comparing.whole(spark, table, derive.versions(rows, topic.ttl), todo, frozen)

        return found(every, compare_whole(every), compare_whole, ties=tied, whole=True)
    new, earlier = records.since(seen.number), records.upto(logs.accepted(spark, contract, name, after=0), seen.number)

    def near_log(new: DataFrame) -> Near:
        def log(periods: DataFrame | None) -> DataFrame:
            near = earlier if periods is None else sources.within(earlier, periods, "timestamp", "timestamp")
            return base.hidden(spark, contract, name, records.decoded(increments.hidden(near, new)), new)

        return log

    def refreshed(new: DataFrame) -> Refreshed:
        return refresh.topic(shapes(contract)[name], topic.ttl, new, sources.near(table), near_log(new), sources.keep)

    def compare_refreshed(rows: DataFrame) -> DataFrame:
        return comparing.fitting(spark, table, refreshed(rows), todo, frozen)

    first, tied = refreshed(new), None
    if tie_counts.are_looked_for(contract, todo, name):
        came = records.unpublished(new, whole=False)
        tied = tie_counts.find_in_increment(contract, todo, name, came, near_log(new), first.believed)
    changes = comparing.fitting(spark, table, first, todo, frozen)
    return found(new, changes, compare_refreshed, ties=tied, whole=False)


def _of_stream(spark: SparkSession, contract: Contract, todo: Plan, name: str, records: TopicRecords) -> Found:
    """What a topic's log changes in a table of events: those that it does not have yet."""
    table, whole = located(contract, name), name == todo.only
    after, frozen = tables.published(table), horizon.frozen(table.warehouse, contract, name)
    whole = whole or last_seen.decoded_anew(contract, table, name) or records.redefines
    judged = Judged(records.again_of(whole=whole))
    if whole:
        return Found(comparing.whole(spark, table, derive.events(records.all()), todo, frozen), after, judged=judged)
    derived = horizon.begun(derive.events(records.since(after)), table.kind, frozen)
    evolution.ensure(spark, table, comparing.table_schema(derived), todo.known_at)
    return Found(derived.withColumn("change", F.lit("open")), after, judged=judged)


def of_view(spark: SparkSession, sources: Sources, contract: Contract, todo: Plan, name: str) -> Found:
    """What its inputs, as they are believed now or were at their pins, change in a view."""
    table = located(contract, name)
    after = tables.published(table)
    inputs = {i: source(contract, todo, i) for i in contract.views[name].inputs}
    believed = {i: contents.believed(spark, it) for i, it in inputs.items()}
    analysis.check(spark, contract, name, believed)
    if contract.views[name].semantics == "kafka":
        return _of_emitted(spark, sources, contract, todo, name)
    frozen = _derivable(contract, todo, name)
    waiting = holds.waiting(spark, table.warehouse, table.pipeline, name, before=todo.run)
    seen = last_seen.run(contract, table, *inputs.values())
    if name == todo.only or todo.upgraded or (seen and last_seen.trimmed_since(seen, inputs)):
        seen = None

    def refreshed(since: Run) -> Refreshed | None:
        pins = Plan.from_json(since.plan).pins
        changed = {i: sources.source(it, pins.get(i, since.known_at)) for i, it in inputs.items()}
        anew = last_seen.requeued(contract, name, since.number)
        return refresh.view(contract, name, changed, sources.near(table), sources.keep, requeued=anew)

    found, again = None if seen is None else refreshed(seen), None
    if seen is not None and found is not None and waiting is not None:
        found, again = _with_held(sources, contract, todo, table, found, waiting, seen, inputs, refreshed)
    if seen is None or found is None:
        rows = sum(map(tables.size, inputs.values()))
        if frozen is None and waiting is None and chosen.worthwhile(rows) and not tables.size(table):
            staged = _staged(spark, contract, todo, name, inputs, believed)
            if staged is not None:
                return Found(staged.changes(spark), after, staged=staged)
        with sliced(spark, rows):
            whole = comparing.whole(spark, table, derive.view(contract, name, believed), todo, frozen)
        since = None if frozen is None or waiting else _left_out_since(sources, contract, table, inputs)
        return Found(whole, after, *(since or (derive.left_out(contract, name, believed),)))
    changes, judged = comparing.fitting(spark, table, found, todo, frozen), Judged(again)
    before = _left_out(table, name, seen)
    if found.left_out is None or before is None:
        return Found(changes, after, derive.left_out(contract, name, believed), judged=judged)
    return Found(changes, after, found.left_out, before, judged=judged)


def _with_held(
    sources: Sources,
    contract: Contract,
    todo: Plan,
    table: Table,
    found: Refreshed,
    waiting: DataFrame,
    seen: Run,
    inputs: dict[str, Table],
    refreshed: Callable[[Run], Refreshed | None],
) -> tuple[Refreshed | None, DataFrame]:
    """What increments since the run `seen` found, with all that has changed of held keys that they touch since these
    are held; and what was held of these, also of those of which nothing is left. None if only the whole can tell.
    """
    found = found._replace(believed=sources.keep(found.believed), right=sources.keep(found.right))
    again, key = waiting, holds.key_of(table.key)
    if not last_seen.changed_for_gates(contract, todo, table, seen.number):
        keys = found.believed.select(key.alias("key")).unionByName(found.right.select(key.alias("key"))).distinct()
        touched = [waiting.join(keys, "key", "left_semi"), holding.released_units(todo, table.name, waiting)]
        if found.units is not None:  # of a held key nothing need be left, nor was there
            touched.append(holds.concerned_by(waiting, found.units))
        again = reduce(DataFrame.unionByName, touched).distinct().localCheckpoint()
    row = again.agg(F.min("since")).first()
    if row is None or row[0] is None:
        return found, again
    since = last_seen.of_any_size(contract, table, row[0])
    earlier = None if since is None or last_seen.trimmed_since(since, inputs) else refreshed(since)
    if earlier is None:
        return None, again
    held = F.broadcast(again.select(F.col("key").alias("_held")).distinct())

    def of_both(new: DataFrame, old: DataFrame) -> DataFrame:
        others, own = (
            rows.join(held, key == F.col("_held"), how) for rows, how in ((new, "left_anti"), (old, "left_semi"))
        )
        return others.unionByName(own)

    both = of_both(found.believed, earlier.believed), of_both(found.right, earlier.right)
    return Refreshed(*both, found.left_out), again


def _staged(
    spark: SparkSession,
    contract: Contract,
    todo: Plan,
    name: str,
    inputs: Mapping[str, Table],
    believed: Mapping[str, DataFrame],
) -> Staged | None:
    """What a kernel makes of a view that has no rows yet; None if it has none."""
    table = located(contract, name)
    derived = derive.view(contract, name, believed)
    evolution.ensure(spark, table, comparing.table_schema(derived), todo.known_at)
    return stage(derived, contract, name, inputs, table, todo.known_at)


def _of_emitted(spark: SparkSession, sources: Sources, contract: Contract, todo: Plan, name: str) -> Found:
    """What a kafka view emits in this run, and the table that this amounts to."""
    table, shape = located(contract, name), shapes(contract)[name]
    after = tables.published(table)
    every, log = emitting.emit(spark, contract, todo, name), emitted.log(table.warehouse, contract, name)
    seen = last_seen.run(contract, table, log)
    if seen is None or name == todo.only or not _same_epoch(log, seen.number, todo.run):
        return Found(comparing.whole(spark, table, amounts.whole(every, shape), todo, None), after)
    new = every.where(F.col("_run") > seen.number)
    found = amounts.refreshed(new, every.where(F.col("_run") <= seen.number), shape, sources, table)
    return Found(comparing.fitting(spark, table, found, todo, None), after)


def _same_epoch(log: Table, *runs: int) -> bool:
    """Whether a kafka view had one definition in these runs."""
    notes = [emitted.noted(log, run) for run in runs]
    return len({note and note["epoch"] for note in notes}) == 1


def sources(contract: Contract, todo: Plan, name: str) -> list[Table]:
    """The tables that a view is computed from, as far as they can tell whether anything is new.

    Of a kafka view these are logs: a record that changes no table can make it emit. And its own: what a run has emitted
    by another definition is no longer right.
    """
    it, warehouse = contract.views[name], settings().warehouse
    if it.semantics == "corrected":
        return [source(contract, todo, i) for i in it.inputs]
    topics = [i for i in it.inputs if i in contract.topics]
    return [
        *(of(warehouse, contract.pipeline, i) for i in topics for of in (tables.log, tables.fates)),
        *(emitted.log(warehouse, contract, i) for i in (*it.inputs, name) if i not in topics),
    ]


def _derivable(contract: Contract, todo: Plan, name: str) -> datetime | None:
    """Before when a view cannot be derived; TableError if it cannot be at all, because it needs what was trimmed."""
    view, where = contract.views[name], f"{contract.pipeline}.{name}"
    for i in view.inputs:
        it = source(contract, todo, i)
        at = horizon.of(it)
        if at is None:
            continue
        if it.pin is not None and it.pin < at.at:
            found = f"reads {i} as known at {it.pin.isoformat()}, and its history was trimmed up to {at.at.isoformat()}"
            raise TableError(found, where=where, mend=f"run it about {i}, as it is known now: --only {i}")
        if view.stream is not None and view.aggregate is not None and view.window is None:
            found = f"aggregates all events of {i} so far, and those before {at.at.isoformat()} were trimmed"
            raise TableError(found, where=where, mend="give it a window")
    return horizon.frozen(settings().warehouse, contract, name)


def _left_out_since(
    sources: Sources, contract: Contract, table: Table, inputs: dict[str, Table]
) -> tuple[DataFrame, dict[str, Any]] | None:
    """What an aggregate of rows that have been trimmed leaves out beside what it left out before; None if that cannot
    be told.
    """
    seen = last_seen.of_any_size(contract, table)
    if seen is None or contract.views[table.name].aggregate is None or last_seen.trimmed_since(seen, inputs):
        return None
    pins, name = Plan.from_json(seen.plan).pins, table.name
    changed = {i: sources.source(it, pins.get(i, seen.known_at)) for i, it in inputs.items()}
    anew = last_seen.requeued(contract, name, seen.number)
    found = refresh.view(contract, name, changed, sources.near(table), sources.keep, requeued=anew)
    before = _left_out(table, name, seen)
    return None if found is None or found.left_out is None or before is None else (found.left_out, before)


def _left_out(table: Table, name: str, seen: Run) -> dict[str, Any] | None:
    """What an aggregate left out before, as its last commit or report tells it; None if neither does."""
    noted = tables.notes(table).get(seen.number, {})
    told = noted if "leftOut" in noted else report.before(table.warehouse, table.pipeline).get(name, {})
    return told if "leftOut" in told else None
