"""The steps of a run, each safe to repeat: nothing is committed twice under one run number.

    plan -> replay each topic -> derive each table, gate it, publish it -> report

`run_pipeline` does all of them in one process, the DAG does each as a task; `table_steps` lists those of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain

from pyspark.sql import SparkSession

from hindcast import __version__
from hindcast.common import progress, step_events
from hindcast.common.errors import ContractError, GateError, RecordError, RequestError
from hindcast.common.session import fit_to_rows
from hindcast.common.settings import Settings
from hindcast.contract import list_shapes, locate_complaint
from hindcast.contract.bound import BoundContract
from hindcast.contract.expectation import FRESHNESS_RULE
from hindcast.ingest import erasure_marks, fate_revisions, ingest_commits
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.plan import journal, planner
from hindcast.plan.inputs import locate_own_table, locate_source_table
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.plans import Plan
from hindcast.plan.rehearsals import RehearsedOffsets
from hindcast.plan.runs import Completed, Stopped, has_unknown_rows
from hindcast.quality import expectations
from hindcast.report import page, report
from hindcast.report.run_report import RunReport
from hindcast.runs import (
    derive_topic,
    derive_view,
    emission,
    emission_progress,
    expression_checks,
    expression_errors,
    incremental_state,
    spark_errors,
    store_migration,
    widening,
)
from hindcast.runs.derive_whole import DerivedChange
from hindcast.runs.prepare import prepare_table
from hindcast.runs.publish import gate_and_publish_change
from hindcast.runs.table_steps import TABLE_STEPS, TableStep
from hindcast.store import commit_history, commit_once, duckdb_reader, table_columns, tables
from hindcast.store.change_reader import ChangeReader
from hindcast.store.commit_notes import TableNote
from hindcast.store.tables import Table


def plan_run(
    settings: Settings,
    pipeline: str,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
    *,
    ahead: bool = False,
    given: TopicSource | None = None,
    rehearsed: RehearsedOffsets | None = None,
    ends_rehearsal: bool = False,
) -> int:
    """Store the plan of a run, or find that of an earlier attempt; return the run's number.

    The arguments and errors are those of `planner.ensure_plan`; also ContractError for a contract whose gates or
    widened columns are not allowed.
    """
    with step_events.record_step("plan", pipeline):
        step_events.record_begin(run_id=run_id)
        contract = find_bound_contract(settings, pipeline)
        refuse_unfit_contract(contract)
        store_migration.refuse_unready(contract)
        write_missing_page(settings, pipeline)
        plan = planner.ensure_plan(
            contract,
            run_id,
            interval_end,
            only,
            reason,
            ahead=ahead,
            given=given,
            rehearsed=rehearsed,
            ends_rehearsal=ends_rehearsal,
        )
        record_plan(plan)
    return plan.run


def refuse_unfit_contract(contract: BoundContract) -> None:
    """Raise ContractError if a gate or a widened column of the contract is not allowed, or a table cannot take its key
    or columns. Where the last run had this contract, only the order of keys is checked.
    """
    settings, place = contract.settings, (contract.settings.warehouse, contract)
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    if past and past[-1].plan.contract == contract.hash:
        complaints = widening.check_key_order(*place)
    else:
        fit = widening.check_fit(*place)
        complaints = chain(expectations.check_expectations(contract), fit, widening.check_widening(*place))
    for complaint in complaints:
        raise locate_complaint(settings.schemas, contract.pipeline, complaint)


def replay_topic(
    spark: SparkSession, settings: Settings, pipeline: str, run: int, topic: str, given: TopicSource | None = None
) -> TableNote:
    """Append a topic's planned records to its log, each with its fate, and publish its table; return the commit's note.

    The records are Kafka's, or those of the `given` topics. Raise RecordError, before anything is written, if more
    records do not decode than `max_malformed` allows.
    """
    with _record_table_step("replay", spark, settings, pipeline, run, topic) as (contract, plan):
        log = tables.log_table(settings.warehouse, pipeline, topic)
        rows = tables.count_rows(log) + sum(plan.topics[topic].planned_counts.values())
        stops, explained = (
            _record_stops(settings, pipeline, run, topic),
            spark_errors.explain_spark_errors(contract, topic),
        )
        with stops, explained, fit_to_rows(spark, rows), ChangeReader(spark) as sources:
            expression_checks.refuse_unfit_times(spark, settings.schemas, contract, topic)
            ingested = ingest_commits.ingest_topic(spark, contract, plan, topic, given)
            fate_revisions.revise_fates(spark, contract, plan, topic)
            store_migration.begin_upgrade(spark, contract, plan, topic)
            fates = tables.fates_table(settings.warehouse, pipeline, topic)
            if (note := _find_settled_note(contract, plan, topic, log, fates)) is None:
                change = partial(derive_topic.derive_topic_change, spark, sources, contract, plan, topic, ingested)
                note = _publish_derived(spark, contract, plan, topic, change)
            note = _record_note(store_migration.end_upgrade(spark, contract, plan, topic, note))
        _record_lag(contract, topic)
        return note


def build_view(spark: SparkSession, settings: Settings, pipeline: str, run: int, view: str) -> TableNote:
    """Derive a view from its inputs as of this run, gate the changes and publish them in one commit; return its note.

    Raise ContractError for an expression that Spark refuses or that fails on a record, GateError if a gate stops the
    view; nothing of it is published then.
    """
    with _record_table_step("build", spark, settings, pipeline, run, view) as (contract, plan):
        inputs = derive_view.list_sources(contract, plan, view)
        if (done := _find_settled_note(contract, plan, view, *inputs)) is not None:
            return _record_note(done)
        with (
            _record_stops(settings, pipeline, run, view),
            spark_errors.explain_spark_errors(contract, view),
            expression_errors.explain_expression_errors(settings.schemas, contract, view),
            fit_to_rows(spark, sum(map(tables.count_rows, inputs))),
            ChangeReader(spark) as sources,
        ):
            current = derive_view.load_inputs(spark, contract, plan, view)
            if contract.views[view].semantics == "kafka":
                emission.emit_view(spark, contract, plan, view)
            change = partial(derive_view.derive_view_change, spark, sources, contract, plan, view, current)
            return _record_note(_publish_derived(spark, contract, plan, view, change))


def _publish_derived(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, derive_change: Callable[[], DerivedChange]
) -> TableNote:
    """Derive a change, prepare its table and publish it; return the commit's note."""
    derived = derive_change()
    if prepare_table(spark, contract, plan, name, derived):
        derived = derive_change()
    return gate_and_publish_change(contract, plan, name, derived)


