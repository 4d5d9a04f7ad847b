"""What a run has to change in a topic's table, found from its new records or by deriving the table whole.

When which is done is as for a view (derive_view.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental, incremental_views
from hindcast.bitemporal.affected_periods import NearbyRows
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.bitemporal.plane import drop_matching_rows
from hindcast.bitemporal.valid_time import timestamp_literal
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.engine.spec import VersionIncrement
from hindcast.ingest import initial_rows, retimestamping, topic_log
from hindcast.ingest.ingest_commits import IngestedRecords
from hindcast.plan import horizon, journal
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.quality.hold_decisions import HoldInputs
from hindcast.runs import (
    derive_by_kernel,
    incremental_state,
    table_diff,
    tie_counts,
)
from hindcast.runs.derive_by_kernel import OpenedTopic
from hindcast.runs.derive_whole import (
    DerivedChange,
    derive_whole_topic,
    judge_holds,
)
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import row_reader, tables
from hindcast.store.change_reader import ChangeReader


def derive_topic_change(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    plan: Plan,
    name: str,
    ingested: IngestedRecords | None,
) -> DerivedChange:
    """Return what a topic's log changes in its table; for a stream these are the records that it does not have yet.

    The records that the step has just `ingested` are taken from memory if the table needs no others, so that each is
    decoded once. Held changes (failing_rows.py) are derived again if something has changed for them (topic_records.py).
    """
    table = locate_own_table(contract, name)
    records = TopicRecords(spark, contract, plan, name, ingested)
    place = table.warehouse, contract.pipeline, name
    if contract.topics[name].read == "stream":
        if (
            name == plan.only
            or incremental_state.is_unknown(table)
            or incremental_state.has_late_records(journal.read_runs(*place[:2]), contract, table)
            or incremental_state.has_new_decoding(contract, table, name)
            or incremental_state.has_forgotten_events(contract, table, name)
            or incremental_state.has_revised_fates(spark, table, name)
            or records.has_redefined_holds
        ):
            return derive_whole_topic(spark, contract, plan, name, records)
        return _derive_new_events(spark, contract, name, records)
    logs = tables.log_table(*place), initial_rows.initial_rows_table(*place)
    seen = incremental_state.find_last_run(contract, table, *logs, by_kernel=contract.settings.kernels)
    if seen is None or name in (plan.only, plan.upgraded_table) or records.has_redefined_holds:
        return derive_whole_topic(spark, contract, plan, name, records)
    by_plan = not incremental_state.is_quicker_whole(*logs)
    change = _derive_new_versions(spark, sources, contract, plan, name, records, seen, by_plan=by_plan)
    return change or derive_whole_topic(spark, contract, plan, name, records)


def _derive_new_versions(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    plan: Plan,
    name: str,
    records: TopicRecords,
    seen: Run,
    *,
    by_plan: bool,
) -> DerivedChange | None:
    """Return what the records since the run `seen` change in a topic's table.

    Return None if only deriving it whole tells; without `by_plan` also if no kernel can find it, since Spark's plan
    would take longer.
    """
    topic, table = contract.topics[name], locate_own_table(contract, name)
    after, frozen = tables.read_last_run(table), horizon.find_frozen_until(table.warehouse, contract, name)
    new = records.read_since(seen.number)
    if frozen is not None and new.where(F.col("timestamp") <= timestamp_literal(frozen)).take(1):
        return None  # a current row that begins at the horizon does not say when its record is dated

    earlier = EarlierRecords(spark, contract, name, records, seen.number)

    def near_log(new: DataFrame) -> NearbyRows:
        def log(periods: DataFrame | None) -> DataFrame:
            near = earlier.rows
            near = near if periods is None else sources.filter_within(near, periods, "timestamp", "timestamp")
            return earlier.find_hidden(near, new)

        return log

    ingested = records.find_sole_ingested(seen.number)
    moments = None if ingested is None else ingested.list_moments()

    def find_hidden_since(moment: int, new: DataFrame) -> DataFrame | None:
        return earlier.find_hidden_since(moment, new, moments)

    first = None if moments is None else pc.min(moments).cast(pa.int64()).as_py()
    opened = OpenedTopic(sources, contract, plan, name, find_hidden_since, first)

    def refresh_by_plan(new: DataFrame) -> AffectedRows:
        return incremental_views.refresh_topic(
            list_shapes(contract)[name], topic.ttl, new, sources.read_near(table), near_log(new), sources.cache_rows
        )

    def derive_change(rows: DataFrame) -> DataFrame:
        affected = derive_by_kernel.refresh_versions(opened, rows) or refresh_by_plan(rows)
        return table_diff.diff_increment(table, affected, frozen)

    here = ingested.chunks if ingested is not None and moments is not None else None
    by_kernel = derive_by_kernel.derive_versions(opened, new, here) if frozen is None else None
    kernel: str | None = VersionIncrement.operator
    if by_kernel is not None:
        current, changes, totals, counted = by_kernel
    else:
        affected = derive_by_kernel.refresh_versions(opened, new) if frozen is not None else None
        if affected is None and not by_plan:
            return None
        affected = affected or refresh_by_plan(new)
        current, kernel, totals, counted = affected.current, affected.kernel, None, None
        changes = table_diff.diff_increment(table, affected, frozen)

    def find_ties() -> DataFrame:
        unpublished = records.select_unpublished(new, whole=False)
        return tie_counts.find_ties_in_increment(contract, plan, name, unpublished, near_log(new), current)

    judged = judge_holds(contract, plan, name, records, new, derive_change, whole=False)
    change = DerivedChange(changes, after, frozen=frozen, judged=judged, kernel=kernel, totals=totals)
    if not tie_counts.needs_tie_counts(contract, plan, name):
        return change
    return change._replace(find_ties=find_ties, ties=counted if records.are_unpublished_since(seen.number) else None)


@dataclass(frozen=True)
class EarlierRecords:
    """The accepted records of a topic that its table includes after the run `until`."""

    spark: SparkSession
    contract: BoundContract
    name: str
    records: TopicRecords
    until: int

    @cached_property
    def rows(self) -> DataFrame:
        """The records, not decoded."""
        log = topic_log.read_accepted(self.spark, self.contract, self.name, after=0)
        return self.records.select_until(log, self.until)

    def find_hidden(self, near: DataFrame, new: DataFrame) -> DataFrame:
        """Return those of some of them that are hidden to new ones (`incremental.find_hidden_records`), decoded."""
        if self.contract.topics[self.name].envelope is None:
            hidden = self.records.decode_log(incremental.find_hidden_records(near, new))
        else:
            # A tombstone in an envelope has bytes too
            hidden = incremental.find_hidden_records(self.records.decode_log(near), new)
        return initial_rows.find_hidden_records(self.spark, self.contract, self.name, hidden, new)

    def find_hidden_since(self, moment: int, new: DataFrame, moments: pa.Array | None) -> DataFrame | None:
        """Return those dated from a moment on that are hidden to new ones; None if it is known without Spark that there
        are none. `moments`: the timestamps of the new ones, if they are known.
        """
        if not _may_have_hidden_records(self.spark, self.contract, self.name, moment, self.until, moments):
            return None
        return self.find_hidden(self.rows.where(F.col("timestamp") >= F.timestamp_micros(F.lit(moment))), new)


def _may_have_hidden_records(
    spark: SparkSession, contract: BoundContract, name: str, first: int, until: int, moments: pa.Array | None
) -> bool:
    """Return whether records of runs up to `until` may be hidden to new ones (`topic_log.may_have_hidden_records`).

    The log tells, unless some records have other times than it says.
    """
    fates = tables.fates_table(contract.warehouse, contract.pipeline, name)
    if tables.open_table(fates) is not None or initial_rows.has_initial_rows(contract, name):
        return True
    if retimestamping.find_stale_runs(spark, contract, name):
        return True
    # In an envelope a tombstone has bytes too.
    known = moments if contract.topics[name].envelope is None else None
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    return topic_log.may_have_hidden_records(log, first, until, known)


def _derive_new_events(spark: SparkSession, contract: BoundContract, name: str, records: TopicRecords) -> DerivedChange:
    """Return the events of a topic's log that its table does not have yet."""
    table = locate_own_table(contract, name)
    after, frozen = tables.read_last_run(table), horizon.find_frozen_until(table.warehouse, contract, name)
    judged = HoldInputs(records.find_held_to_rejudge(whole=False))
    events = horizon.clip_rows(derivation.derive_topic_events(records.read_since(after)), table.kind, frozen)
    if records.has_returned_records(after) and tables.open_table(table) is not None:  # some may be published by now
        current = row_reader.load_current_rows(spark, table)
        events = drop_matching_rows(events.dropDuplicates([*table.identity]), current, table.identity)
    return DerivedChange(events.withColumn("_change", F.lit("open")), after, frozen=frozen, judged=judged)
