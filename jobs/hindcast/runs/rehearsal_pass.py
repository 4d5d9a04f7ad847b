"""A pass of a rehearsal: many rehearsed runs are made together, from one reading of their topics (docs/adr/0039).

Nothing is written before all is derived and the gates of all dates were asked. Then the runs are planned by one commit,
logs and tables get one commit each, and the runs are completed by one commit. A pass that was killed goes on from there
by the same steps: what it has committed stays, and its records are those of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from hindcast.archives import archived_topics
from hindcast.common import step_events
from hindcast.common.settings import Settings
from hindcast.contract.bound import BoundContract
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
from hindcast.runs import pass_obstacles, pass_publishing, pass_tables
from hindcast.runs.pass_publishing import DateGates
from hindcast.runs.pass_tables import NoPassError, Pass
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import commit_once, tables


class CutPassError(Exception):
    """A pass can make only some of its `dates`, the first ones; `reason` says why, in words."""

    def __init__(self, dates: int, reason: str) -> None:
        super().__init__(reason)
        self.dates, self.reason = dates, reason


def make_runs(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    rehearsed: Sequence[RehearsedOffsets],
    given: TopicSource | None = None,
) -> list[RunReport]:
    """Make some of the next rehearsed runs in one pass, as many as its memory takes; return their reports.

    None if the first of them has to be a run of its own.
    """
    contract, past = find_bound_contract(settings, pipeline), journal.read_runs(settings.warehouse, pipeline)
    if not passes.is_in_order(contract, past, rehearsed[0]):
        return []
    if pass_obstacles.find_state_obstacle(spark, contract, past) is not None:
        return []
    plans = passes.propose_pass(contract, past, rehearsed, given)
    if any(topic.earlier for plan in plans for topic in plan.topics.values()):
        return []
    count = passes.count_dates(plans, settings.chunk)
    while count > 1:
        plans = plans[:count]
        plans = [replace(plan, pass_numbers=(plans[0].run, plans[-1].run)) for plan in plans]
        try:
            return _make_pass(spark, settings, contract, plans, past, given, is_planned=False)
        except CutPassError as cut:
            step_events.add_fields(runs=len(rehearsed))
            count = cut.dates
    return []


def finish_open_pass(spark: SparkSession, settings: Settings, pipeline: str) -> list[RunReport]:
    """Finish the pass that was begun before; return the reports of its runs, none if there is none."""
    contract, past = find_bound_contract(settings, pipeline), journal.read_runs(settings.warehouse, pipeline)
    if not (begun := passes.find_open_pass(past)):
        return []
    plans = [run.plan for run in begun]
    before = [run for run in past if run.number < plans[0].run]
    return _make_pass(spark, settings, contract, plans, before, None, is_planned=True)


def _make_pass(
    spark: SparkSession,
    settings: Settings,
    contract: BoundContract,
    plans: list[Plan],
    past: list[Run],
    given: TopicSource | None,
    *,
    is_planned: bool,
) -> list[RunReport]:
    joined = passes.join_plans(plans)
    own = Pass(spark, contract, plans, joined, past[-1])
    with archived_topics.open_source(contract, given) as source:
        topics = {
            name: pass_ingest.read_topic(spark, source, contract, plans, joined, name)
            for name in contract.topics
            if not _is_logged(contract, plans, name)
        }
        refused = [date for topic in topics.values() if (date := topic.find_refused_date()) is not None]
        if refused and not is_planned:
            raise CutPassError(min(refused), "more records are malformed than the contract allows")
        records = {
            name: topics[name].accepted if name in topics else _read_logged(own, name) for name in contract.topics
        }
        try:
            changes = pass_tables.derive_changes(own, records)
        except NoPassError as error:
            raise CutPassError(0, str(error)) from error
        asked = {
            name: pass_publishing.count_gates(spark, contract, pass_publishing.stage_change(change, plans))
            for name, change in changes.items()
        }
        if not is_planned:
            _refuse_failing_dates(plans, asked.values())
            journal.append_entries(contract.warehouse, [Run(plan) for plan in plans])
        with _guard_commits(contract, plans):
            for name, topic in topics.items():
                if joined.topics[name].parts:
                    topic.commit(plans)
                log = tables.log_table(contract.warehouse, contract.pipeline, name)
                quarantine.update_quarantine(spark, contract, name, log, name)
            for name, gates in asked.items():
                table = changes[name].table
                if tables.read_last_run(table) < plans[-1].run:
                    pass_publishing.commit_change(spark, gates.staged, plans, tables.read_last_run(table))
            pass_publishing.append_results(contract, plans, [*asked.values()])
    return _complete_runs(settings, contract, plans)


def _is_logged(contract: BoundContract, plans: Sequence[Plan], name: str) -> bool:
    """Return whether a pass has committed the records of a topic before."""
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    return tables.read_last_run(log) >= plans[0].run


def _refuse_failing_dates(plans: Sequence[Plan], asked: Iterable[DateGates]) -> None:
    """Raise CutPassError if a gate fails rows of a date: that is a run of its own, which holds them or is stopped."""
    found = [date for gates in asked if (date := gates_by_date.find_first_failing(gates.counts)) is not None]
    if found:
        first = min(found)
        dates = next(n for n, plan in enumerate(plans) if plan.known_at == first)
        raise CutPassError(dates, f"a gate fails rows of {first.isoformat()}")


@contextmanager
def _guard_commits(contract: BoundContract, plans: Sequence[Plan]) -> Iterator[None]:
    """Let the block commit only while the runs of a pass have not ended."""
    refuse_ended = partial(journal.read_active_run, contract.warehouse, contract.pipeline, plans[-1].run)
    with commit_once.add_commit_guard(refuse_ended):
        yield


def _read_logged(of: Pass, name: str) -> DataFrame:
    """Return the accepted records of a pass that are in the log already, decoded."""
    rows = pass_ingest.read_logged(of.spark, of.contract, of.plans, name)
    return TopicRecords(of.spark, of.contract, of.joined, name).decode_log(rows)


def _complete_runs(settings: Settings, contract: BoundContract, plans: Sequence[Plan]) -> list[RunReport]:
    """Make the reports of the runs of a pass, and complete all of them; return the reports."""
    reports = [report.build_report(settings.warehouse, contract, plan, variables=settings.variables) for plan in plans]
    entries = [Run(plan, Completed(it.as_json())) for plan, it in zip(plans, reports, strict=True)]
    journal.append_entries(settings.warehouse, entries)
    page.write_page(settings.reports, contract.pipeline, plans[-1].run, reports[-1])
    return reports