def finish_run(settings: Settings, pipeline: str, run: int) -> RunReport:
    """Make the run's report, check that every offset has a fate, and complete the run; return the report."""
    with step_events.record_step("finish", pipeline, run):
        past = journal.read_runs(settings.warehouse, pipeline)
        entry = next((entry for entry in past if entry.number == run), None)
        step_events.record_begin(run_id=entry.run_id if entry else None)
        if entry is not None and isinstance(entry.outcome, Completed):
            with entry.refuse_malformed_report():
                result = RunReport.from_json(entry.outcome.report)
        else:
            contract, plan = _load_plan(settings, pipeline, run)
            result = report.build_report(settings.warehouse, contract, plan, variables=settings.variables)
            _append_outcome(settings.warehouse, pipeline, run, Completed(result.as_json()))
        commit_once.check_guard()  # a forgetting that was taken for dead would bring back what another has removed
        page.write_page(settings.reports, pipeline, run, result)
        step_events.add_fields(**result.summarize_for_events())
    return result


def write_missing_page(settings: Settings, pipeline: str) -> None:
    """Write the report page of the last run that was completed or stopped if its process died before it did."""
    past = journal.read_runs(settings.warehouse, pipeline)
    last = next((run for run in reversed(past) if run.has_report), None)
    if last is not None and not page.page_path(settings.reports, pipeline, last.number).exists():
        contract = find_bound_contract(settings, pipeline)
        page.write_page(settings.reports, pipeline, last.number, report.read_report(contract, last))


