"""Deriving a table whole: a topic's table from its records, a view's from the current rows of its inputs.

Runs, previews and `verify` all derive by these functions. They are pure: they read tables, and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from hindcast.bitemporal import derivation
from hindcast.common.errors import TableError
from hindcast.contract import Contract, Topic, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.engine import eligibility
from hindcast.engine.staged_files import StagedFiles, stage_topic
from hindcast.plan import horizon
from hindcast.plan.inputs import locate_own_table, locate_source_table
from hindcast.plan.plans import Plan
from hindcast.quality import held_units
from hindcast.quality.held_records import HoldableRecords
from hindcast.quality.hold_decisions import HoldInputs
from hindcast.runs import emitted_table, incremental_state, table_diff, tie_counts, topic_records
from hindcast.runs.change_statistics import CountedRow
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import tables
from hindcast.store.commit_notes import LeftOut, TieCounts


class DerivedChange(NamedTuple):
    """What a run has to change in a table.

    `changes`: the rows to close and to open (`plane.diff_rows`). `after`: the last run that had published the table
    when it was read. `rows`: all rows of the table, if it was derived whole. `frozen`: the moment before which its rows
    stay as they are. `left_out`: for an aggregate, what it leaves out, to add to `before`. `judged`: the held changes
    that were derived again; None: all of them. `find_ties`: for a topic's table, returns the new records with those
    that they tie with; `ties`: their counts, where a kernel has counted them. `stage`: writes the opened rows by a
    kernel instead, if there is one; then `derive_in_slices` returns the change as Spark's plan finds it best.
    `kernel`: the operator, if a kernel has found the changes; they are cached then,
    and `totals` are what counting them gives (`change_statistics`).
    """

    changes: DataFrame
    after: int
    rows: DataFrame | None = None
    frozen: datetime | None = None
    left_out: DataFrame | None = None
    before: LeftOut | None = None
    judged: HoldInputs | None = None
    find_ties: Callable[[], DataFrame] | None = None
    ties: TieCounts | None = None
    stage: Callable[[], StagedFiles | None] | None = None
    derive_in_slices: Callable[[], DerivedChange] | None = None
    kernel: str | None = None
    totals: CountedRow | None = None

    def without_kernel(self) -> DerivedChange:
        """Return the change for Spark's plan, which looks for keys with many rows."""
        return self if self.derive_in_slices is None else self.derive_in_slices()


def derive_topic_rows(topic: Topic, records: DataFrame) -> DataFrame:
    """Return the flat rows of a topic's table, derived from its accepted records."""
    if topic.read == "stream":
        return derivation.derive_topic_events(records)
    return derivation.derive_topic_versions(records, topic.ttl)


def derive_view_rows(
    contract: Contract, name: str, inputs: Mapping[str, DataFrame], emitted: DataFrame | None
) -> DataFrame:
    """Return the flat rows of a view's table, derived from its inputs' current rows; those of a kafka view from all
    records that it has `emitted` in its epoch.
    """
    if emitted is not None:
        return emitted_table.derive_table(emitted, list_shapes(contract)[name])
    return derivation.derive_view(contract, name, inputs)


def derive_whole_topic(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, records: TopicRecords
) -> DerivedChange:
    """Return what the records of a topic change in its table."""
    topic, table = contract.topics[name], locate_own_table(contract, name)
    frozen, every = horizon.find_frozen_until(table.warehouse, contract, name), records.read_all()

    def derive_change(rows: DataFrame) -> DataFrame:
        return table_diff.diff_whole(spark, table, derive_topic_rows(topic, rows), frozen)

    published = records.select_published(every)

    def find_ties() -> DataFrame:
        return tie_counts.find_ties_in_whole(plan, name, records.select_unpublished(every, whole=True), published)

    has_ties = topic.read == "table" and tie_counts.needs_tie_counts(contract, plan, name)
    rows = derive_topic_rows(topic, every)
    judged = judge_holds(contract, plan, name, records, every, derive_change, whole=True)
    changes = table_diff.diff_whole(spark, table, rows, frozen)
    change = DerivedChange(changes, tables.read_last_run(table), rows, frozen, judged=judged)
    change = change._replace(find_ties=find_ties) if has_ties else change
    is_first = topic.read == "table" and frozen is None and not records.has_holds and not tables.count_rows(table)
    log_rows = tables.count_rows(tables.log_table(table.warehouse, contract.pipeline, name))
    if not is_first or not eligibility.is_worthwhile(log_rows, contract.settings):
        return change
    columns, ingested = tuple(changes.columns[:-1]), records.find_sole_ingested(0)
    at_hand = every if ingested is None else ingested.chunks
    stage = partial(stage_topic, spark, columns, contract, name, at_hand, log_rows, table, plan.known_at)
    return change._replace(stage=partial(stage, all_new=published is None))


def judge_holds(
    contract: BoundContract,
    plan: Plan,
    name: str,
    records: TopicRecords,
    derived: DataFrame,
    derive_change: Callable[[DataFrame], DataFrame],
    *,
    whole: bool,
) -> HoldInputs:
    """Return which held changes of a topic were derived again from the `derived` records.

    For `hold: row` on a table also how its change is derived without some of them: by `derive_change`.
    """
    judged = HoldInputs(records.find_held_to_rejudge(whole=whole))
    if whole and judged.rederived is None:
        judged = _find_whole_holds(contract, plan, name)
    if not held_units.has_record_hold(contract, name):
        return judged

    def derive_without(places: DataFrame) -> DataFrame:
        return derive_change(topic_records.exclude_places(derived, places))

    own = records.judged_rows(derived)
    return judged._replace(records=HoldableRecords(own, derive_without, records.find_released(own)))


def derive_whole_view(
    spark: SparkSession,
    contract: BoundContract,
    plan: Plan,
    name: str,
    inputs: Mapping[str, DataFrame],
    emitted: DataFrame | None = None,
) -> DerivedChange:
    """Return what the current rows of its inputs, or all records that a kafka view has `emitted`, change in a view's
    table. Raise TableError if it needs records that were trimmed.
    """
    table = locate_own_table(contract, name)
    frozen = find_derivable_from(contract, plan, name) if emitted is None else None
    rows = derive_view_rows(contract, name, inputs, emitted)
    changes = table_diff.diff_whole(spark, table, rows, frozen)
    left_out = derivation.count_left_out_of_view(contract, name, inputs) if emitted is None else None
    judged = _find_whole_holds(contract, plan, name)
    return DerivedChange(changes, tables.read_last_run(table), rows, frozen, left_out, judged=judged)


def _find_whole_holds(contract: BoundContract, plan: Plan, name: str) -> HoldInputs:
    """Return which holds of a table are judged again when it is derived whole: those that have changed, or all."""
    return HoldInputs(
        keeps_unchanged=not incremental_state.needs_all_held(contract, plan, locate_own_table(contract, name))
    )


def find_derivable_from(contract: BoundContract, plan: Plan, name: str) -> datetime | None:
    """Return the moment before which a view cannot be derived, None if there is none.

    Raise TableError if it cannot be derived at all because it needs records that were trimmed.
    """
    view, table = contract.views[name], locate_own_table(contract, name)
    where = f"{contract.pipeline}.{name}"
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
    return horizon.find_frozen_until(table.warehouse, contract, name)
