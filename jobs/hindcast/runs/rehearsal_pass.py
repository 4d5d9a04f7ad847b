"""A pass of a rehearsal: many rehearsed runs are made together, from one reading of their topics (docs/adr/0039).

Nothing is written before all is derived and the gates of all dates were asked. Then the runs are planned by one commit,
logs and tables get one commit each, and the runs are completed by one commit. A pass that was killed goes on from there
by the same steps: what it has committed stays, and its records are those of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from hindcast.archives import archived_topics
from hindcast.common import progress, step_events
from hindcast.common.errors import RunError
from hindcast.common.settings import Settings
from hindcast.ingest import pass_ingest, quarantine
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.plan import journal, passes
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.plans import Plan
from hindcast.plan.rehearsals import RehearsedOffsets
from hindcast.plan.runs import Completed, Run
from hindcast.quality import gates_by_date
from hindcast.report import page, report
from hindcast.report.run_report import RunReport
from hindcast.runs import derive_pass, pass_obstacles, pass_publishing, run_steps, store_migration
from hindcast.runs.derive_pass import NoPassError, Pass, RefusedDateError
from hindcast.runs.pass_publishing import DateGates
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import commit_once, tables


class CutPass(NamedTuple):
    """A pass can make only some of its `dates`, the first ones; `reason` says why, in words."""

    dates: int
    reason: str


class MadeRuns(NamedTuple):
    """The reports of runs that a pass has made; and why the next date has to be a run by itself, if it has.

    `was_read`: this was found by reading records. `is_lasting`: it is so for all later dates, too.
    """

    reports: Sequence[RunReport]
    reason: str = ""
    was_read: bool = False
    is_lasting: bool = False


def make_runs(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    rehearsed: Sequence[RehearsedOffsets],
    given: TopicSource | None = None,
) -> MadeRuns:
    """Make the next rehearsed runs in one pass, as many as can be made together; perhaps none."""
    contract, past = find_bound_contract(settings, pipeline), journal.read_runs(settings.warehouse, pipeline)
    if (obstacle := pass_obstacles.find_state_obstacle(spark, contract, past)) is not None:
        return MadeRuns([], obstacle)
    if not passes.is_in_order(contract, past, rehearsed[0]):
        until = rehearsed[0].interval.until.isoformat()
        return MadeRuns([], f"something is known at {until} or later, so this is known a moment after that")
    run_steps.refuse_unfit_contract(contract)
    plans = passes.propose_pass(contract, past, rehearsed, given)
    if any(topic.earlier for plan in plans for topic in plan.topics.values()):
        return MadeRuns([], "a topic begins earlier than before")
    try:
        derive_pass.plan_views(Pass(spark, contract, plans, past[-1]))
    except NoPassError as error:
        return MadeRuns([], str(error), is_lasting=True)
    count, reason = passes.count_dates(plans, settings.chunk), ""
    while count > 1:
        of = Pass(spark, contract, passes.cut_pass(plans, count), past[-1])
        made = _make_pass(spark, settings, of, given, is_planned=False)
        if not isinstance(made, CutPass):
            return MadeRuns(made, reason, bool(reason))
        count, reason = made
    if reason:
        return MadeRuns([], reason, was_read=True)
    return MadeRuns([], f"it or the next date has more than {settings.chunk:,} records (HINDCAST_CHUNK)")


def finish_open_pass(
    spark: SparkSession, settings: Settings, pipeline: str, given: TopicSource | None = None
) -> Sequence[RunReport]:
    """Finish the pass that was begun before; return the reports of its runs, none if there is none.

    Raise RunError if the contract was changed meanwhile, or if it cannot be derived any more.
    """
    contract, past = find_bound_contract(settings, pipeline), journal.read_runs(settings.warehouse, pipeline)
    if not (begun := passes.find_open_pass(past)):
        return []
    passes.refuse_other_contract(contract, begun[0])
    before = [run for run in past if run.number < begun[0].number]
    of = Pass(spark, contract, [run.plan for run in begun], before[-1])
    made = _make_pass(spark, settings, of, given, is_planned=True)
    if isinstance(made, CutPass):
        where, fix = f"{pipeline}, runs {begun[0].number} to {begun[-1].number}", passes.describe_abandoning(pipeline)
        raise RunError(f"cannot be finished together: {made.reason}", where=where, fix=fix)
    return made


def _make_pass(
    spark: SparkSession, settings: Settings, of: Pass, given: TopicSource | None, *, is_planned: bool
) -> Sequence[RunReport] | CutPass:
    """Make the runs of a pass, which are planned already or not; return their reports.

    Or say, before anything is written, how many of them can be made together.
    """
    pipeline, first, last = of.contract.pipeline, of.plans[0], of.plans[-1]
    with step_events.record_step("pass", pipeline, last.run):
        step_events.record_begin(run_id=f"{first.run_id} to {last.run_id}")
        with progress.report_progress(spark), archived_topics.open_source(of.contract, given) as source:
            cut = _publish_pass(of, source, is_planned=is_planned)
        return cut or _complete_runs(settings, of)


def _publish_pass(of: Pass, source: TopicSource, *, is_planned: bool) -> CutPass | None:
    """Derive what a pass changes, ask its gates, plan its runs and commit to logs and tables what is not there yet."""
    contract, plans = of.contract, of.plans
    topics = {
        name: pass_ingest.read_topic(of.spark, source, contract, plans, of.whole_plan, name)
        for name in contract.topics
        if not _is_logged(of, name)
    }
    refused = [date for topic in topics.values() if (date := topic.find_refused_date()) is not None]
    if refused and not is_planned:
        return CutPass(min(refused), "more of its records are malformed than the contract allows")
    records = {
        name: topics[name].accepted_rows if name in topics else _read_logged(of, name) for name in contract.topics
    }
    try:
        changes = derive_pass.derive_changes(of, records)
    except RefusedDateError as error:
        return CutPass(error.date, str(error))
    asked = {}
    for name in [*changes]:
        staged = pass_publishing.stage_change(changes.pop(name), plans)  # its rows are in files now
        asked[name] = pass_publishing.count_gates(of.spark, contract, staged)
    if not is_planned:
        if (cut := _find_failing_date(plans, asked.values())) is not None:
            for gates in asked.values():
                pass_publishing.discard_files(gates.staged)
            return cut
        journal.append_entries(contract.warehouse, [Run(plan) for plan in plans])
    with commit_once.add_commit_guard(partial(_refuse_commit, of)):
        for name in contract.topics:
            log = tables.log_table(contract.warehouse, contract.pipeline, name)
            if name in topics and of.whole_plan.topics[name].parts:
                topics[name].commit(plans)
            quarantine.update_quarantine(of.spark, contract, name, log, name)
        for gates in asked.values():
            after = tables.read_last_run(gates.staged.table)
            if after < plans[-1].run:
                pass_publishing.commit_change(of.spark, gates.staged, plans, after)
        pass_publishing.append_results(contract, plans, [*asked.values()])
    notes = [note for gates in asked.values() for note in gates.staged.notes]
    opened, closed, corrected = (sum(getattr(it, name) for it in notes) for name in ("opened", "closed", "corrected"))
    step_events.add_fields(opened=opened, closed=closed, corrected=corrected)
    return None


def _refuse_commit(of: Pass) -> None:
    """Raise an error if the runs of a pass have ended, or a table was downgraded since they were planned."""
    last = of.plans[-1]
    journal.read_active_run(of.contract.warehouse, of.contract.pipeline, last.run)
    for name in of.contract.topics:
        store_migration.refuse_downgrade(of.contract, last, name)


def _is_logged(of: Pass, name: str) -> bool:
    """Return whether a pass has committed the records of a topic before."""
    log = tables.log_table(of.contract.warehouse, of.contract.pipeline, name)
    return tables.read_last_run(log) >= of.plans[0].run


def _find_failing_date(plans: Sequence[Plan], asked: Iterable[DateGates]) -> CutPass | None:
    """Return that a pass ends before the first date that some gate fails: a run by itself holds it or is stopped."""
    found = [date for gates in asked if (date := gates_by_date.find_first_failing(gates.counts)) is not None]
    if not found:
        return None
    dates = next(n for n, plan in enumerate(plans) if plan.known_at == min(found))
    return CutPass(dates, "a gate fails some of its rows")


def _read_logged(of: Pass, name: str) -> DataFrame:
    """Return the accepted records of a pass that are in the log already, decoded."""
    rows = pass_ingest.read_logged(of.spark, of.contract, of.plans, name)
    return TopicRecords(of.spark, of.contract, of.whole_plan, name).decode_log(rows)


def _complete_runs(settings: Settings, of: Pass) -> list[RunReport]:
    """Make the reports of the runs of a pass, and complete all of them; return the reports."""
    pipeline, plans = of.contract.pipeline, of.plans
    reports = report.build_reports(settings.warehouse, of.contract, plans, variables=settings.variables)
    entries = [Run(plan, Completed(it.as_json())) for plan, it in zip(plans, reports, strict=True)]
    journal.append_entries(settings.warehouse, entries)
    page.write_page(settings.reports, pipeline, plans[-1].run, reports[-1])
    return reports
