"""What a run has to change in a table, found incrementally or by deriving the table whole.

A table is derived whole the first time, after the contract has changed, if the run is about this table alone
(`Plan.only`), and if its inputs are so small (`incremental_state.MAX_WHOLE_ROWS`) that finding the affected rows would
take longer. Both give the same result; `bitemporal/incremental.py` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental, incremental_views
from hindcast.bitemporal.affected_periods import NearbyRows
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.common.errors import TableError
from hindcast.common.session import slice_large_keys
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, list_shapes
from hindcast.engine import eligibility
from hindcast.engine.staged_files import StagedFiles, stage_view
from hindcast.ingest import initial_rows, topic_log
from hindcast.ingest.ingest_commits import IngestedRecords
from hindcast.plan import horizon, journal
from hindcast.plan.inputs import locate_own_table, locate_source_table
from hindcast.plan.journal import Run
from hindcast.plan.plans import Plan
from hindcast.quality import hold_back, hold_store, hold_units
from hindcast.quality.hold_back import HoldInputs
from hindcast.quality.row_holds import HoldableRecords
from hindcast.runs import (
    emission,
    emitted_table,
    expression_checks,
    incremental_state,
    table_diff,
    tie_counts,
    topic_records,
)
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import emitted_log, row_reader, schema_evolution, tables
from hindcast.store.change_reader import ChangeReader
from hindcast.store.commit_notes import LeftOut, TableNote
from hindcast.store.tables import Table


class DerivedChange(NamedTuple):
    """The rows to close and to open (`plane.diff_rows`); for an aggregate also what it leaves out, to add to `before`.

    `after`: the last run that had published the table when it was read. `staged`: the files in which a kernel has
    already written the opened rows. `judged`: the held changes that were derived again; None: all of them. `ties`: for
    a topic's table the new records with those that they tie with.
    """

    changes: DataFrame
    after: int
    left_out: DataFrame | None = None
    before: LeftOut | None = None
    staged: StagedFiles | None = None
    judged: HoldInputs | None = None
    ties: DataFrame | None = None


def derive_topic_change(
    spark: SparkSession,
    sources: ChangeReader,
    contract: Contract,
    plan: Plan,
    name: str,
    ingested: IngestedRecords | None,
) -> DerivedChange:
    """Return what a topic's log changes in its table; for a stream these are the records that it does not have yet.

    The records that the step has just `ingested` are taken from memory if the table needs no others, so that each is
    decoded once. Held changes (hold_store.py) are derived again if something has changed for them (topic_records.py).
    """
    topic, table = contract.topics[name], locate_own_table(contract, name)
    after, frozen = tables.read_last_run(table), horizon.find_frozen_until(table.warehouse, contract, name)
    records = TopicRecords(spark, contract, plan, name, ingested)
    if topic.read == "stream":
        return _derive_stream_change(spark, contract, plan, name, records)

    def change_of(
        rows: DataFrame,
        changes: DataFrame,
        derive_change: Callable[[DataFrame], DataFrame],
        *,
        ties: DataFrame | None,
        whole: bool,
    ) -> DerivedChange:
        def derive_without(places: DataFrame) -> DataFrame:
            return derive_change(topic_records.exclude_places(rows, places))

        judged = HoldInputs(records.find_held_to_rejudge(whole=whole))
        if hold_units.has_record_hold(contract, name):
            own = records.judged_rows(rows)
            judged = judged._replace(records=HoldableRecords(own, derive_without, records.find_released(own)))
        return DerivedChange(changes, after, judged=judged, ties=ties)

    place = table.warehouse, contract.pipeline, name
    log_table, initial_table = tables.log_table(*place), initial_rows.initial_rows_table(*place)
    seen = incremental_state.find_last_run(contract, table, log_table, initial_table)
    if seen is None or name in (plan.only, plan.upgraded_table) or records.has_redefined_holds:
        every = records.read_all()
        needs_ties = tie_counts.needs_tie_counts(contract, plan, name, tables.count_rows(log_table))
        unpublished, published = records.select_unpublished(every, whole=True), records.select_published(every)
        tied = tie_counts.find_ties_in_whole(plan, name, unpublished, published) if needs_ties else None

        def compare_whole(rows: DataFrame) -> DataFrame:
            return table_diff.diff_whole(spark, table, derivation.derive_topic_versions(rows, topic.ttl), plan, frozen)

        return change_of(every, compare_whole(every), compare_whole, ties=tied, whole=True)
    new = records.read_since(seen.number)
    earlier = records.select_until(topic_log.read_accepted(spark, contract, name, after=0), seen.number)

    def near_log(new: DataFrame) -> NearbyRows:
        def log(periods: DataFrame | None) -> DataFrame:
            near = earlier if periods is None else sources.filter_within(earlier, periods, "timestamp", "timestamp")
            return initial_rows.find_hidden_records(
                spark, contract, name, records.decode_log(incremental.find_hidden_records(near, new)), new
            )

        return log

    def refresh(new: DataFrame) -> AffectedRows:
        return incremental_views.refresh_topic(
            list_shapes(contract)[name], topic.ttl, new, sources.read_near(table), near_log(new), sources.cache_rows
        )

    def compare_refreshed(rows: DataFrame) -> DataFrame:
        return table_diff.diff_increment(spark, table, refresh(rows), plan, frozen)

    first, tied = refresh(new), None
    if tie_counts.needs_tie_counts(contract, plan, name):
        unpublished = records.select_unpublished(new, whole=False)
        tied = tie_counts.find_ties_in_increment(contract, plan, name, unpublished, near_log(new), first.current)
    changes = table_diff.diff_increment(spark, table, first, plan, frozen)
    return change_of(new, changes, compare_refreshed, ties=tied, whole=False)


def _derive_stream_change(
    spark: SparkSession, contract: Contract, plan: Plan, name: str, records: TopicRecords
) -> DerivedChange:
    """Return the events of a topic's log that its table does not have yet."""
    table, whole = locate_own_table(contract, name), name == plan.only
    after, frozen = tables.read_last_run(table), horizon.find_frozen_until(table.warehouse, contract, name)
    whole = whole or incremental_state.has_new_decoding(contract, table, name) or records.has_redefined_holds
    judged = HoldInputs(records.find_held_to_rejudge(whole=whole))
    if whole:
        events = derivation.derive_topic_events(records.read_all())
        return DerivedChange(table_diff.diff_whole(spark, table, events, plan, frozen), after, judged=judged)
    derived = horizon.clip_rows(derivation.derive_topic_events(records.read_since(after)), table.kind, frozen)
    schema_evolution.ensure_columns(spark, table, table_diff.table_schema(derived), plan.known_at)
    return DerivedChange(derived.withColumn("change", F.lit("open")), after, judged=judged)


