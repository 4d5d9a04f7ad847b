"""The steps of a run, each safe to repeat: what was committed under the run's number is not committed again.

    plan -> replay each topic -> derive each table, gate it, publish it -> report

`STEPS` lists them; `run` does them all in one process, the DAG does each as a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from hindcast import horizon, telling
from hindcast.building import adopting, analysis, changes, failures, widening
from hindcast.building.publish import nothing, publish
from hindcast.contracts import Contract, complain, find
from hindcast.contracts.expectation import AGING
from hindcast.delta import scan, tables
from hindcast.delta.sources import Sources
from hindcast.delta.tables import Table
from hindcast.errors import AskedError, ContractError, GateError, RecordError
from hindcast.planning import journal, planner, plans
from hindcast.planning.inputs import located, source
from hindcast.planning.plans import Plan
from hindcast.quality import expectations
from hindcast.replay import claims, fates, forgotten
from hindcast.replay import requeue as requeues
from hindcast.reports import page, report
from hindcast.session import sized
from hindcast.settings import settings


def plan(
    pipeline: str,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
    *,
    ahead: bool = False,
) -> int:
    """Stores the plan of a run, or finds that of an earlier try (planner.plan); returns the run's number."""
    with telling.step("plan", pipeline):
        telling.begun(run_id=run_id)
        contract, now = find(settings().schemas, pipeline), settings()
        past = journal.runs(now.warehouse, pipeline)
        if not past or past[-1].plan["contract"] != contract.hash:
            for complaint in (
                *expectations.complaints(contract),
                *widening.find_complaints(now.warehouse, contract),
            ):
                raise complain(now.schemas, pipeline, complaint)
        adopting.ready(contract)
        made = planner.plan(
            now.warehouse, now.kafka, contract, run_id, interval_end, only=only, reason=reason, ahead=ahead
        )
        _note_plan(made)
    return made.run


def replay(spark: SparkSession, pipeline: str, run: int, topic: str) -> dict[str, Any]:
    """Appends a topic's planned records to its log, each with its fate, then publishes the topic's table.

    Raises RecordError, before anything is written, if more records do not decode than `max_malformed` allows.
    """
    with _step("replay", pipeline, run, topic) as (contract, todo):
        log = tables.log(settings().warehouse, pipeline, topic)
        rows = tables.size(log) + sum(todo.topics[topic].planned.values())
        stops, told = _noting_stops(pipeline, run, topic), failures.told(contract, topic)
        with stops, told, sized(spark, rows), Sources(spark) as sources:
            analysis.check_valid_time(spark, settings().schemas, contract, topic)
            claimed = claims.claim(spark, contract, todo, topic)
            fates.decide(spark, contract, todo, topic)
            adopting.begin(spark, contract, todo, topic)
            decided = tables.fates(settings().warehouse, pipeline, topic)
            if (note := _done(contract, todo, topic, log, decided)) is None:
                found = changes.of_topic(spark, sources, contract, todo, topic, claimed)
                note = publish(contract, todo, topic, found)
            note = _noted(adopting.end(spark, contract, todo, topic, note))
        _note_lag(contract, topic)
        return note


def build(spark: SparkSession, pipeline: str, run: int, view: str) -> dict[str, Any]:
    """Derives a view from its inputs as this run has them, gates what changed and publishes it in one commit.

    Returns what the commit notes. Raises ContractError for an expression that Spark refuses or that fails on a record,
    GateError if a gate stopped it; then nothing of it is published.
    """
    with _step("build", pipeline, run, view) as (contract, todo):
        inputs = changes.sources(contract, todo, view)
        if (done := _done(contract, todo, view, *inputs)) is not None:
            return _noted(done)
        few = sized(spark, sum(map(tables.size, inputs)))
        told = analysis.told(settings().schemas, contract, view)
        with _noting_stops(pipeline, run, view), failures.told(contract, view), told, few, Sources(spark) as sources:
            return _noted(publish(contract, todo, view, changes.of_view(spark, sources, contract, todo, view)))