def run_pipeline(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
) -> RunReport:
    """Plan a run and do all its steps in order; return its report."""
    return execute_run(spark, settings, pipeline, plan_run(settings, pipeline, run_id, interval_end, only, reason))


def execute_run(
    spark: SparkSession, settings: Settings, pipeline: str, number: int, given: TopicSource | None = None
) -> RunReport:
    """Do the steps of a planned run in order; return its report. `given`: topics to read instead of Kafka's."""
    execute_table_steps(spark, settings, pipeline, number, given)
    return finish_run(settings, pipeline, number)


def execute_table_steps(
    spark: SparkSession, settings: Settings, pipeline: str, number: int, given: TopicSource | None = None
) -> None:
    """Do the steps of a planned run up to its report."""
    contract, plan = _load_plan(settings, pipeline, number)
    for step in TABLE_STEPS.values():
        for table in step.list_tables(contract):
            if plan.has_work_for(contract, table):
                execute_step(spark, settings, pipeline, number, step, table, given)


def execute_step(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    run: int,
    step: TableStep,
    table: str,
    given: TopicSource | None = None,
) -> TableNote:
    """Do one step of a run for a table; return the commit's note."""
    if step.per == "topic":
        return replay_topic(spark, settings, pipeline, run, table, given)
    return build_view(spark, settings, pipeline, run, table)


@contextmanager
def _record_table_step(
    name: str, spark: SparkSession, settings: Settings, pipeline: str, run: int, table: str
) -> Iterator[tuple[BoundContract, Plan]]:
    """Record a step about one table (common/step_events.py); yield the contract and the plan that it works for.

    The step commits only while its run has not ended: a slow one may have been abandoned, and later runs may be done.
    And only to a table that runs write: it may have been downgraded since.
    """
    with step_events.record_step(name, pipeline, run, table):
        contract, plan = _load_plan(settings, pipeline, run)
        step_events.record_begin(run_id=plan.run_id)
        refuse_ended = partial(journal.read_active_run, settings.warehouse, pipeline, run)
        refuse_downgrade = partial(store_migration.refuse_downgrade, contract, plan, table)
        guards = commit_once.add_commit_guard(refuse_ended), commit_once.add_commit_guard(refuse_downgrade)
        with progress.report_progress(spark), guards[0], guards[1]:
            yield contract, plan


def _record_note(note: TableNote) -> TableNote:
    """Add a commit note's counts of rows to the events of the step; return the note."""
    step_events.add_fields(opened=note.opened, closed=note.closed, corrected=note.corrected)
    return note


def _record_lag(contract: BoundContract, topic: str) -> None:
    """Add to the step's events how many seconds ago the newest row of a topic's table became true.

    Add nothing for a topic whose values date its rows (`valid_time`): that would disclose one of them.
    """
    table = locate_own_table(contract, topic)
    delta_table = tables.open_table(table) if contract.topics[topic].valid_time is None else None
    newest = (
        duckdb_reader.find_latest_moment(delta_table, tables.period_columns(table)[0])
        if delta_table is not None
        else None
    )
    if newest is not None:
        step_events.add_fields(lag_seconds={topic: round((datetime.now(UTC) - newest).total_seconds(), 3)})


def record_plan(plan: Plan) -> None:
    """Add to the step's events how many offsets of each topic are planned, and how many are left to later runs."""
    offsets = {name: sum(topic.planned_counts.values()) for name, topic in plan.topics.items()}
    left = {name: topic.offsets_left for name, topic in plan.topics.items() if topic.offsets_left is not None}
    step_events.add_fields(run=plan.run, offsets=offsets, offsets_left=left)


