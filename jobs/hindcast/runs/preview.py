"""What a run would change: which past answers, how old they are, and examples. Nothing is written.

A preview derives every table whole, from the log and from what Kafka has now, and compares that with the current rows.
It ingests nothing, and no run has to wait for it. All tables are read as they were when it began, even if a run commits
to them meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from hindcast.bitemporal import ties
from hindcast.bitemporal.plane import drop_matching_rows
from hindcast.common import progress, step_events
from hindcast.common.errors import PlatformError, RecordError
from hindcast.common.session import fit_to_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract, locate_complaint
from hindcast.contract.bound import BoundContract
from hindcast.contract.definition import list_fields
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import initial_rows, record_counts, schemas, topic_log, topic_segments
from hindcast.ingest.segments import Segments
from hindcast.kafka import topic_patterns
from hindcast.plan import definitions, inputs, journal, marks, planner
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.plans import Plan
from hindcast.quality import quarantine_gates
from hindcast.quality.staged_change import StagedChange
from hindcast.report import preview_files, report
from hindcast.runs import (
    change_statistics,
    emission,
    expression_checks,
    expression_errors,
    inventory,
    preview_examples,
    run_preview,
    spark_errors,
    tie_counts,
    widening,
)
from hindcast.runs.change_statistics import ChangeStatistics
from hindcast.runs.derive_whole import DerivedChange, derive_whole_topic, derive_whole_view
from hindcast.runs.run_preview import RunPreview, TablePreview, TopicPreview
from hindcast.runs.table_diff import table_schema
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import pinning, row_reader, schema_evolution, table_columns, table_creation, tables
from hindcast.store.commit_notes import TieCounts
from hindcast.store.tables import Table


def preview_run(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    interval_end: datetime | None = None,
    only: str | None = None,
) -> RunPreview:
    """Return what a run up to `interval_end` (UTC; None: everything available) or about `only` a table would change.

    Changes of keys that quarantine gates would hold back are not included, nor in tables below.
    Raise what the run would: ContractError for an expression that Spark refuses or that fails on a record, and for a
    column that must not be widened, TableError for other columns, RecordError for a record of the log that no longer
    decodes.
    """
    contract = find_bound_contract(settings, pipeline)
    with (
        step_events.record_step("preview", pipeline),
        progress.report_progress(spark),
        pinning.pin_versions(lambda: _open_tables(settings.warehouse, contract)),
    ):
        return _preview_pinned(spark, contract, interval_end, only)


def report_preview(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    interval_end: datetime | None,
    only: str | None,
    run_id: str,
) -> str:
    """Return a preview as text, and write it for the report tab of the DAG run `run_id`; arguments: `preview_run`.

    Where the file cannot be written, the text says so.
    """
    found = preview_run(spark, settings, pipeline, interval_end, only)
    text = run_preview.format_preview(found)
    try:
        preview_files.write_preview(settings, find_bound_contract(settings, pipeline), run_id, found.as_json())
    except (OSError, PlatformError) as error:
        return f"{text}\n\nthe report tab of this run does not show this: {error}"
    return text


def _open_tables(warehouse: str, contract: Contract) -> None:
    """Open every table that a preview can read: the pipeline's own, its inputs, and the journals of their pipelines."""
    for table in inventory.list_existing_tables(warehouse, contract):
        tables.open_table(table)
    for name in contract.inputs:
        table = inputs.locate_input_table(warehouse, contract, name)
        tables.open_table(table)
        tables.open_table(journal.runs_table(warehouse, table.pipeline))