def derive_view_change(
    spark: SparkSession, sources: ChangeReader, contract: Contract, plan: Plan, name: str
) -> DerivedChange:
    """Return what the inputs of a view, as they are now or as the plan pins them, change in its table."""
    table = locate_own_table(contract, name)
    after = tables.read_last_run(table)
    inputs = {i: locate_source_table(contract, plan, i) for i in contract.views[name].inputs}
    current = {i: row_reader.load_current_rows(spark, source) for i, source in inputs.items()}
    expression_checks.refuse_unfit_expressions(spark, contract, name, current)
    if contract.views[name].semantics == "kafka":
        return _derive_emitted_change(spark, sources, contract, plan, name)
    frozen = _find_derivable_from(contract, plan, name)
    held_units = hold_store.read_held_units(spark, table.warehouse, table.pipeline, name, before=plan.run)
    seen = incremental_state.find_last_run(contract, table, *inputs.values())
    if name == plan.only or plan.upgraded_table or (seen and incremental_state.has_trimmed_input(seen, inputs)):
        seen = None

    affected, rejudged = None if seen is None else _refresh_view(sources, contract, table, inputs, seen), None
    if seen is not None and affected is not None and held_units is not None:
        affected, rejudged = _add_held_keys(sources, contract, plan, table, affected, held_units, seen, inputs)
    if seen is None or affected is None:
        rows = sum(map(tables.count_rows, inputs.values()))
        if frozen is None and held_units is None and eligibility.is_worthwhile(rows) and not tables.count_rows(table):
            staged = _stage_view(spark, contract, plan, name, inputs, current)
            if staged is not None:
                return DerivedChange(staged.read_change(spark), after, staged=staged)
        with slice_large_keys(spark, rows):
            whole = table_diff.diff_whole(spark, table, derivation.derive_view(contract, name, current), plan, frozen)
        since = None if frozen is None or held_units else _derive_left_out_since(sources, contract, table, inputs)
        return DerivedChange(whole, after, *(since or (derivation.count_left_out_of_view(contract, name, current),)))
    changes, judged = table_diff.diff_increment(spark, table, affected, plan, frozen), HoldInputs(rejudged)
    before = _read_left_out(table, seen)
    if affected.left_out is None or before is None:
        return DerivedChange(changes, after, derivation.count_left_out_of_view(contract, name, current), judged=judged)
    return DerivedChange(changes, after, affected.left_out, before, judged=judged)