def _load_plan(settings: Settings, pipeline: str, run: int) -> tuple[BoundContract, Plan]:
    """Return the contract and the plan of a run.

    Raise an error if the run has ended, the contract was changed, or another version of Hindcast planned it.
    """
    contract = find_bound_contract(settings, pipeline)
    plan = journal.read_active_run(settings.warehouse, pipeline, run).plan
    if plan.contract != contract.hash:
        raise RequestError(
            "the contract was changed after the run was planned",
            where=f"{pipeline}, run {run} ({plan.run_id})",
            fix="run its plan step again (in Airflow: clear the run from its plan task on)",
        )
    if not planner.is_of_this_version(plan):
        raise RequestError(
            f"the run was planned by Hindcast {plan.version}, and this is {__version__}",
            where=f"{pipeline}, run {run} ({plan.run_id})",
            fix="install one version on scheduler and workers, then run its plan step again (in Airflow: clear the "
            "run from its plan task on)",
        )
    return contract, plan


@contextmanager
def _record_stops(settings: Settings, pipeline: str, run: int, table: str) -> Iterator[None]:
    """Record in journal and report that a gate, the contract or records stop a run; the next run abandons it."""
    try:
        yield
    except (ContractError, GateError, RecordError) as error:
        _append_outcome(settings.warehouse, pipeline, run, Stopped(table, str(error)))
        contract, plan = _load_plan(settings, pipeline, run)
        stopped = report.build_report(settings.warehouse, contract, plan, str(error), settings.variables)
        page.write_page(settings.reports, pipeline, run, stopped)
        raise


def _append_outcome(warehouse: str, pipeline: str, run: int, outcome: Completed | Stopped) -> None:
    """Append an entry with what became of a run to the journal."""
    entry = journal.read_active_run(warehouse, pipeline, run)
    journal.append_entry(warehouse, replace(entry, outcome=outcome))


def _find_settled_note(contract: BoundContract, plan: Plan, name: str, *sources: Table) -> TableNote | None:
    """Return the note of a table that needs no work: this run has published it, or it cannot have changed. Else None.

    It cannot have changed if a completed run of the same contract has seen it and its sources as they are; unless its
    rows are unknown (`has_unknown_rows`), the run is about this table, a person has released held changes of it,
    something of it was forgotten since, periods were closed or reopened, or one of its gates can fail by time alone.
    """
    table = locate_own_table(contract, name)
    if (delta_table := tables.open_table(table)) is None:
        return None
    if tables.read_last_run(table) >= plan.run:
        return commit_history.read_notes(table, TableNote.from_json).get(plan.run, TableNote(plan.run))
    if not table_columns.read_dropped_columns(delta_table).keys().isdisjoint(list_shapes(contract)[name].columns):
        return None  # a run that has not published the table had a contract without them
    view = contract.views.get(name)
    if view is not None and view.semantics == "kafka" and emission_progress.needs_restart(contract, plan, name):
        return None
    if name in (*plan.released_keys, plan.only, plan.upgraded_table) or any(
        gate.type == FRESHNESS_RULE for gate in contract.expectations(name)
    ):
        return None
    others = (gate.other_table for gate in contract.expectations(name))
    sources = (*sources, *(locate_source_table(contract, plan, other) for other in others if other))
    past = journal.read_runs(table.warehouse, contract.pipeline)
    last = next((run for run in reversed(past) if run.has_done_all_tables), None)
    if last is None or last.plan.contract != contract.hash:
        return None
    published = tables.read_last_run(table)
    if has_unknown_rows(past, name, published) or incremental_state.has_late_records(past, contract, table):
        return None
    if erasure_marks.has_forgotten_since(past, contract, name, last.number):
        return None
    if incremental_state.has_other_closes(contract, name, last.known_at):
        return None
    since = [run.plan for run in past if run.number > last.number and run.number != plan.run]
    if any(earlier.upgrade or earlier.contract != contract.hash for earlier in since):
        # An abandoned run may have adopted a table, or held something by another contract, and no run has looked since.
        return None
    settled = last.plan.as_of_system_times == plan.as_of_system_times and all(
        source.as_of_system_time is not None or tables.read_last_run(source) <= last.number
        for source in (table, *sources)
    )
    return TableNote(plan.run) if settled else None