def _preview_pinned(
    spark: SparkSession, contract: BoundContract, interval_end: datetime | None, only: str | None
) -> RunPreview:
    """Return what `preview_run` returns; the versions of all tables are pinned."""
    settings, pipeline = contract.settings, contract.pipeline
    for complaint in widening.check_widening(settings.warehouse, contract):
        raise locate_complaint(settings.schemas, pipeline, complaint)
    past = journal.read_runs(settings.warehouse, pipeline)
    plan = planner.propose_plan(contract, "preview", interval_end, past, only)
    candidates: dict[str, DataFrame] = {}
    emitted: dict[str, DataFrame] = {}
    topics: dict[str, TopicPreview] = {}
    changes: dict[str, TablePreview] = {}
    stored = sum(tables.count_rows(tables.locate_table(settings.warehouse, contract, name)) for name in contract.topics)
    planned = sum(sum(topic_plan.planned_counts.values()) for topic_plan in plan.topics.values())
    with fit_to_rows(spark, stored + planned):
        for name, pin in plan.as_of_system_times.items():
            candidates[name] = row_reader.load_current_rows(
                spark, inputs.locate_input_table(settings.warehouse, contract, name, pin)
            ).persist()
        names = (*contract.topics, *contract.ordered_views)
        for done, name in enumerate(names):
            step_events.add_fields(tables=len(names), tables_done=done, part=name)
            if not plan.has_work_for(contract, name):
                candidates[name] = row_reader.load_current_rows(spark, locate_own_table(contract, name)).persist()
                continue
            explained = (
                expression_errors.explain_expression_errors(settings.schemas, contract, name)
                if name in contract.views
                else nullcontext()
            )
            with spark_errors.explain_spark_errors(contract, name), explained:
                if name in contract.topics:
                    expression_checks.refuse_unfit_times(spark, settings.schemas, contract, name)
                    segments = topic_segments.read_planned_segments(spark, contract, plan, name)
                    new = topic_segments.list_planned(spark, segments, plan, name)
                    topics[name] = _count_fates(contract, plan, name, segments, new)
                    records = _find_topic_records(spark, contract, plan, name, new.where("fate = 'accepted'"))
                    derived = derive_whole_topic(spark, contract, plan, name, records)
                else:
                    derived = _derive_view(spark, contract, plan, name, candidates, emitted)
                if derived.rows is None:
                    raise AssertionError("a table is derived whole")
                candidates[name] = derived.rows.persist()
                changes[name], counts = _describe_change(spark, contract, plan, name, candidates, derived)
                if counts is not None:
                    located = report.locate_ties(contract.kafka_topic(name), plan.topics[name], counts)
                    topics[name] = replace(topics[name], ties=located)
        for candidate in candidates.values():
            candidate.unpersist()
    under_way = next(((run.number, run.run_id) for run in past if run.state == "planned"), None)
    changed = definitions.describe_change(past, contract.hash, list_fields(contract))
    return RunPreview(pipeline, plan.known_at, interval_end, under_way, changed, topics, changes)


def _count_fates(contract: Contract, plan: Plan, name: str, segments: Segments | None, new: DataFrame) -> TopicPreview:
    """Return how many offsets of a topic a run would ingest, its records by fate, and why the run would stop."""
    topic, topic_plan = contract.topics[name], plan.topics[name]
    fates = {row["fate"]: row["count"] for row in new.groupBy("fate").count().sort("fate").collect()}
    stops = None
    if segments is not None and fates.get("malformed"):
        place = partial(topic_patterns.describe_partition, contract.kafka_topic(name), topic_plan.members)
        field, nothing = f"topics.{name}.max_malformed", "nothing was written"
        hidden = contract.has_sensitive_entry(contract.kafka_topic(name))
        try:
            record_counts.count_records(
                segments, place, topic, field, before=Counter(), to_come=0, written=nothing, hidden=hidden
            )
        except RecordError as error:
            stops = str(error)
    return TopicPreview(sum(topic_plan.planned_counts.values()), fates, stops)


def _derive_view(
    spark: SparkSession,
    contract: BoundContract,
    plan: Plan,
    name: str,
    candidates: dict[str, DataFrame],
    emitted: dict[str, DataFrame],
) -> DerivedChange:
    """Return what a run would change in a view; add the records of a kafka view to `emitted`."""
    input_rows = {i: candidates[i] for i in contract.views[name].inputs}
    types = {i: rows.schema for i, rows in input_rows.items()}
    expression_checks.refuse_unfit_expressions(spark, contract, name, types)
    if contract.views[name].semantics == "kafka":
        emitted[name] = emission.preview_emission(spark, contract, plan, name, emitted)
    return derive_whole_view(spark, contract, plan, name, input_rows, emitted.get(name))