def _refresh_view(
    sources: ChangeReader, contract: Contract, table: Table, inputs: Mapping[str, Table], since: Run
) -> AffectedRows | None:
    """Return the rows of a view that changes of its inputs since a run affect; None if it must be derived whole."""
    pins = since.plan.as_of_system_times
    changed = {i: sources.read_source(source, pins.get(i, since.known_at)) for i, source in inputs.items()}
    requeued = incremental_state.has_requeued_records(contract, table.name, since.number)
    return incremental_views.refresh_view(
        contract, table.name, changed, sources.read_near(table), sources.cache_rows, requeued=requeued
    )


def _add_held_keys(
    sources: ChangeReader,
    contract: Contract,
    plan: Plan,
    table: Table,
    affected: AffectedRows,
    held: DataFrame,
    seen: Run,
    inputs: dict[str, Table],
) -> tuple[AffectedRows | None, DataFrame]:
    """Return the rows affected since the run `seen`, with all changes of held keys since they are held, and the held
    units of these keys, even if none of their rows is left. No rows (None) if the view must be derived whole.
    """
    current, derived = sources.cache_rows(affected.current), sources.cache_rows(affected.derived)
    affected = affected._replace(current=current, derived=derived)
    rejudged, key = held, hold_store.format_row_key(table.key)
    if not incremental_state.has_changed_for_gates(contract, plan, table, seen.number):
        keys = current.select(key.alias("key")).unionByName(derived.select(key.alias("key"))).distinct()
        touched = [held.join(keys, "key", "left_semi"), hold_back.find_released_units(plan, table.name, held)]
        if affected.units is not None:  # a held key may have no rows, now or before
            touched.append(hold_store.filter_concerned(held, affected.units))
        rejudged = reduce(DataFrame.unionByName, touched).distinct().localCheckpoint()
    row = rejudged.agg(F.min("since")).first()
    if row is None or row[0] is None:
        return affected, rejudged
    since = incremental_state.find_last_run_of_any_size(contract, table, row[0])
    if since is None or incremental_state.has_trimmed_input(since, inputs):
        return None, rejudged
    if (earlier := _refresh_view(sources, contract, table, inputs, since)) is None:
        return None, rejudged
    held_keys = F.broadcast(rejudged.select(F.col("key").alias("_held")).distinct())

    def combine(new: DataFrame, old: DataFrame) -> DataFrame:
        others, own = (
            rows.join(held_keys, key == F.col("_held"), how) for rows, how in ((new, "left_anti"), (old, "left_semi"))
        )
        return others.unionByName(own)

    both = combine(current, earlier.current), combine(derived, earlier.derived)
    return AffectedRows(*both, affected.left_out), rejudged


def _stage_view(
    spark: SparkSession,
    contract: Contract,
    plan: Plan,
    name: str,
    inputs: Mapping[str, Table],
    current: Mapping[str, DataFrame],
) -> StagedFiles | None:
    """Return the files that a kernel wrote for a view that has no rows yet; None if no kernel can derive it."""
    table = locate_own_table(contract, name)
    derived = derivation.derive_view(contract, name, current)
    schema_evolution.ensure_columns(spark, table, table_diff.table_schema(derived), plan.known_at)
    return stage_view(derived, contract, name, inputs, table, plan.known_at)