def finish(pipeline: str, run: int) -> dict[str, Any]:
    """Makes the run's report, checks that every offset has a fate, and completes the run; returns the report."""
    with telling.step("finish", pipeline, run):
        past = journal.runs(settings().warehouse, pipeline)
        telling.begun(run_id=next((it.run_id for it in past if it.number == run), None))
        told = next((it.detail for it in past if (it.number, it.state) == (run, "completed")), None)
        if told is None:
            contract, todo = _planned(pipeline, run)
            told = report.make(settings().warehouse, contract, todo)
            _enter(pipeline, run, "completed", told)
        page.write(settings().reports, told)
        telling.note(**telling.of_report(told))
    return told


def run(
    spark: SparkSession,
    pipeline: str,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """All steps of one run, in order; returns its report."""
    return carry_out(spark, pipeline, plan(pipeline, run_id, interval_end, only, reason))


def release(
    spark: SparkSession, pipeline: str, run_id: str, keys: Mapping[str, Sequence[str]], by: str, until: datetime
) -> dict[str, Any]:
    """A run that publishes changes that were held back, and brings nothing else; returns its report.

    `keys`: of each table those to release, as `holds.named` tells them; `until`: when they were looked at. What is not
    as it was then, is held again.
    """
    return carry_out(spark, pipeline, plan_release(pipeline, run_id, keys, by, until))


def plan_release(pipeline: str, run_id: str, keys: Mapping[str, Sequence[str]], by: str, until: datetime) -> int:
    """Store the plan of a release, or find that of an earlier try; return the run's number.

    AskedError for a table that the contract does not have.
    """
    contract = find(settings().schemas, pipeline)
    if gone := sorted(keys.keys() - {*contract.topics, *contract.views}):
        mend = "put it back into the contract, or release what is held of other tables"
        raise AskedError(f"the contract has no table {', '.join(gone)}", where=pipeline, mend=mend)
    releases = {name: {"until": until.isoformat(), "keys": list(some), "by": by} for name, some in keys.items() if some}
    return _plan_instead(contract, run_id, {"releases": releases})


def requeue(spark: SparkSession, pipeline: str, run_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A run that decodes malformed records anew (`requeue.selection`), and brings nothing else; returns its report.

    AskedError if there are none, and no run `run_id` that has still to be finished.
    """
    contract, now = find(settings().schemas, pipeline), settings()
    found = requeues.waiting(now.warehouse, contract, asked)
    past = journal.runs(now.warehouse, pipeline)
    if not found and not any(run.run_id == run_id and not run.finished for run in past):
        mend = f"hindcast quarantine {pipeline} lists what is refused, and why"
        trimmed = {name: horizon.of(tables.log(now.warehouse, pipeline, name)) for name in asked["topics"]}
        told = [f"{at.refused.isoformat()} of {name}" for name, at in trimmed.items() if at and at.refused]
        mend += f"; what was refused before {', '.join(told)} was trimmed" if told else ""
        raise AskedError("no malformed record like that is left", where=pipeline, mend=mend)
    asked = {**asked, "topics": list(found)}
    return carry_out(spark, pipeline, _plan_instead(contract, run_id, {"requeues": asked}))


def upgrade(spark: SparkSession, pipeline: str, run_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A run that brings a table to today's store format (upkeep/upgrading/), and nothing else; its report."""
    contract = find(settings().schemas, pipeline)
    return carry_out(spark, pipeline, _plan_instead(contract, run_id, {"upgrade": asked}))


def carry_out(spark: SparkSession, pipeline: str, number: int) -> dict[str, Any]:
    """All steps of a planned run, in order; returns its report."""
    bring(spark, pipeline, number)
    return finish(pipeline, number)


def bring(spark: SparkSession, pipeline: str, number: int) -> None:
    """The steps of a planned run up to its report."""
    contract, todo = _planned(pipeline, number)
    for topic in contract.topics:
        if todo.concerns(contract, topic):
            replay(spark, pipeline, number, topic)
    for view in contract.ordered:
        if todo.concerns(contract, view):
            build(spark, pipeline, number, view)


STEPS: tuple[Callable[..., Any], ...] = (plan, replay, build, finish)
"""The steps in the order of a run: `replay` once per topic, `build` once per view."""


@contextmanager
def _step(name: str, pipeline: str, run: int, table: str) -> Iterator[tuple[Contract, Plan]]:
    """A step about one table, which tells of itself (telling.py), with the contract and the plan that it works for."""
    with telling.step(name, pipeline, run, table):
        contract, todo = _planned(pipeline, run)
        telling.begun(run_id=todo.run_id)
        yield contract, todo


def _noted(note: dict[str, Any]) -> dict[str, Any]:
    """What a commit notes, told by its step too: counts of rows."""
    telling.note(**{count: note[count] for count in ("opened", "closed", "corrected") if count in note})
    return note


def _note_lag(contract: Contract, topic: str) -> None:
    """What the replay of a topic tells: how many seconds ago the newest row of its table became true.

    Nothing of a topic whose values date its rows (`valid_time`): that would tell one of them.
    """
    table = located(contract, topic)
    found = tables.opened(table) if contract.topics[topic].valid_time is None else None
    newest = scan.latest(found, tables.period(table)[0]) if found is not None else None
    if newest is not None:
        telling.note(lag_seconds={topic: round((datetime.now(UTC) - newest).total_seconds(), 3)})


def _note_plan(made: Plan) -> None:
    """What a plan's step tells: how many offsets of each topic are taken, and left to later runs."""
    offsets = {name: sum(share.planned.values()) for name, share in made.topics.items()}
    left = {name: share.beyond for name, share in made.topics.items() if share.beyond is not None}
    telling.note(run=made.run, offsets=offsets, offsets_left=left)


def _plan_instead(contract: Contract, run_id: str, instead: dict[str, Any]) -> int:
    """The number of a run that does something else than to replay (planner.plan)."""
    now = settings()
    with telling.step("plan", contract.pipeline):
        telling.begun(run_id=run_id)
        made = planner.plan(now.warehouse, now.kafka, contract, run_id, instead=instead)
        _note_plan(made)
    return made.run


def _planned(pipeline: str, run: int) -> tuple[Contract, Plan]:
    now = settings()
    contract = find(now.schemas, pipeline)
    todo = Plan.from_json(plans.current(now.warehouse, pipeline, run).plan)
    if todo.contract != contract.hash:
        raise AskedError(
            "the contract was changed after the run was planned",
            where=f"{pipeline}, run {run} ({todo.run_id})",
            mend="run its plan step again (in Airflow: clear the run from its plan task on)",
        )
    return contract, todo


@contextmanager
def _noting_stops(pipeline: str, run: int, table: str) -> Iterator[None]:
    """Notes in the journal what stops a run: a gate, the contract, or records. The next run gives it up."""
    try:
        yield
    except (ContractError, GateError, RecordError) as error:
        _enter(pipeline, run, "stopped", {"table": table, "found": str(error)})
        contract, todo = _planned(pipeline, run)
        page.write(settings().reports, report.make(settings().warehouse, contract, todo, stopped=str(error)))
        raise


def _enter(pipeline: str, run: int, state: str, detail: dict[str, Any]) -> None:
    """What has become of a run, into the journal."""
    warehouse = settings().warehouse
    entry = plans.current(warehouse, pipeline, run)
    journal.write(warehouse, replace(entry, state=state, detail=detail))


def _done(contract: Contract, todo: Plan, name: str, *sources: Table) -> dict[str, Any] | None:
    """The note of a table that needs nothing any more: this run has published it, or nothing can have changed in it.

    That is so if a completed run of this very contract has seen it and its sources as they are; unless it is what the
    run is about, a person has released what is held of it, something of it was forgotten since, or one of its gates
    fails by time alone.
    """
    table = located(contract, name)
    if tables.published(table) >= todo.run:
        note: dict[str, Any] = tables.notes(table).get(todo.run, nothing(todo))
        return note
    if name in (*todo.releases, todo.only, todo.upgraded) or any(
        gate.type == AGING for gate in contract.expectations(name)
    ):
        return None
    referred = (gate.refers_to for gate in contract.expectations(name))
    sources = (*sources, *(source(contract, todo, other) for other in referred if other))
    past = journal.runs(table.warehouse, contract.pipeline)
    last = next((run for run in reversed(past) if run.state == "completed"), None)
    if last is None or last.plan["contract"] != contract.hash:
        return None
    if forgotten.since(past, contract, name, last.number):
        return None
    if any(run.plan.get("upgrade") for run in past if run.number > last.number and run.number != todo.run):
        return None  # it was given up, and may have taken a table over that was not looked at since
    settled = Plan.from_json(last.plan).pins == todo.pins and all(
        it.pin is not None or tables.published(it) <= last.number for it in (table, *sources)
    )
    return nothing(todo) if settled else None