def _find_topic_records(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, new: DataFrame
) -> TopicRecords:
    """Return the accepted records of a topic's log together with `new` ones that a run would accept."""
    topic = contract.topics[name]
    stored = topic_log.read_accepted(spark, contract, name, after=0)
    columns = [column for column in new.columns if column in stored.columns]
    both = stored.select(columns).unionByName(new.select(columns))
    records = decode_records(both, topic, writers=schemas.resolve_schemas(contract, name, both))
    decoded = topic_log.refuse_undecodable(records, contract.kafka_topic(name))
    decoded = decoded if topic.read == "stream" else initial_rows.add_initial_rows(spark, contract, name, decoded)
    return TopicRecords(spark, contract, plan, name, coming=decoded)


def _count_ties(find_ties: Callable[[], DataFrame] | None) -> TieCounts | None:
    """Return the tie counts of the records that a run would publish of a topic; None if there are none."""
    if find_ties is None or (row := ties.count_ties(find_ties()).first()) is None:
        return None
    counts = tie_counts.summarize_ties(row.asDict(recursive=True)["ties"])
    return counts if counts.counts else None


def _describe_change(
    spark: SparkSession,
    contract: BoundContract,
    plan: Plan,
    name: str,
    candidates: dict[str, DataFrame],
    derived: DerivedChange,
) -> tuple[TablePreview, TieCounts | None]:
    """Return what a run would change in a table, and the tie counts of records that it would publish of a topic."""
    candidate, table = candidates[name], locate_own_table(contract, name)
    changes = derived.changes.persist()
    widened: widening.WidenedColumns = {}
    if (delta_table := tables.open_table(table)) is not None and not table_columns.is_widened(delta_table):
        widened = table_creation.fit_columns(delta_table, table, table_schema(candidate)).widened
    counted = _count_changes(changes, table, plan)
    hidden = marks.find_marked_columns(contract.settings, contract, [name])[name]
    expected = contract.expectations(name)
    change = contract, plan, name, changes, counted.opened, counted.closed, candidates, derived.find_ties
    with (
        StagedChange(*change) as staged,
        quarantine_gates.sift_change(staged, expected, derived.after, derived.judged) as (passed, held, verdicts),
    ):
        numbers = counted if passed is staged else _count_changes(passed.change, table, plan)
        examples = preview_examples.collect_examples(passed.change, table, hidden) if numbers.corrected else []
        if passed is not staged:
            candidates[name] = _apply_change(spark, candidate, passed.change, table).localCheckpoint()
            candidate.unpersist()
        counts = _count_ties(passed.find_ties)
    changes.unpersist()
    return TablePreview(numbers, held.keys if held is not None else 0, examples, verdicts, widened, table.widen), counts


def _count_changes(changes: DataFrame, table: Table, plan: Plan) -> ChangeStatistics:
    """Return how many rows would be opened and closed, and how many of these are past answers, by age."""
    (row,) = changes.agg(*change_statistics.statistics_columns(table, plan.known_at)).collect()
    return ChangeStatistics(**row.asDict(recursive=True))


def _apply_change(spark: SparkSession, candidate: DataFrame, change: DataFrame, table: Table) -> DataFrame:
    """Return the current rows of a table after a run that holds something back: changed only by what passes."""
    opened = change.where("_change = 'open'").drop("_change")
    if tables.open_table(table) is None:
        return opened
    current = schema_evolution.fit_rows(row_reader.load_current_rows(spark, table), candidate.schema)
    kept = drop_matching_rows(current, change.where("_change = 'close'"), table.closing_columns)
    return kept.unionByName(opened, allowMissingColumns=True)