def _derive_emitted_change(
    spark: SparkSession, sources: ChangeReader, contract: Contract, plan: Plan, name: str
) -> DerivedChange:
    """Emit the records of a kafka view for this run; return what they change in its table."""
    table, shape = locate_own_table(contract, name), list_shapes(contract)[name]
    after = tables.read_last_run(table)
    every = emission.emit_view(spark, contract, plan, name)
    log = emitted_log.emitted_table(table.warehouse, contract, name)
    seen = incremental_state.find_last_run(contract, table, log)
    if seen is None or name == plan.only or not _has_same_epoch(log, seen.number, plan.run):
        derived = emitted_table.derive_table(every, shape)
        return DerivedChange(table_diff.diff_whole(spark, table, derived, plan, None), after)
    new = every.where(F.col("_run") > seen.number)
    affected = emitted_table.derive_increment(new, every.where(F.col("_run") <= seen.number), shape, sources, table)
    return DerivedChange(table_diff.diff_increment(spark, table, affected, plan, None), after)


def _has_same_epoch(log: Table, *runs: int) -> bool:
    """Return whether a kafka view had the same epoch, so the same definition, in all of these runs."""
    notes = [emitted_log.read_last_note(log, run) for run in runs]
    return len({note and note.epoch for note in notes}) == 1


def list_sources(contract: Contract, plan: Plan, name: str) -> list[Table]:
    """Return the tables by which to tell whether a view has anything new to process.

    For a kafka view these are logs, because a record that changes no table can make it emit; and its own emitted log,
    because what it emitted by another definition is no longer valid.
    """
    view, warehouse = contract.views[name], read_settings().warehouse
    if view.semantics == "corrected":
        return [locate_source_table(contract, plan, i) for i in view.inputs]
    topics = [i for i in view.inputs if i in contract.topics]
    return [
        *(of(warehouse, contract.pipeline, i) for i in topics for of in (tables.log_table, tables.fates_table)),
        *(emitted_log.emitted_table(warehouse, contract, i) for i in (*view.inputs, name) if i not in topics),
    ]


def _find_derivable_from(contract: Contract, plan: Plan, name: str) -> datetime | None:
    """Return the moment before which a view cannot be derived, None if there is none.

    Raise TableError if it cannot be derived at all because it needs records that were trimmed.
    """
    view, where = contract.views[name], f"{contract.pipeline}.{name}"
    for i in view.inputs:
        source = locate_source_table(contract, plan, i)
        at = horizon.read_horizon(source)
        if at is None:
            continue
        if source.as_of_system_time is not None and source.as_of_system_time < at.moment:
            found = (
                f"reads {i} as known at {source.as_of_system_time.isoformat()}, but its history was trimmed up "
                f"to {at.moment.isoformat()}"
            )
            raise TableError(found, where=where, fix=f"run it with {i} as known now: --only {i}")
        if view.stream is not None and view.aggregate is not None and view.window is None:
            found = f"aggregates all events of {i} so far, but those before {at.moment.isoformat()} were trimmed"
            raise TableError(found, where=where, fix="give it a window")
    return horizon.find_frozen_until(read_settings().warehouse, contract, name)


def _derive_left_out_since(
    sources: ChangeReader, contract: Contract, table: Table, inputs: dict[str, Table]
) -> tuple[DataFrame, LeftOut] | None:
    """Return what an aggregate of trimmed rows newly leaves out, and what it left out before; None if unknown."""
    seen = incremental_state.find_last_run_of_any_size(contract, table)
    if (
        seen is None
        or contract.views[table.name].aggregate is None
        or incremental_state.has_trimmed_input(seen, inputs)
    ):
        return None
    affected, before = _refresh_view(sources, contract, table, inputs, seen), _read_left_out(table, seen)
    return None if affected is None or affected.left_out is None or before is None else (affected.left_out, before)


def _read_left_out(table: Table, seen: Run) -> LeftOut | None:
    """Return what an aggregate left out up to a run, by the note of its commit or by the journal; None if unknown."""
    note = tables.read_notes(table, TableNote.from_json).get(seen.number)
    if note is not None and note.left_out is not None:
        return note.left_out
    return journal.read_last_result(table.warehouse, table.pipeline, table.name).left_out
